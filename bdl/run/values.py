"""Which plain values of YAML may stand for which annotations, and the line that refuses one that may not.

An annotation is a type of Python, or a `Rule` where no type says enough.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from omegaconf import OmegaConf

from bdl.errors import ConfigError

BUILT = "built by a _target_"
PLAIN = {  # type -> those of its values in YAML, its name in words
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "a word"),
    Path: ((str,), "a path"),
    types.NoneType: ((types.NoneType,), "null"),
    None: ((types.NoneType,), "null"),
}


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words, and whether it is."""

    words: str
    fits: Callable[[Any], bool]

    def __or__(self, other: object) -> Rule:
        return Rule(f"{self.words} or {describe(other)}", lambda v: self.fits(v) or fits(v, other))


def plain(value: object) -> Any:
    """The value; a part of a configuration as nested dicts and lists, with its interpolations resolved."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def leaves(value: object, key: str = "", lists: bool = True) -> Iterator[tuple[str, Any]]:
    """The values below a plain mapping or list, with their keys. lists: whether the parts of a list have keys too."""
    if not isinstance(value, Mapping) and not (lists and isinstance(value, list)):
        yield key, value
        return
    for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from leaves(part, f"{key}.{name}" if key else str(name), lists)


def check_value(key: str, value: object, wanted: object) -> None:
    """Raise ConfigError for a value that does not fit. One that lacks its brackets is shown with them."""
    value = plain(value)
    if not fits(value, wanted):
        remedy = f": write '{key}=[{value}]'" if fits([value], wanted) else ""
        raise ConfigError(f"{key} must be {describe(wanted)}, got {value!r}{remedy}")


def fits(value: object, wanted: object) -> bool:
    """Whether a plain value may stand for an argument of this type."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if isinstance(wanted, Rule):
        return wanted.fits(value)
    if wanted is Any or wanted is object:
        return True
    if wanted in PLAIN:
        return type(value) in PLAIN[wanted][0]
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if _is(wanted, Sequence):
        return isinstance(value, list) and all(fits(part, parts[0] if parts else Any) for part in value)
    if _is(wanted, Mapping):
        return isinstance(value, dict)
    return not inspect.isclass(origin or wanted)  # an object is built from a node with a _target_, not from a value


def describe(wanted: object) -> str:
    """The type in words, for a message."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if isinstance(wanted, Rule):
        return wanted.words
    if wanted in PLAIN:
        return PLAIN[wanted][1]
    if origin in (Union, types.UnionType):
        others = sorted((p for p in parts if not (p is str and Path in parts)), key=lambda p: p is types.NoneType)
        words = list(dict.fromkeys(map(describe, others)))
        values = [word for word in words if not word.startswith(BUILT) and word != "null"]
        return " or ".join(word for word in words if not values or not word.startswith(BUILT))
    if origin is Literal:
        *first, last = map(json.dumps, parts)  # as YAML writes them
        return f"{', '.join(first)} or {last}" if first else last
    if _is(wanted, Sequence):
        return f"a list of {_several(describe(parts[0]))}" if parts else "a list"
    return "a mapping" if _is(wanted, Mapping) else f"{BUILT} ({getattr(wanted, '__name__', wanted)})"


def _several(words: str) -> str:
    for one in ("whole number", "number", "word"):
        words = words.replace(f"a {one}", f"{one}s", 1)
    return words


def _is(wanted: object, kind: type) -> bool:
    origin = get_origin(wanted) or wanted
    return inspect.isclass(origin) and issubclass(origin, kind)
