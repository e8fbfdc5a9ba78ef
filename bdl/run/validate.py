"""Checks of values: by annotations, and those of a composed configuration by the constructors that it names.

An annotation is a type of Python, or a `Rule` where no type says enough. Names and types of keys are those of the
constructors: the arguments and annotations of each `_target_` say which keys there are and what they may hold. Ranges
are checked by building the parts that need no data. All else stands in `keys`.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, Unpack, get_args, get_origin, get_type_hints

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from bdl.errors import ConfigError, did_you_mean
from bdl.run.config import plain

Target = type | Callable[..., object]  # a class, or a function that builds something
BUILT = "built by a _target_"
_NAMED = {True: "true", False: "false", None: "null"}  # as YAML writes them
NAMES = {f"data.{key}" for key in ("target", "order", "group", "exposure", "weight", "split_column")}  # of columns
SEVERAL = re.compile("a (whole number|number|word)")
PLAIN = {  # type -> those of its values in YAML, its name in words
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "a word"),
    Path: ((str,), "a path"),
    types.NoneType: ((types.NoneType,), "null"),
    None: ((types.NoneType,), "null"),
}
# null until train.py has seen the data
_FILLED_IN = (
    "sampler.num_data",
    "model.sizes",
    "model.num_classes",
    "model.vocabulary",
    "model.context",
    "loss.min_std",
    "loss.outliers",
)
_BUILT_EARLY = ("sampler.", "schedule.", "collect.", "baseline")  # their parts need no data
_READ_BY_TRAIN = ("loss.scale", "loss.covariance", "model.hidden")  # train.py takes them out before it builds
_OF_HYDRA = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")
_NOT_OURS = ("trainer", "logger", "hydra")  # sections whose constructors are Lightning's and Hydra's


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words, and whether it is."""

    words: str
    fits: Callable[[Any], bool]

    def __or__(self, other: object) -> Rule:
        return _any_of([self, other])


def check_config(cfg: DictConfig) -> None:
    """Raise ConfigError for a key without a value, or an argument that is unknown, of a wrong type or out of range."""
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(f"{missing[0]} has no value: choose a configuration that gives one, or set it")
    for key in map(str, cfg):
        if key not in _NOT_OURS and OmegaConf.is_dict(cfg[key]):
            _check_targets(key, cfg[key])
    _check_arguments("collect", cfg.collect, get_object("bdl.CollectSamples"))  # train.py passes them on


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
    # Where max_steps is -1, the number of steps, which some arguments follow, is known once the data are counted
    counted = OmegaConf.select(node._get_root(), "trainer.max_steps") != -1
    if path.startswith(_BUILT_EARLY) and name.startswith("bdl.") and counted:
        _check_ranges(path, node)


def _check_ranges(path: str, node: DictConfig) -> None:
    """Build the part, which checks its arguments. The message names the key."""
    try:
        instantiate(node)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, ConfigError):
            raise ConfigError(f"{path}: {cause}") from error
        raise ConfigError(f"{path} cannot be built: {' '.join(str(cause).split())}") from error


def _check_arguments(path: str, node: DictConfig, target: Target) -> None:
    """Check the literal values of a node. An interpolation is checked at the key that it names."""
    annotations, takes_more = arguments_of(target)
    known = [*annotations, *_OF_HYDRA]
    for key in map(str, node):
        value = node[key]
        if f"{path}.{key}" in _READ_BY_TRAIN:
            continue
        if not takes_more and key not in known:
            hint = did_you_mean(key, known)
            raise ConfigError(f"{path}.{key} is no argument of {target.__name__}{hint}: it takes {', '.join(known)}")
        if key not in annotations or OmegaConf.is_dict(value) or OmegaConf.is_interpolation(node, key):
            continue
        if value is not None or f"{path}.{key}" not in _FILLED_IN:
            node[key] = fitting(f"{path}.{key}", value, annotations[key])


def arguments_of(target: Target) -> tuple[dict[str, Any], bool]:
    """The annotations of a target's arguments by name, and whether it takes further ones, or nobody knows.

    An annotation that cannot be evaluated is Any. The items of a TypedDict stand for `**options: Unpack[Options]`.
    """
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return {}, True
    try:
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError, AttributeError):
        hints = {}
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    typed, options = {name: hints.get(name, Any) for name in named}, [p for p in parameters if p.kind is p.VAR_KEYWORD]
    for each in options:
        if get_origin(hint := hints.get(each.name)) is not Unpack:
            return typed, True
        typed |= get_type_hints(get_args(hint)[0])
    return typed, False


def fitting(key: str, value: object, wanted: object) -> Any:
    """The value, with words in the place of numbers where words are meant, such as a column named 2020.

    Raises ConfigError for one that does not fit. One that lacks its brackets is shown with them.
    """
    given, rule = plain(value), rule_of(wanted)
    named = isinstance(given, list) or key in NAMES
    for fits in (given, _in_words(given)) if named else (given,):
        if rule.fits(fits):
            return value if fits is given else fits
    raise ConfigError(f"{key} must be {rule.words}, got {given!r}{_remedy(key, given, rule)}")


def _remedy(key: str, given: Any, rule: Rule) -> str:
    """What to write in the place of a value that lacks its brackets, or its quotes."""
    if given is None:
        named = f""": write '{key}="null"' for the column null""" if key in NAMES and rule.fits("null") else ""
        return named or (f": write '{key}=[]' for none" if rule.fits([]) else "")
    return f": write '{key}=[{given}]'" if rule.fits([given]) or rule.fits(_in_words([given])) else ""


def _in_words(value: Any) -> Any:
    """A number or a truth value as a word, and so each of a list, with null as YAML writes it."""
    if isinstance(value, list):
        return [_NAMED[None] if each is None else _in_words(each) for each in value]
    return _NAMED[value] if isinstance(value, bool) else str(value) if type(value) in (int, float) else value


def rule_of(wanted: object) -> Rule:
    """What an annotation asks of a plain value. An object is built from a node with a _target_, not from a value."""
    origin, parts = get_origin(wanted) or wanted, get_args(wanted)
    if isinstance(wanted, Rule):
        return wanted
    if wanted is Any or wanted is object:
        return Rule("anything", lambda value: True)
    if wanted in PLAIN:
        kinds, words = PLAIN[wanted]
        return Rule(words, lambda value: type(value) in kinds)
    if origin in (Union, types.UnionType):
        return _any_of(parts)
    if origin is Literal:
        *first, last = map(json.dumps, parts)  # the choices as YAML writes them
        words = f"{', '.join(first)} or {last}" if first else last
        return Rule(words, lambda value: any(value == part and type(value) is type(part) for part in parts))
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        part = rule_of(parts[0] if parts else Any)
        several = SEVERAL.sub(r"\1s", part.words)
        return Rule(
            f"a list of {several}" if parts else "a list",
            lambda value: isinstance(value, list) and all(map(part.fits, value)),
        )
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return Rule("a mapping", lambda value: isinstance(value, dict))
    return Rule(f"{BUILT} ({getattr(wanted, '__name__', wanted)})", lambda value: not inspect.isclass(origin))


def _any_of(annotations: Sequence[object]) -> Rule:
    """The rule of a union. Words say what can be written as a value, null last; or what is built where nothing can."""
    rules = [rule_of(each) for each in annotations]
    named = [rule_of(each).words for each in annotations if each is not str or Path not in annotations]
    words = sorted(dict.fromkeys(named), key="null".__eq__)
    written = [each for each in words if not each.startswith(BUILT)]
    shown = words if written in ([], ["null"]) else written
    return Rule(" or ".join(shown), lambda value: any(rule.fits(value) for rule in rules))
