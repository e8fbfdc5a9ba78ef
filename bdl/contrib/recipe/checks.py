"""What D and Q of a recipe must be: semidefinite and skew-symmetric, and such that every variable moves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bdl.contrib.recipe.blocks import MatrixBlock, State, StateVariable, is_matrix
from bdl.errors import ConfigError


def check_grid(variables: Sequence[StateVariable], blocks: Sequence[MatrixBlock]) -> None:
    """Raise ConfigError for a state that never moves, and for constants that are no D or no Q."""
    if not any(b.in_D for b in blocks):
        raise ConfigError("D is zero, so no noise brings a chain to its target distribution: give some variable a D")
    for v in variables:
        if all(v != b.row for b in blocks):
            raise ConfigError(f"{v.name} never moves: give it a block in D, or one in Q")
    state = state_of_constants(variables, blocks)
    check_constants(blocks, state["theta"].shape[-1])
    for block in blocks:
        if block.constant:
            check_block(block, state)


def state_of_constants(variables: Sequence[StateVariable], blocks: Sequence[MatrixBlock]) -> State:
    """A state of one chain at 0 that has as many coordinates as the longest constant."""
    d = max((len(b.given) for b in blocks if isinstance(b.given, Tensor)), default=1)
    theta = torch.zeros(1, d, dtype=torch.float64)
    return {v.name: theta if v.vector else theta[:, 0] for v in variables}


def check_subtraction(blocks: Sequence[MatrixBlock]) -> None:
    """Raise ConfigError unless batch noise reaches one variable alone, and noise is injected there, by itself."""
    reached = {b.row for b in blocks if b.column.name == "theta"}
    into = next(iter(reached), None)
    alone = len(reached) == 1 and into is not None and into.vector
    injected = any(b.in_D and b.diagonal and b.row == into for b in blocks)
    joint = any(b.in_D and not b.diagonal for b in blocks)
    if any(isinstance(b.given, Tensor) and b.given.ndim == 2 for b in blocks if into == b.row):
        raise ConfigError("grad_var needs batch noise to pass through diagonals of D and Q: leave grad_var None")
    if not alone or joint or not injected:
        names = ", ".join(sorted(v.name for v in reached))
        raise ConfigError(
            f"grad_var needs batch noise to reach one vector, into which noise is injected independently of others; "
            f"it reaches {names}: leave grad_var None"
        )


def check_constants(blocks: Sequence[MatrixBlock], d: int) -> None:
    """Raise ConfigError for constants of another shape than they must have in d dimensions."""
    for block in blocks:
        if not callable(block.given):
            block.check_shape(block.given, d)


def check_block(block: MatrixBlock, state: State) -> None:
    """Raise ConfigError for a block that makes D not symmetric and semidefinite, or Q not skew-symmetric."""
    if callable(block.given) and block.dependence(state) < block.look(state):
        raise ConfigError(
            f"{block.label} depends on {block.column.name} in some places only, as torch.where does, so Γ was wrong "
            "there: write it without branches"
        )
    value = torch.as_tensor(block.at(state))
    matrix = is_matrix(value)
    if block.mirror is not None:
        other = torch.as_tensor(block.mirror.at(state))
        if is_matrix(other) != matrix or not _equal(other, torch.as_tensor(block.transposed().at(state))):
            what = "the transpose" if block.in_D else "minus the transpose"
            raise ConfigError(f"{block.mirror.label} is not {what} of {block.label}: write None below the diagonal")
    if not block.diagonal:
        return
    if not block.in_D:
        if not (matrix and _equal(value, -value.mT)):
            raise ConfigError(f"{block.label} is not skew-symmetric: give a matrix A - A', or 0")
    elif matrix:
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
    return bool((a - b).abs().max() <= _rounding(a) * torch.maximum(a.abs(), b.abs()).max())


def _rounding(x: Tensor) -> float:
    return 10 * max(x.shape[-1], 10) * torch.finfo(x.dtype).eps if x.ndim else 1e-12
