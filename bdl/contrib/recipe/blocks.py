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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


@dataclass(eq=False)
class MatrixBlock:
    """One block of D or Q.

    given: a float, a tensor in double precision, or a function of the state of one chain that returns one of these.
    mirror: the block at (column, row) where the user wrote it too, to be compared.
    """

    label: str  # as the user wrote it, such as "D[theta, r]", also where it is the mirror image of what the user wrote
    row: StateVariable
    column: StateVariable
    given: float | Tensor | Callable[[Any], Any]
    in_D: bool
    mirror: MatrixBlock | None = None
    _near: Tensor | None = field(default=None, init=False, repr=False)  # a constant in the type of θ
    _known: Dependence | None = field(default=None, init=False, repr=False)
    _looks: int = field(default=0, init=False, repr=False)  # how many chains were looked at, in turn

    @property
    def diagonal(self) -> bool:
        return self.row == self.column

    @property
    def constant(self) -> bool:
        """Whether it and its mirror are no functions."""
        return not callable(self.given) and (self.mirror is None or self.mirror.constant)

    def transposed(self) -> MatrixBlock:
        """The block at (column, row), which follows by symmetry: the transpose in D, and minus the transpose in Q."""
        given, sign = self.given, 1 if self.in_D else -1

        def turned(value: Any) -> Any:
            value = value if isinstance(value, float | Tensor) else torch.as_tensor(value, dtype=torch.float64)
            return sign * (value.mT if isinstance(value, Tensor) and value.ndim == 2 else value)

        there = (lambda z: turned(given(z))) if callable(given) else turned(given)
        return MatrixBlock(self.label, self.column, self.row, there, self.in_D)

    def at(self, state: State) -> Value:
        """The block where the chains are."""
        given, theta = self.given, state["theta"]
        if callable(given):
            return vmap(self._of_one)(state)
        if not isinstance(given, Tensor):
            return given
        if self._near is None or self._near.dtype != theta.dtype or self._near.device != theta.device:
            self._near = self._shaped(given.to(theta)).unsqueeze(0)
        return self._near

    def at_with_divergence(self, state: State) -> tuple[Value, Tensor | None]:
        """The block B, and Σ_j ∂B_ij/∂z_j (C, n) over its columns; None where B does not depend on z_j."""
        if not callable(self.given) or (how := self.dependence(state)) == Dependence.NONE:
            return self.at(state), None

        def of_one(one: State) -> tuple[Tensor, Tensor]:
            of, x = self._of_column(one)
            if how == Dependence.DENSE:  # Σ_j (∂B/∂x_j) e_j
                units = torch.eye(len(x), dtype=x.dtype, device=x.device)
                return of(x), vmap(lambda e: times(jvp(of, (x,), (e,))[1], e), chunk_size=CHUNK)(units).sum(0)
            value, pull = vjp(of, x)[:2]
            each = pull(torch.ones_like(value))[0]
            return value, each if self.row.vector else each.sum(0, keepdim=True)

        return vmap(of_one)(state)

    def dependence(self, state: State) -> Dependence:
        """How a function depends on the variable of its column, as it was found when it was first asked."""
        if self._known is None:
            self._known = self.look(state)
        return self._known

    def look(self, state: State) -> Dependence:
        """How a function depends on the variable of its column: what NaN reaches in one chain, each time in another.

        Raises ConfigError where the function passes no derivative on, and where Γ would take too many passes.
        """
        chain, self._looks = self._looks % len(state["theta"]), self._looks + 1
        of, x = self._of_column({name: x[chain] for name, x in state.items()})
        with torch.enable_grad():  # sees a dependence in each branch of a torch.where, too
            passed = of(x.clone().requires_grad_()).requires_grad
        value = of(torch.full_like(x, math.nan))
        if not passed and not bool(value.isnan().any()):
            return Dependence.NONE
        if not passed:
            raise ConfigError(
                f"{self.label} depends on {self.column.name}, but passes no derivative on, so Γ is unknown: leave out "
                "detach(), no_grad() and what leaves torch"
            )
        square = self.row.vector and value.ndim == 2
        if value.numel() == 1 or self.column.vector and not square and is_elementwise(of, x):
            return Dependence.ELEMENTWISE
        if len(x) > LARGEST:
            raise ConfigError(
                f"{self.label} mixes coordinates, so its Γ takes a pass for each of {len(x):,}, more than "
                f"{LARGEST:,}: write it elementwise, or as one number"
            )
        return Dependence.DENSE

    def check_shape(self, value: Any, d: int) -> None:
        """Raise ConfigError for a value of another shape than users may give the block in d dimensions."""
        vectors, shape = self.row.vector + self.column.vector, tuple(torch.as_tensor(value).shape)
        if shape not in ([()], [(d,)], [(), (d,), (d, d)])[vectors]:
            said = ("()", f"({d},)", f"(), ({d},) or ({d}, {d})")[vectors]
            raise ConfigError(f"{self.label} must have the shape {said}, got {shape}")

    def _of_column(self, one: State) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """The block of one chain as a function of the variable of its column (n,), and where this variable is."""
        name, x = self.column.name, one[self.column.name]
        return lambda moved: self._of_one({**one, name: moved.view(x.shape)}), torch.atleast_1d(x)

    def _of_one(self, one: State) -> Tensor:
        """The value of a function at the state of one chain, in the type of θ."""
        assert callable(self.given)
        theta = one["theta"]
        value = torch.as_tensor(self.given(Variables(one)), dtype=theta.dtype, device=theta.device)
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


def times(value: Value, x: Tensor) -> Tensor:
    """(..., rows) B x, with the chains' axis or for one chain without it."""
    if isinstance(value, Tensor) and value.ndim > x.ndim:
        return (value @ x.unsqueeze(-1)).squeeze(-1)
    return value * x


def dense(value: Value, like: Tensor) -> Tensor:
    """A block as a matrix (C, rows, columns) of the shape and the type of another."""
    b = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    return (b if is_matrix(b) else torch.diag_embed(b.expand(like.shape[:-1]))).expand(like.shape)


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
