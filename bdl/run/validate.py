"""Checks of the composed configuration by the constructors that it names, before data are read.

Names and types are those of the constructors: the arguments and annotations of each `_target_` say which keys there are
and what they may hold. Ranges are checked by building the parts that need no data. All else stands in `keys`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, Unpack, get_args, get_origin, get_type_hints

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from bdl.errors import ConfigError
from bdl.run.keys import refused

_FILLED_IN = ("sampler.num_data", "model.sizes", "model.num_classes")  # null until train.py has seen the data
_BUILT_EARLY = ("sampler.", "schedule.", "collect.", "baseline")  # their parts need no data
_READ_BY_TRAIN = ("loss.scale", "model.hidden")  # train.py takes them out before it builds
_OF_HYDRA = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")
_NOT_OURS = ("trainer", "logger", "hydra")  # sections whose constructors are Lightning's and Hydra's
_BUILT = "built by a _target_"
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", Path: "a path"}


def check_config(cfg: DictConfig) -> None:
    """Raise ConfigError for a key without a value, or an argument that is unknown, of a wrong type or out of range."""
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(f"{missing[0]} has no value: choose a configuration that gives one, or set it")
    for key in map(str, cfg):
        if key not in _NOT_OURS and OmegaConf.is_dict(cfg[key]):
            _check_targets(key, cfg[key])
    collector = get_object("bdl.CollectSamples")  # `collect` holds the arguments that train.py passes on
    _check_arguments("collect", cfg.collect, collector)


def _check_targets(path: str, node: Any) -> None:
    """Check every node below `path` that names a constructor, its parts first."""
    for key, value in _items(node):
        if OmegaConf.is_config(value):
            _check_targets(f"{path}.{key}", value)
    if OmegaConf.is_dict(node) and isinstance(node.get("_target_"), str):
        try:
            target = get_object(node["_target_"])
        except Exception as error:  # the module may raise anything when it is imported
            raise ConfigError(f"{path}._target_={node['_target_']} cannot be imported: {error}") from error
        _check_arguments(path, node, target)
        if path.startswith(_BUILT_EARLY) and node["_target_"].startswith("bdl.") and not _depends_on_data(node):
            _check_ranges(path, node)


def _depends_on_data(node: DictConfig) -> bool:
    """Whether the number of steps, which some arguments follow, is known only once the data are counted."""
    return OmegaConf.select(node._get_root(), "trainer.max_steps") == -1


def _check_ranges(path: str, node: DictConfig) -> None:
    """Build the part, which checks its arguments, and let go of it. The message names the key."""
    try:
        instantiate(node)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, ConfigError):
            raise ConfigError(f"{path}: {cause}") from error
        raise ConfigError(f"{path} cannot be built: {' '.join(str(cause).split())}") from error


def _items(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = node if OmegaConf.is_dict(node) else range(len(node))
    return ((key, node[key]) for key in keys)


def _check_arguments(path: str, node: DictConfig, target: Any) -> None:
    """Check the literal values of a node. An interpolation is checked at the key that it names."""
    annotations, known = argument_types(target), argument_names(target)
    for key, value in _items(node):
        if f"{path}.{key}" in _READ_BY_TRAIN:
            continue
        if known is not None and key not in known:
            raise ConfigError(f"{path}.{key} is no argument of {target.__name__}: it takes {', '.join(known)}")
        if key not in annotations or OmegaConf.is_dict(value) or OmegaConf.is_interpolation(node, key):
            continue
        plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        derived = plain is None and f"{path}.{key}" in _FILLED_IN
        if not derived and not fits(plain, annotations[key]):
            wanted = annotations[key]
            raise refused(f"{path}.{key}", describe(wanted), plain, fits([plain], wanted))


def argument_names(target: Any) -> list[str] | None:
    """Names of the arguments that a configuration may give; None where any will do, or where nobody knows."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return None
    typed, names = argument_types(target), [p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY]
    if options := [p.name for p in parameters if p.kind is p.VAR_KEYWORD]:
        names.remove(options[0])
        names += (items := [name for name in typed if name not in names])
        if not items or options[0] in items:
            return None
    return [*names, *_OF_HYDRA]


def argument_types(target: Any) -> dict[str, Any]:
    """Annotated types of a constructor's or a function's arguments; empty where they cannot be evaluated.

    The items of a TypedDict stand for `**options: Unpack[Options]`.
    """
    function = target.__init__ if inspect.isclass(target) else target
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}
    typed: dict[str, Any] = {}
    for name, hint in hints.items():
        typed |= get_type_hints(get_args(hint)[0]) if get_origin(hint) is Unpack else {name: hint}
    typed.pop("return", None)
    return typed


def fits(value: Any, wanted: Any) -> bool:
    """Whether a plain value of YAML may stand for an argument of this type."""
    origin = get_origin(wanted)
    if wanted is Any or wanted is object:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in get_args(wanted))
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in get_args(wanted))
    if wanted is None or wanted is type(None):
        return value is None
    if wanted is float:
        return type(value) in (int, float)
    if wanted is Path:
        return type(value) is str
    if wanted in (int, bool, str):
        return type(value) is wanted
    if _is_sequence(wanted):
        element = get_args(wanted)[0] if get_args(wanted) else Any
        return isinstance(value, list) and all(fits(part, element) for part in value)
    if _is_mapping(wanted):
        return isinstance(value, dict)
    return not inspect.isclass(origin or wanted)  # an object is built from a node with a _target_, not from a value


def describe(wanted: Any) -> str:
    """The type in words, for a message."""
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        parts = sorted(get_args(wanted), key=lambda part: part is type(None))
        words = list(dict.fromkeys(describe(part) for part in parts if not (part is str and Path in parts)))
        values = [word for word in words if not word.startswith(_BUILT) and word != "null"]
        return " or ".join(word for word in words if not values or not word.startswith(_BUILT))
    if origin is Literal:
        return " or ".join(f'"{part}"' if isinstance(part, str) else str(part) for part in get_args(wanted))
    if wanted is None or wanted is type(None):
        return "null"
    if wanted in _NAMES:
        return _NAMES[wanted]
    if _is_sequence(wanted):
        names = [describe(part) for part in get_args(wanted)[:1]]
        return f"a list of {names[0].removeprefix('a ')}s" if names else "a list"
    if _is_mapping(wanted):
        return "a mapping"
    return f"{_BUILT} ({getattr(wanted, '__name__', wanted)})"


def _is_sequence(wanted: Any) -> bool:
    origin = get_origin(wanted) or wanted
    return inspect.isclass(origin) and issubclass(origin, list | tuple | Sequence) and not issubclass(origin, str)


def _is_mapping(wanted: Any) -> bool:
    origin = get_origin(wanted) or wanted
    return inspect.isclass(origin) and issubclass(origin, Mapping)
