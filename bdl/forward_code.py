"""What a network computes with its parameters, as plain values: the settings of its modules and the code of `forward`.

Two networks of the same shapes may differ in both. What a module changes itself, such as a counter, is no setting.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import math
import sys
import types
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bdl.identity import code_of, type_name

LIBRARIES = ("torch", "lightning", "bdl", "torchvision", "transformers", "numpy", "builtins")
LARGEST = 10_000  # numbers in a tensor or a list that are compared


def described(net: nn.Module) -> dict[str, Any]:
    """By path, the type, the settings and a checksum of the code of each module, and the Python that compiled it.

    >>> described(nn.Sequential(nn.LeakyReLU(0.3)))["modules"]["0"]
    {'type': 'torch.nn.modules.activation.LeakyReLU', 'settings': {'negative_slope': 0.3, 'inplace': False}}
    """
    modules = {path: _module(module) for path, module in net.named_modules()}
    return {"python": sys.implementation.cache_tag, "modules": modules}


def difference(recorded: Any, net: nn.Module) -> tuple[str, str] | None:
    """(path, what differs) of the first module that differs from that of `described`; None where nothing is known to.

    Settings are compared where both have them, modules that hold others where they are of one type, and code where one
    Python compiled both.
    """
    now = described(net)
    if not isinstance(recorded, Mapping) or not isinstance(were := recorded.get("modules"), Mapping):
        return None
    if not all(isinstance(each, Mapping) and isinstance(each.get("settings"), Mapping) for each in were.values()):
        return None
    one_python = recorded.get("python") == now["python"]
    for path in dict.fromkeys([*now["modules"], *were]):
        was, this = were.get(path) or {}, now["modules"].get(path) or {}
        if was.get("type") != this.get("type"):
            if _is_leaf(path, were) and _is_leaf(path, now["modules"]):
                return path, f"was {_short(was.get('type'))}, and is {_short(this.get('type'))}"
            continue
        settings = was["settings"]
        for name, value in this["settings"].items():
            if name in settings and settings[name] != value and (one_python or not _of_code(value)):
                there, here = _short(settings[name]), _short(value)
                return path, f"{name} is another one" if there == here else f"{name} was {there}, and is {here}"
        if one_python and was.get("code") != this.get("code"):
            return path, f"the code of {_short(this['type'])} is another one"
    return None


def _is_leaf(path: str, modules: Mapping[str, Any]) -> bool:
    return bool(path) and not any(other.startswith(f"{path}.") for other in modules)


def _short(value: Any) -> str:
    """A type or a function by its name, and a setting, in at most 60 characters."""
    if isinstance(value, Mapping):
        return _short(value.get("of"))
    text = "no layer" if value is None else value.rpartition(".")[2] if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _module(module: nn.Module) -> dict[str, Any]:
    kind = type(module)
    changed = {name for function in _methods(kind).values() for name in _stored(function)}
    public = {name: value for name, value in vars(module).items() if not name.startswith("_") and name != "training"}
    told = {name: _told(value) for name, value in public.items() if name not in changed}
    settings = {name: value for name, value in told.items() if value is not None}
    code = {} if _is_library(kind) else {"code": _code_of_class(kind)}
    return {"type": type_name(kind), "settings": settings, **code}


def _told(value: Any) -> Any:
    """A setting as a plain value that JSON gives back; None for what is none, such as a data set."""
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, Tensor):
        told = value.detach().cpu().double()
        sums = [float(told.sum()), float(told.square().sum())]
        return _told(told.flatten().tolist() if told.numel() <= LARGEST else [*told.shape, *sums])
    if isinstance(value, list | tuple):
        parts = [_told(each) for each in value[:LARGEST]]
        return None if None in parts else parts
    if isinstance(value, partial):
        keywords = {name: _told(each) for name, each in value.keywords.items()}
        return {"of": _told(value.func), "args": _told(value.args), "keywords": keywords}
    if isinstance(value, types.FunctionType) and not _is_library(value):
        return {"of": type_name(value), "code": _code(value, set())}
    return type_name(value) if inspect.isroutine(value) and getattr(value, "__module__", None) else None


def _of_code(value: Any) -> bool:
    return isinstance(value, Mapping) and ("code" in value or _of_code(value.get("of")))


def _code_of_class(kind: type) -> str:
    """A checksum of what `forward` does, with the methods that it names."""
    methods, seen, told = _methods(kind), set[str](), []
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        if name in methods and name not in seen:
            seen.add(name)
            told.append(_code(methods[name], set()))
            waiting += sorted(methods[name].__code__.co_names)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _methods(kind: type) -> dict[str, types.FunctionType]:
    """The functions of a class and of its bases but for those of libraries and constructors."""
    return {
        name: value
        for base in reversed(kind.__mro__)
        if not _is_library(base)
        for name, value in vars(base).items()
        if isinstance(value, types.FunctionType) and name != "__init__"
    }


def _stored(function: types.FunctionType) -> Iterator[str]:
    return (each.argval for each in dis.get_instructions(function) if each.opname == "STORE_ATTR")


def _code(function: types.FunctionType, seen: set[int]) -> str | None:
    """`code_of`, without the docstring, with the numbers, words and functions that the code names outside of it."""
    if id(function) in seen:
        return None
    seen.add(id(function))
    code = function.__code__
    if function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,):
        plain = code.replace(co_consts=(None, *code.co_consts[1:]))
        function = types.FunctionType(plain, function.__globals__, "", function.__defaults__, function.__closure__)
    around = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    told = [
        (name, _code(value, seen) if isinstance(value, types.FunctionType) else repr(value))
        for name, value in sorted(around.items())
        if value is None
        or isinstance(value, bool | int | float | str)
        or isinstance(value, types.FunctionType)
        and not _is_library(value)
    ]
    return hashlib.sha256(repr((code_of(function), told)).encode()).hexdigest()[:16]


def _is_library(named: Any) -> bool:
    return (getattr(named, "__module__", None) or "builtins").partition(".")[0] in LIBRARIES
