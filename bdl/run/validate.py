"""Type and range checks of the composed configuration, before anything is built.

Types are those of the constructors: the annotations of each `_target_` say what its keys may hold. Ranges are checked
by the constructors themselves. Only keys that belong to no constructor of bdl have a table here.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from bdl.errors import ConfigError
from bdl.run.derived import check_stacks

_ABSENT = object()
_LEAST = {  # smallest value of whole numbers
    "seed": 0, "stack": 0, "stacks": 1, "chains": 1, "threads": 1, "processes": 1, "checkpoint_every": 1,
    "monitor_every": 1, "train_items": 1, "data.workers": 0, "trainer.accumulate_grad_batches": 1,
}  # fmt: skip
_OR_NULL = ("stacks", "threads", "processes", "train_items")
_FILLED_IN = ("sampler.num_data", "model.sizes", "model.num_classes")  # null until train.py has seen the data
_SWITCHES = ("shared_batches", "tf32")
_NOT_OURS = ("trainer", "logger", "hydra")  # sections whose constructors are Lightning's and Hydra's
_BUILT = "built by a _target_"
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", Path: "a path"}


def check_config(cfg: DictConfig) -> None:
    """Raise ConfigError for the first value of a wrong type or out of range; the message names its key."""
    _check_top_level(cfg)
    _check_trainer(cfg)
    check_stacks(cfg)
    for key in map(str, cfg):
        if key not in _NOT_OURS and OmegaConf.is_dict(cfg[key]):
            _check_targets(key, cfg[key])
    collector = get_object("bdl.CollectSamples")  # `collect` holds the arguments that train.py passes on
    _check_arguments("collect", cfg.collect, collector)


def _check_top_level(cfg: DictConfig) -> None:
    for key, least in _LEAST.items():
        wanted = f"a whole number of at least {least}" + (" or null" if key in _OR_NULL else "")
        _require(cfg, [key], wanted, lambda value, least=least: type(value) is int and value >= least)
    _require(cfg, _SWITCHES, "true or false", lambda value: type(value) is bool)
    _require(cfg, ["compile"], "auto, true or false", lambda value: type(value) is bool or value == "auto")
    _require(cfg, ["tune"], "auto or false", lambda value: value in ("auto", False) and type(value) is not int)
    widths = "a list of whole numbers of at least 1"
    _require(cfg, ["model.hidden"], widths, lambda value: OmegaConf.is_list(value) and all(map(_is_width, value)))
    _require(cfg, ["objective"], "null or the name of a metric", lambda value: value is None or type(value) is str)


def _is_width(value: Any) -> bool:
    return type(value) is int and value >= 1


def _check_trainer(cfg: DictConfig) -> None:
    choices = (True, False, None, "warn")
    _require(cfg, ["trainer.deterministic"], "true, false or warn", lambda value: value in choices)
    _require(cfg, ["trainer.precision"], "auto, 32-true or bf16-mixed", lambda value: not str(value).startswith("16"))
    if cfg.trainer.max_steps == -1:
        wanted = "a whole number of at least 1, or trainer.max_steps a number of steps"
        _require(cfg, ["trainer.max_epochs"], wanted, lambda value: type(value) is int and value >= 1)
    else:
        wanted = "at least 1, or -1 for a run of trainer.max_epochs"
        _require(cfg, ["trainer.max_steps"], wanted, lambda value: type(value) in (int, float) and value >= 1)


def _require(cfg: DictConfig, keys: Iterable[str], wanted: str, fits: Callable[[Any], bool]) -> None:
    for key in keys:
        value = OmegaConf.select(cfg, key, default=_ABSENT)
        if value is not _ABSENT and not (value is None and key in _OR_NULL or fits(value)):
            raise ConfigError(f"{key} must be {wanted}, got {value!r}")


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


def _items(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = node if OmegaConf.is_dict(node) else range(len(node))
    return ((key, node[key]) for key in keys)


def _check_arguments(path: str, node: DictConfig, target: Any) -> None:
    """Check the literal values of a node. An interpolation is checked at the key that it names."""
    annotations = argument_types(target)
    for key, value in _items(node):
        if key not in annotations or OmegaConf.is_dict(value) or OmegaConf.is_interpolation(node, key):
            continue
        plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        derived = plain is None and f"{path}.{key}" in _FILLED_IN
        if not derived and not fits(plain, annotations[key]):
            raise ConfigError(f"{path}.{key} must be {describe(annotations[key])}, got {plain!r}")


def argument_types(target: Any) -> dict[str, Any]:
    """Annotated types of a constructor's or a function's arguments; empty where they cannot be evaluated."""
    function = target.__init__ if inspect.isclass(target) else target
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}
    return {name: hint for name, hint in hints.items() if name != "return"}


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
