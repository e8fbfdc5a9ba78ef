"""One block of the matrices D and Q of a recipe: its value, and its divergence by automatic differentiation.

A state has θ and further vectors, each (C, d), and scalars, each (C,), where C counts the chains. A block stands
between two of these variables. As users write it, it is a number, a diagonal (d,) or a matrix (d, d) between vectors, a
column (d,) between a vector and a scalar, and a number between scalars. Its value here has one of two forms, in which a
scalar is a vector of length 1: a float or a tensor (C, n) multiplies elementwise, and a tensor (C, rows, columns) is a
matrix. A constant has 1 in place of C, and a number 1 in place of n.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from bdl.errors import ConfigError

LARGEST = 1024  # coordinates up to which a divergence may take one pass for each
CHUNK = 64  # passes that are made at a time

State = Mapping[str, Tensor]  # the variables by name
Value = float | Tensor


@dataclass(frozen=True)
class StateVariable:
    """A variable of the state of a recipe."""

    name: str
    vector: bool  # it has θ's shape (..., d); a scalar has (...), one number per chain


class Dependence(enum.IntEnum):
    """How a function depends on a variable of the state, and hence how its divergence is found."""

    NONE = 0
    ELEMENTWISE = 1  # each of its numbers on one coordinate, or it is one number: one backward pass
    DENSE = 2  # one forward pass for each coordinate


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
    mirror: MatrixBlock | None = None
    _near: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False)  # a constant in the type of θ
    _known: dict[StateVariable, Dependence] = field(default_factory=dict, init=False, repr=False)
    _looks: Iterator[int] = field(default_factory=count, init=False, repr=False)  # the chains to look at, in turn

    @property
    def diagonal(self) -> bool:
        return self.row == self.column

    @property
    def constant(self) -> bool:
        return not callable(self.given)

    def at(self, state: State) -> Value:
        """The block where the chains are."""
        given, theta = self.given, state["theta"]
        if callable(given):
            return vmap(self._of_one)(state)
        if isinstance(given, float):
            return given
        key = theta.dtype, theta.device
        if key not in self._near:
            self._near[key] = self._shaped(given.to(theta)).unsqueeze(0)
        return self._near[key]

    def at_with_divergence(self, state: State, transposed: bool) -> tuple[Value, Tensor | None]:
        """The block B, and Σ_j ∂B_ij/∂z_j (C, n) over its columns; of B', the transpose without its sign, if so.

        The divergence is None where it is zero, because the block does not depend on z_j.
        """
        along, to = (self.row, self.column) if transposed else (self.column, self.row)
        if self.constant or (how := self.dependence(along, state)) == Dependence.NONE:
            return self.at(state), None

        def of_one(one: State) -> tuple[Tensor, Tensor]:
            of, x = self._along(along, one)
            if how == Dependence.DENSE:  # Σ_j (∂B/∂x_j) e_j
                units = torch.eye(len(x), dtype=x.dtype, device=x.device)
                terms = vmap(lambda e: times(jvp(of, (x,), (e,))[1], e, transposed), chunk_size=CHUNK)(units)
                return of(x), terms.sum(0)
            value, pull = vjp(of, x)[:2]
            each = pull(torch.ones_like(value))[0]
            return value, each if to.vector else each.sum(0, keepdim=True)

        return vmap(of_one)(state)

    def dependence(self, along: StateVariable, state: State, again: bool = False) -> Dependence:
        """How a function depends on a variable: found once, by what NaN in it reaches.

        again: find it once more, by another chain. Raises ConfigError where the function passes no derivative on, and
        where it depends on more than when it was first asked.
        """
        known = self._known.get(along)
        if known is not None and not again:
            return known
        chain = next(self._looks) % len(state["theta"])
        found = self._found(along, {name: x[chain] for name, x in state.items()})
        if known is not None and found > known:
            raise ConfigError(
                f"{self.label} depends on {along.name} in some places only, as torch.where does, so Γ was wrong there: "
                "write it without branches"
            )
        return self._known.setdefault(along, found)

    def check_shape(self, value: Tensor, d: int) -> None:
        """Raise ConfigError for a value of another shape than users may give the block in d dimensions."""
        vectors = self.row.vector + self.column.vector
        shapes = ([()], [(d,)], [(), (d,), (d, d)])[vectors]
        if tuple(value.shape) not in shapes:
            said = ("()", f"({d},)", f"(), ({d},) or ({d}, {d})")[vectors]
            raise ConfigError(f"{self.label} must have the shape {said}, got {tuple(value.shape)}")

    def _found(self, along: StateVariable, one: State) -> Dependence:
        of, x = self._along(along, one)
        with torch.enable_grad():  # sees a dependence in each branch of a torch.where, too
            passed = of(x.clone().requires_grad_()).requires_grad
        value = of(torch.full_like(x, math.nan))
        if not passed and not bool(value.isnan().any()):
            return Dependence.NONE
        if not passed:
            raise ConfigError(
                f"{self.label} depends on {along.name}, but passes no derivative on, so Γ is unknown: leave out "
                "detach(), no_grad() and what leaves torch"
            )
        square = self.row.vector and self.column.vector and value.ndim == 2
        if value.numel() == 1 or along.vector and not square and is_elementwise(of, x):
            return Dependence.ELEMENTWISE
        if len(x) > LARGEST:
            raise ConfigError(
                f"{self.label} mixes coordinates, so its Γ takes a pass for each of {len(x):,}, more than "
                f"{LARGEST:,}: write it elementwise, or as one number"
            )
        return Dependence.DENSE

    def _along(self, along: StateVariable, one: State) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """The block of one chain as a function of one variable (n,), and where this variable is."""
        x = one[along.name]
        return lambda moved: self._of_one({**one, along.name: moved.view(x.shape)}), torch.atleast_1d(x)

    def _of_one(self, one: State) -> Tensor:
        """The value of a function at the state of one chain, in the type of θ."""
        assert callable(self.given)
        theta = one["theta"]
        value = torch.as_tensor(self.given(Variables(one)), device=theta.device).to(theta.dtype)
        self.check_shape(value, len(theta))
        return self._shaped(value)

    def _shaped(self, value: Tensor) -> Tensor:
        """What a user gave, as (n,) or (rows, columns)."""
        if self.row.vector == self.column.vector:
            return torch.atleast_1d(value)
        return value.unsqueeze(-1 if self.row.vector else -2)


class Variables:
    """The variables of one chain by their names, as the functions of a recipe see them: z.theta, z.r, ..."""

    def __init__(self, values: State):
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Tensor:
        raise ConfigError(f"a function of the recipe reads z.{name}, but is given {', '.join(self.__dict__)} only")


def is_matrix(value: Value) -> TypeGuard[Tensor]:
    """Whether a value is (C, rows, columns), and does not multiply elementwise."""
    return isinstance(value, Tensor) and value.ndim == 3


def times(value: Value, x: Tensor, transposed: bool = False) -> Tensor:
    """(..., rows) B x, or B' x if `transposed`; with the chains' axis or for one chain without it."""
    if isinstance(value, Tensor) and value.ndim > x.ndim:
        return ((value.mT if transposed else value) @ x.unsqueeze(-1)).squeeze(-1)
    return value * x


def dense(value: Value, transposed: bool, like: Tensor) -> Tensor:
    """A block as a matrix (C, rows, columns) of the shape and the type of another."""
    b = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if b.ndim < 3:
        b = torch.diag_embed(b.expand(like.shape[:-1]))
    return (b.mT if transposed else b).expand(like.shape)


def is_elementwise(of: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether each number of a function of x (n,) depends on the coordinate of its own place alone.

    Coordinates are NaN in turn, by the bits of their numbers: any two are told apart, whatever the values are.
    """
    number = torch.arange(len(x), device=x.device)
    for bit in range(max(len(x) - 1, 1).bit_length()):
        for side in (0, 1):
            hidden = (number >> bit) % 2 == side
            if bool((of(x.masked_fill(hidden, math.nan)).flatten().isnan() & ~hidden).any()):
                return False
    return True
