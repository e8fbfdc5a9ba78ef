"""Checks of the composed configuration by the constructors that it names, before data are read.

Names and types are those of the constructors: the arguments and annotations of each `_target_` say which keys there are
and what they may hold. Ranges are checked by building the parts that need no data. All else stands in `keys`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Unpack, get_args, get_origin, get_type_hints

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from bdl.errors import ConfigError, did_you_mean
from bdl.run.values import check_value

Target = type | Callable[..., object]  # a class, or a function that builds something
# null until train.py has seen the data
_FILLED_IN = ("sampler.num_data", "model.sizes", "model.num_classes", "loss.min_std")
_BUILT_EARLY = ("sampler.", "schedule.", "collect.", "baseline")  # their parts need no data
_READ_BY_TRAIN = ("loss.scale", "model.hidden")  # train.py takes them out before it builds
_OF_HYDRA = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")
_NOT_OURS = ("trainer", "logger", "hydra")  # sections whose constructors are Lightning's and Hydra's


def check_config(cfg: DictConfig) -> None:
    """Raise ConfigError for a key without a value, or an argument that is unknown, of a wrong type or out of range."""
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(f"{missing[0]} has no value: choose a configuration that gives one, or set it")
    for key in map(str, cfg):
        if key not in _NOT_OURS and OmegaConf.is_dict(cfg[key]):
            _check_targets(key, cfg[key])
    collector = get_object("bdl.CollectSamples")  # `collect` holds the arguments that train.py passes on
    _check_arguments("collect", cfg.collect, collector)


def _check_targets(path: str, node: DictConfig | ListConfig) -> None:
    """Check every node below `path` that names a constructor, its parts first."""
    parts = ((key, node[key]) for key in node) if isinstance(node, DictConfig) else enumerate(node)
    for key, value in parts:
        if isinstance(value, DictConfig | ListConfig):
            _check_targets(f"{path}.{key}", value)
    if not isinstance(node, DictConfig) or not isinstance(name := node.get("_target_"), str):
        return
    try:
        target = get_object(name)
    except Exception as error:  # the module may raise anything when it is imported
        raise ConfigError(f"{path}._target_={name} cannot be imported: {error}") from error
    _check_arguments(path, node, target)
    if path.startswith(_BUILT_EARLY) and name.startswith("bdl.") and not _depends_on_data(node):
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


def _check_arguments(path: str, node: DictConfig, target: Target) -> None:
    """Check the literal values of a node. An interpolation is checked at the key that it names."""
    annotations, known = argument_types(target), argument_names(target)
    for key in map(str, node):
        value = node[key]
        if f"{path}.{key}" in _READ_BY_TRAIN:
            continue
        if known is not None and key not in known:
            hint = did_you_mean(key, known)
            raise ConfigError(f"{path}.{key} is no argument of {target.__name__}{hint}: it takes {', '.join(known)}")
        if key not in annotations or OmegaConf.is_dict(value) or OmegaConf.is_interpolation(node, key):
            continue
        if value is not None or f"{path}.{key}" not in _FILLED_IN:
            check_value(f"{path}.{key}", value, annotations[key])


def argument_names(target: Target) -> list[str] | None:
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


def argument_types(target: Target) -> dict[str, Any]:
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
