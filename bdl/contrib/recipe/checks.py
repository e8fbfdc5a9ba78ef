"""What D and Q of a recipe must be: semidefinite and skew-symmetric, and such that every variable moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bdl.contrib.recipe.blocks import MatrixBlock, StateVariable, in_rows
from bdl.errors import ConfigError


def check_grid(variables: Sequence[StateVariable], blocks: Sequence[MatrixBlock]) -> None:
    """Raise ConfigError for a state that never moves, and for constants that are no D or no Q."""
    if not any(b.sign == 1 for b in blocks):
        raise ConfigError("D is zero, so no noise brings a chain to its target distribution: give some variable a D")
    for v in variables:
        if not any(v in (b.row, b.column) for b in blocks):
            raise ConfigError(f"{v.name} never moves: give it a block in D, or one in Q")
    sizes = [len(b.given) for b in blocks if isinstance(b.given, Tensor)]
    theta = torch.zeros(max(sizes, default=1), dtype=torch.float64)
    state = {v.name: theta if v.vector else theta[0] for v in variables}
    for block in blocks:
        if block.constant and not callable(block.mirror):
            for constant in (block.given, block.mirror):
                if constant is not None:
                    block.check_shape(torch.as_tensor(constant), len(theta))
            check_block(block, state)


def check_subtraction(blocks: Sequence[MatrixBlock]) -> None:
    """Raise ConfigError unless batch noise reaches one variable alone, and noise is injected there, by itself."""
    reached = {w for b in blocks for v, w in ((b.row, b.column), (b.column, b.row)) if v.name == "theta"}
    into = next(iter(reached), None)
    alone = len(reached) == 1 and into is not None and into.vector
    injected = any(b.sign == 1 and b.diagonal and b.row == into for b in blocks)
    joint = any(b.sign == 1 and not b.diagonal for b in blocks)
    if any(isinstance(b.given, Tensor) and b.given.ndim == 2 for b in blocks if into in (b.row, b.column)):
        raise ConfigError("grad_var needs batch noise to pass through diagonals of D and Q: leave grad_var None")
    if not alone or joint or not injected:
        names = ", ".join(sorted(v.name for v in reached))
        raise ConfigError(
            f"grad_var needs batch noise to reach one vector, into which noise is injected independently of others; "
            f"it reaches {names}: leave grad_var None"
        )


def check_block(block: MatrixBlock, state: Mapping[str, Tensor]) -> None:
    """Raise ConfigError for a block that makes D not symmetric and semidefinite, or Q not skew-symmetric."""
    if not block.constant:
        for along in (block.row, block.column):
            block.couples(along, in_rows(state, state["theta"]), again=True)
    b = block.at(state)
    value = torch.as_tensor(b.value)
    if block.mirror is not None:
        m = block.at(state, mirror=True)
        other = torch.as_tensor(m.value)
        if (b.rank == 2) != (m.rank == 2) or not _equal(other, block.sign * (value.mT if b.rank == 2 else value)):
            name = f"{block.label[0]}[{block.column.name}, {block.row.name}]"
            what = "the transpose" if block.sign == 1 else "minus the transpose"
            raise ConfigError(f"{name} is not {what} of {block.label}: write None below the diagonal")
    if not block.diagonal:
        return
    if block.sign == -1:
        if not (b.rank == 2 and _equal(value, -value.mT)):
            raise ConfigError(f"{block.label} is not skew-symmetric: give a matrix A - A', or 0")
    elif b.rank == 2:
        if not _equal(value, value.mT):
            raise ConfigError(f"{block.label} is not symmetric: give A + A', or A A'")
        root_of(value, block.label)
    elif not bool((value >= 0).all() and value.isfinite().all()):
        raise ConfigError(f"{block.label} is not positive semidefinite: give numbers >= 0, such as a square")


def root_of(matrix: Tensor, label: str) -> Tensor:
    """(..., n, n) R with R R' = D. Raises ConfigError unless D is finite and positive semidefinite, up to rounding."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if not bool(info.any()) and bool(factor.isfinite().all()):
        return factor
    if bool(matrix.isfinite().all()):
        values, vectors = torch.linalg.eigh(matrix)
        if bool((values[..., 0] >= -_rounding(matrix) * values[..., -1]).all()):
            return vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
    raise ConfigError(f"{label} is not positive semidefinite where the chain is: give A A', or add to its diagonal")


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two blocks agree up to rounding."""
    a, b = torch.broadcast_tensors(a, b)
    return bool(((a - b).abs() <= _rounding(a) * torch.maximum(a.abs(), b.abs()).max()).all())


def _rounding(x: Tensor) -> float:
    return 10 * max(x.shape[-1], 10) * torch.finfo(x.dtype).eps if x.ndim else 1e-12
