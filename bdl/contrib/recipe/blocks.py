"""Blocks of the matrices D and Q of a recipe: as a user writes them, times a vector, and their divergence.

A state holds θ (..., d), further variables of θ's shape, and scalars (...), one number per chain. A block stands
between two of these variables. Between two of θ's shape it is a number, which multiplies the identity, a diagonal (d,)
or a matrix (d, d); between one of them and a scalar a column (d,); between two scalars a number.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from bdl.errors import ConfigError

LARGEST = 1024  # coordinates up to which a divergence may take one pass for each
CHUNK = 64  # passes that are made at a time


@dataclass(frozen=True)
class StateVariable:
    """A variable of the state of a recipe."""

    name: str
    vector: bool  # it has θ's shape (..., d); a scalar has (...), one number per chain


class Coupling(enum.IntEnum):
    """How a function depends on a variable of the state."""

    NONE = 0
    SIMPLE = 1  # each of its numbers on one coordinate, or all of them on a scalar
    MIXING = 2


@dataclass(frozen=True)
class BlockValue:
    """What a block is at a state: a float, or a tensor whose last `rank` axes are those of the block."""

    value: Any
    rank: int


@dataclass(frozen=True, eq=False)
class MatrixBlock:
    """One block of a matrix whose block at (column, row) is `sign` times the transpose: 1 in D, -1 in Q.

    given: a float, a tensor in double precision, or a function of the state of one chain that returns one of these.
    mirror: what the user gave for (column, row), or None.
    """

    label: str  # its name in messages, such as "D[theta, r]"
    row: StateVariable
    column: StateVariable
    given: float | Tensor | Callable[[Any], Any]
    sign: int
    mirror: float | Tensor | Callable[[Any], Any] | None = None
    _near: dict[str, Any] = field(default_factory=dict, init=False, repr=False)  # a constant in the type of θ
    _couplings: dict[bool, Coupling] = field(default_factory=dict, init=False, repr=False)  # see `couples`
    _looks: Iterator[int] = field(default_factory=count, init=False, repr=False)  # the chains to look at, in turn

    @property
    def diagonal(self) -> bool:
        return self.row == self.column

    @property
    def constant(self) -> bool:
        return not callable(self.given)

    @property
    def ranks(self) -> tuple[int, ...]:
        """How many axes a value may have."""
        vectors = self.row.vector + self.column.vector
        return ((0,), (1,), (0, 1, 2))[vectors]

    def at(self, state: Mapping[str, Tensor], mirror: bool = False) -> BlockValue:
        """The block where the chains are. state: the variables by name, with any leading axes."""
        given = self.mirror if mirror else self.given
        theta = state["theta"]
        if not callable(given):
            return self._constant(given, theta, mirror)
        rows, lead = in_rows(state, theta), theta.shape[:-1]
        value = vmap(lambda one: self._of_one(given, one))(rows)
        return self._shaped(value.reshape((*lead, *value.shape[1:])), value.ndim - 1)

    def at_with_divergence(self, state: Mapping[str, Tensor], transposed: bool) -> tuple[BlockValue, Tensor | None]:
        """The block B, and Σ_j ∂B_ij/∂z_j over its columns; of B', the transpose without its sign, if `transposed`.

        The divergence is None where it is zero, because the block does not depend on z_j.
        """
        if self.constant:
            return self.at(state), None
        along = self.row if transposed else self.column
        theta = state["theta"]
        rows = in_rows(state, theta)
        coupling = self.couples(along, rows)
        if coupling == Coupling.NONE:
            return self.at(state), None
        mixes = coupling == Coupling.MIXING
        exact = partial(self._value_and_divergence, along=along, transposed=transposed, mixes=mixes)
        value, divergence = vmap(exact)(rows)
        to = self.column if transposed else self.row
        shaped = divergence.reshape(theta.shape if to.vector else theta.shape[:-1])
        return self._shaped(value.reshape((*theta.shape[:-1], *value.shape[1:])), value.ndim - 1), shaped

    def times(self, b: BlockValue, x: Tensor, transposed: bool) -> Tensor:
        """B x, or B' x if `transposed`, without the sign."""
        if b.rank == 2:
            return ((b.value.mT if transposed else b.value) @ x.unsqueeze(-1)).squeeze(-1)
        if self.row.vector == self.column.vector:
            return b.value * x
        to_vector = self.column.vector if transposed else self.row.vector
        return b.value * x.unsqueeze(-1) if to_vector else (b.value * x).sum(-1)

    def dense(self, b: BlockValue, d: int, like: Tensor) -> Tensor:
        """(..., rows, columns) the block as a whole matrix; like: θ, for its type."""
        value = b.value if isinstance(b.value, Tensor) else like.new_tensor(b.value)
        if b.rank == 2:
            return value
        if self.row.vector and self.column.vector:
            if b.rank == 1:
                return torch.diag_embed(value)
            eye = torch.eye(d, dtype=like.dtype, device=like.device)
            return eye * (value.unsqueeze(-1) if value.ndim else value)
        if self.row.vector or self.column.vector:
            return value.unsqueeze(-1 if self.row.vector else -2)
        return value[..., None, None]

    def couples(self, along: StateVariable, rows: Mapping[str, Tensor], again: bool = False) -> Coupling:
        """How a function depends on a variable: found once, by what NaN in it reaches.

        For a diagonal or a column coordinates are NaN in turn, by the bits of their numbers, so that any two are told
        apart, whatever the values are. again: find it once more, by another chain. Raises ConfigError where the
        function passes no derivative on, and where it depends on more than when it was first asked.
        """
        transposed = along == self.row and not self.diagonal
        known = self._couplings.get(transposed)
        if known is not None and not again:
            return known
        chain = next(self._looks) % len(rows["theta"])
        found = self._coupling(along, {name: value[chain] for name, value in rows.items()})
        if known is not None and found > known:
            raise ConfigError(
                f"{self.label} depends on {along.name} in some places only, as torch.where does, so Γ was wrong there: "
                "write it without branches"
            )
        self._couplings[transposed] = found if known is None else known
        return self._couplings[transposed]

    def _coupling(self, along: StateVariable, one: Mapping[str, Tensor]) -> Coupling:
        x = one[along.name]
        with torch.enable_grad():  # sees a dependence in each branch of a torch.where, too
            passed = self._of_one(self.given, {**one, along.name: x.clone().requires_grad_()}).requires_grad
        value = self._of_one(self.given, {**one, along.name: torch.full_like(x, math.nan)})
        if not passed and not bool(value.isnan().any()):
            return Coupling.NONE
        if not passed:
            raise ConfigError(
                f"{self.label} depends on {along.name}, but passes no derivative on, so Γ is unknown: leave out "
                "detach(), no_grad() and what leaves torch"
            )
        if value.ndim == 0 or not along.vector or value.ndim == 1 and not self._reads_others(along, one):
            return Coupling.SIMPLE
        if len(x) > LARGEST:
            raise ConfigError(
                f"{self.label} mixes coordinates, so its Γ takes a pass for each of {len(x):,}, more than "
                f"{LARGEST:,}: write it elementwise, or as one number"
            )
        return Coupling.MIXING

    def _reads_others(self, along: StateVariable, one: Mapping[str, Tensor]) -> bool:
        x = one[along.name]
        number = torch.arange(len(x), device=x.device)
        for bit in range(max(len(x) - 1, 1).bit_length()):
            for side in (0, 1):
                hidden = (number >> bit) % 2 == side
                value = self._of_one(self.given, {**one, along.name: x.masked_fill(hidden, math.nan)})
                if bool((value.isnan() & ~hidden).any()):
                    return True
        return False

    def _value_and_divergence(
        self, one: Mapping[str, Tensor], along: StateVariable, transposed: bool, mixes: bool
    ) -> tuple[Tensor, Tensor]:
        """The block and its divergence at the state of one chain."""
        x = one[along.name]

        def of(x: Tensor) -> Tensor:
            return self._of_one(self.given, {**one, along.name: x})

        def slope(e: Tensor) -> Tensor:
            return jvp(of, (x,), (e,))[1]

        to_vector = self.column.vector if transposed else self.row.vector
        value, pull = vjp(of, x)[:2]
        if value.ndim == 1 and not along.vector:
            return value, slope(torch.ones_like(x))
        if value.ndim < 2 and not mixes:
            each = pull(torch.ones_like(value))[0]
        else:
            unit = torch.eye(len(x), dtype=x.dtype, device=x.device)
            if value.ndim == 2:  # Σ_j ∂B_ij/∂x_j
                of_column = vmap(lambda e: (slope(e).mT if transposed else slope(e)) @ e, chunk_size=CHUNK)
                return value, of_column(unit).sum(0)
            each = vmap(lambda e: slope(e) @ e, chunk_size=CHUNK)(unit)  # ∂b_i/∂x_i
        return value, each if to_vector or not along.vector else each.sum()

    def _of_one(self, given: Any, one: Mapping[str, Tensor]) -> Tensor:
        """The value of a function at the state of one chain, in the type of θ."""
        theta = one["theta"]
        value = torch.as_tensor(given(Variables(one)), device=theta.device).to(theta.dtype)
        self.check_shape(value, len(theta))
        return value

    def _constant(self, given: Any, theta: Tensor, mirror: bool) -> BlockValue:
        if not isinstance(given, Tensor):
            return BlockValue(given, 0)
        key = f"{mirror} {theta.dtype} {theta.device}"
        if key not in self._near:
            self._near[key] = given.to(theta)
        return BlockValue(self._near[key], given.ndim)

    def _shaped(self, value: Tensor, rank: int) -> BlockValue:
        """Numbers between vectors get an axis, by which they multiply (..., d)."""
        return BlockValue(value.unsqueeze(-1) if rank == 0 and self.row.vector else value, rank)

    def check_shape(self, value: Tensor, d: int) -> None:
        """Raise ConfigError for a value of another shape than the block has in d dimensions."""
        if value.ndim not in self.ranks or any(size != d for size in value.shape):
            shapes = {(0,): "()", (1,): f"({d},)", (0, 1, 2): f"(), ({d},) or ({d}, {d})"}[self.ranks]
            raise ConfigError(f"{self.label} must have the shape {shapes}, got {tuple(value.shape)}")


class Variables:
    """The variables of one chain by their names, as the functions of a recipe see them: z.theta, z.r, ..."""

    def __init__(self, values: Mapping[str, Tensor]):
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Tensor:
        raise ConfigError(f"a function of the recipe reads z.{name}, but is given {', '.join(self.__dict__)} only")


def in_rows(state: Mapping[str, Tensor], theta: Tensor) -> dict[str, Tensor]:
    """The variables with one leading axis, (C, d) or (C,); a chain without one gets it."""
    count = math.prod(theta.shape[:-1])
    return {name: x.reshape(count, -1) if x.ndim == theta.ndim else x.reshape(count) for name, x in state.items()}
