"""D and Q of a recipe as a user writes them, taken apart into blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.contrib.recipe.blocks import MatrixBlock, StateVariable
from bdl.errors import ConfigError


def blocks_of(matrix: Any, what: str, variables: list[StateVariable]) -> list[MatrixBlock]:
    """The blocks of D (`what` = "D") or Q on and above the diagonal that are not zero.

    matrix: one block where θ is the only variable, else rows of blocks in the order of the variables.
    """
    return list(_blocks(_grid(_listed(matrix), what, variables), what, variables))


def _blocks(grid: list[list[Any]], what: str, variables: list[StateVariable]) -> Iterator[MatrixBlock]:
    sign = 1 if what == "D" else -1
    for i, row in enumerate(variables):
        for j, column in enumerate(variables[i:], i):
            label = f"{what}[{row.name}, {column.name}]"
            upper, lower = _given(grid[i][j], label), _given(grid[j][i], label)
            if upper is None and lower is not None and i != j:
                yield MatrixBlock(f"{what}[{column.name}, {row.name}]", column, row, lower, sign)
            elif (upper is None or _is_zero(upper)) and (i == j or lower is None or _is_zero(lower)):
                continue
            else:
                assert upper is not None
                yield MatrixBlock(label, row, column, upper, sign, None if i == j else lower)


def _listed(value: Any) -> Any:
    """Sequences of any kind, such as those of a configuration, as lists."""
    return [_listed(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _grid(matrix: Any, what: str, variables: list[StateVariable]) -> list[list[Any]]:
    n = len(variables)
    if n == 1:
        return [[matrix]]
    if isinstance(matrix, int | float) and matrix == 0:
        return [[0] * n for _ in range(n)]
    if not isinstance(matrix, list) or len(matrix) != n or any(not isinstance(r, list) or len(r) != n for r in matrix):
        names = ", ".join(v.name for v in variables)
        raise ConfigError(f"{what} must be {n} rows of {n} blocks, in the order {names}, got {matrix!r}")
    return matrix


def _given(value: Any, label: str) -> Any:
    """A block as the user wrote it: None, a float, a tensor in double precision or a function."""
    if value is None or callable(value) and not isinstance(value, Tensor):
        return value
    try:
        number = torch.as_tensor(math.nan if isinstance(value, bool | str) else value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        number = torch.tensor(math.nan)
    if not bool(number.isfinite().all()):
        raise ConfigError(f"{label} must be finite numbers or a function of the state, got {value!r}")
    return number.item() if number.ndim == 0 else number


def _is_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0
