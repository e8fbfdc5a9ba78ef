"""What makes two objects the same, as plain values that JSON and a checkpoint can hold.

Runs are resumed and merged only if the identities of their parts are equal. `str()` is for people and decides nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn


def identity(value: Any) -> Any:
    """The value as nested dicts, lists, numbers and words; equal for objects that mean the same.

    A dataclass becomes its type and the fields of its constructor. A field whose metadata say `"in identity": "unless
    default"`, because it is younger than saved runs, is left out at its default. A module becomes its type and its
    public settings, a function its qualified name, a tensor a nested list.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(k): identity(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [identity(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(identity(v) for v in value)
    if isinstance(value, functools.partial):
        return {"type": type_name(value.func), "args": identity(value.args), **identity(value.keywords)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: identity(getattr(value, f.name)) for f in dataclasses.fields(value) if _counts(f, value)}
        return {"type": type_name(type(value)), **fields}
    if isinstance(value, nn.Module):
        return {"type": type_name(type(value)), **_settings(value), **identity(value.state_dict())}
    return type_name(value if hasattr(value, "__qualname__") else type(value))


def code_of(function: Any) -> str | None:
    """A checksum of what a Python function does, which its name does not tell of a lambda; None for anything else.

    It is that of the compiled code, with constants, defaults and what the function has from around it.
    """
    if isinstance(function, functools.partial):
        return code_of(function.func)
    if not isinstance(function, types.FunctionType):
        return None
    around = [_cell(cell) for cell in function.__closure__ or ()]
    told = repr((_told(function.__code__), identity(function.__defaults__), around))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _told(value: Any) -> Any:
    """A constant of compiled code; code without the places of its lines."""
    if isinstance(value, types.CodeType):
        return [value.co_code.hex(), value.co_names, [_told(each) for each in value.co_consts]]
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def _cell(cell: types.CellType) -> Any:
    """What a function has from around it if it stays as it is: numbers, words, tensors, functions; else its type."""
    try:
        value = cell.cell_contents
    except ValueError:  # it has none yet
        return None
    if isinstance(value, types.FunctionType):
        return code_of(value)
    stays = value is None or isinstance(value, bool | int | float | str | Tensor)
    return identity(value) if stays else type_name(type(value))


def architecture(net: nn.Module) -> dict[str, Any]:
    """The type and the public settings of every module of a network, by path; without the values of its tensors.

    >>> architecture(nn.Sequential(nn.Linear(2, 1), nn.Tanh()))["1"]
    {'type': 'torch.nn.modules.activation.Tanh'}
    """
    return {path: {"type": type_name(type(module)), **_settings(module)} for path, module in net.named_modules()}


def _settings(module: nn.Module) -> dict[str, Any]:
    """What the constructor of a module has left in its public attributes."""
    return identity({k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training"})


def _counts(field: dataclasses.Field[Any], owner: Any) -> bool:
    optional = field.metadata.get("in identity") == "unless default"
    return field.init and not (optional and getattr(owner, field.name) == field.default)


def type_name(named: Any) -> str:
    """`bdl.SGHMC` for what bdl exports, wherever its file lies, and the full path of everything else."""
    module, name = getattr(named, "__module__", None) or "builtins", named.__qualname__  # a method of C has no module
    return f"bdl.{name}" if module.partition(".")[0] == "bdl" else f"{module}.{name}"
