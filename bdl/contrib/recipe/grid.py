"""D and Q of a recipe as a user writes them, taken apart into blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bdl.contrib.recipe.blocks import MatrixBlock, StateVariable
from bdl.errors import ConfigError


def blocks_of(matrix: Any, what: str, variables: Sequence[StateVariable]) -> Iterator[MatrixBlock]:
    """The blocks of D (`what` = "D") or Q that are not zero, with those that follow by symmetry.

    matrix: one block where θ is the only variable, else rows of blocks in the order of the variables.
    """
    grid = _grid(_listed(matrix), what, variables)
    for i, row in enumerate(variables):
        for j, column in enumerate(variables):
            block = _block(grid[i][j], what, row, column)
            mirror = _block(grid[j][i], what, column, row) if i != j else None
            if all(b is None or isinstance(b.given, float) and b.given == 0 for b in (block, mirror)):
                continue
            if block is None:
                assert mirror is not None
                yield mirror.transposed()
            else:
                yield replace(block, mirror=mirror if i < j else None)


def _listed(value: Any) -> Any:
    """Sequences of any kind, such as sequences of a configuration, as lists."""
    return [_listed(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _grid(matrix: Any, what: str, variables: Sequence[StateVariable]) -> list[list[Any]]:
    n = len(variables)
    if n == 1:
        return [[matrix]]
    if isinstance(matrix, int | float) and matrix == 0:
        return [[0] * n for _ in range(n)]
    if not isinstance(matrix, list) or len(matrix) != n or any(not isinstance(r, list) or len(r) != n for r in matrix):
        names = ", ".join(v.name for v in variables)
        raise ConfigError(f"{what} must be {n} rows of {n} blocks, in the order {names}, got {matrix!r}")
    return matrix


def _block(value: Any, what: str, row: StateVariable, column: StateVariable) -> MatrixBlock | None:
    """What a user wrote at a place: None, or a block of a float, a tensor in double precision or a function."""
    label, in_D = f"{what}[{row.name}, {column.name}]", what == "D"
    if value is None:
        return None
    if callable(value) and not isinstance(value, Tensor):
        return MatrixBlock(label, row, column, value, in_D)
    try:
        number = torch.as_tensor(math.nan if isinstance(value, bool | str) else value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        number = torch.tensor(math.nan)
    if not bool(number.isfinite().all()):
        raise ConfigError(f"{label} must be finite numbers or a function of the state, got {value!r}")
    return MatrixBlock(label, row, column, number.item() if number.ndim == 0 else number, in_D)
