"""Recipe: the dynamics of any D and Q, with its drift, its correction Γ and its noise (Ma, Chen & Fox 2015)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from bdl.contrib.recipe.blocks import State, StateVariable, Value, Variables, is_matrix, times
from bdl.contrib.recipe.checks import (
    check_block,
    check_constants,
    check_grid,
    check_subtraction,
    root_of,
    state_of_constants,
)
from bdl.contrib.recipe.grid import blocks_of
from bdl.contrib.recipe.matrices import RecipeMatrices
from bdl.errors import ConfigError
from bdl.samplers.dynamics.base import Scalar, add_, inject_, mean
from bdl.samplers.dynamics.subtracting import SUBTRACTS_INDEPENDENT, Subtracting

CHECK_EVERY = 100  # steps between checks of D and Q where they are functions
EULER = "it samples the target distribution as lr -> 0: the Euler step has an error of first order in lr"


@dataclass(frozen=True, eq=False)
class Recipe(Subtracting):
    """The complete recipe (Ma, Chen & Fox 2015, eqs. 3, 5 and 9): any diffusion D(z) and any curl Q(z) make a sampler.

        z <- z - lr (D + Q) h + lr tau Γ + N(0, 2 lr tau D - lr² M V M'),    Γ_i = Σ_j ∂(D_ij + Q_ij)/∂z_j

    z = θ, or θ with further variables: `vectors` of θ's shape, such as a momentum, and `scalars`, one number per chain,
    such as the friction of a thermostat. The energy is U(θ) + N H(vectors, scalars), and h is its gradient over N. So
    the law is exp(-U/T) for θ, independently exp(-H/tau) for the others, which have the units of U/N. D must be
    symmetric and positive semidefinite, Q skew-symmetric. Γ is found by automatic differentiation, exactly.

    D, Q: one block where θ is alone, else rows of blocks in the order θ, vectors, scalars. A block is a number, which
    multiplies the identity, a diagonal (d,), a matrix (d, d), or a function that returns one of these; with a scalar it
    is a column (d,) or a number. A function takes the state of one chain, with z.theta (d,) and the other variables by
    name, and is written in torch. 0 stands for nothing, and None below the diagonal for what symmetry says.
    H: a function of the same kind that returns a number; it reads no θ. None: |r|²/2 for each vector, d ξ²/2 for each
    scalar. vectors: names; they start at 0. scalars: names with the value at the start.
    grad_var: V, the variance that mini-batches give to g, of which lr² M V M' is subtracted from the injected variance,
    at most all of it; M is the column of D + Q at θ. Batch noise must reach one variable, through a diagonal. It is a
    number, (d,), "estimated" along the chain, or None, which subtracts nothing.

    >>> import bdl
    >>> langevin = bdl.Recipe(D=1.0)  # SGLD
    >>> riemannian = bdl.Recipe(D=lambda z: 1 + z.theta**2)
    >>> momentum = bdl.Recipe(D=[[0, 0], [0, 10.0]], Q=[[0, -1], [1, 0]], vectors=["r"])  # SGHMC

    Variables move one after the other, θ last, each by the newest values of the variables before it (symplectic Euler,
    where D and Q are constant). The law is right as lr -> 0, and the error of the step is of first order in lr. A
    momentum with friction C and Q of 1 is bdl's SGHMC with lr² and friction lr C: such a lr is the root of SGD's. At
    tau = 0 the drift is left. Γ costs a backward pass for each block that is a function, where this is a number, or
    elementwise, which is tested; else one forward pass for each of at most 1,024 coordinates.

    Raises ConfigError for blocks of another shape, D or Q that are not semidefinite or skew (constants at once,
    functions at the first and at every 100th step), and variables that never move.
    """

    D: Any
    Q: Any = 0
    H: Callable[[Any], Any] | None = None
    vectors: Sequence[str] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)
    grad_var: Any = None
    _matrices: RecipeMatrices = field(init=False, repr=False)
    _state: Any = field(init=False, repr=False)  # the type of the state

    tunable = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ["theta", *self.vectors, *self.scalars]
        reserved = [name for name in names[1:] if name in ("theta", "steps") or not str(name).isidentifier()]
        if isinstance(self.vectors, str) or reserved or len({*names}) < len(names):
            raise ConfigError(
                f"vectors and scalars must be lists of different names other than theta and steps, got {names[1:]}"
            )
        variables = [StateVariable(name, name not in self.scalars) for name in names]
        blocks = [*blocks_of(self.D, "D", variables), *blocks_of(self.Q, "Q", variables)]
        check_grid(variables, blocks)
        if self.grad_var is not None:
            check_subtraction(blocks)
        matrices = RecipeMatrices(variables, blocks)
        if matrices.joint and all(b.constant for b in blocks if b.in_D):
            matrices.root_of_D(state_of_constants(variables, blocks))  # raises unless D is semidefinite
        fields = [(v.name, Tensor) for v in variables]
        object.__setattr__(self, "_matrices", matrices)
        object.__setattr__(self, "_state", make_dataclass("RecipeState", [*fields, ("steps", int)]))

    def __str__(self) -> str:
        names = [v.name for v in self._matrices.variables]
        above = [b for b in self._matrices.blocks if names.index(b.row.name) <= names.index(b.column.name)]
        return f"Recipe({', '.join(b.label for b in above)}; state {', '.join(names)}){self.subtraction()}"

    @property
    def caveat(self) -> str | None:
        return EULER if self.grad_var is None else f"{EULER}; {SUBTRACTS_INDEPENDENT}"

    @property
    def reads_variances(self) -> bool:  # type: ignore[override]
        return True  # functions of the state need all coordinates

    @property
    def per_coordinate(self) -> bool:
        """Whether a factor of lr per coordinate is again a recipe: D and Q are constant diagonals."""
        return not self.scalars and all(b.constant and getattr(b.given, "ndim", 0) < 2 for b in self._matrices.blocks)

    @property
    def every_gradient(self) -> bool:
        return not self.per_coordinate

    def noise_numbers(self, d: int) -> int:
        return sum(d if v.vector else 1 for v in self._matrices.noisy)

    def init(self, theta: Tensor) -> Any:
        check_constants(self._matrices.blocks, theta.shape[-1])
        vectors = [torch.zeros_like(theta) for _ in self.vectors]
        scalars = [theta.new_full(theta.shape[:-1], float(value)) for value in self.scalars.values()]
        return self._state(theta, *vectors, *scalars, steps=0)

    def step(
        self, s: Any, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, extra: dict[str, Tensor] | None = None
    ) -> Any:
        now, matrices = self._values(s), self._matrices
        if s.steps % CHECK_EVERY == 0:
            for block in matrices.blocks:
                if not block.constant:
                    check_block(block, now)
        s.steps += 1
        g, noise = g.reshape(now["theta"].shape), matrices.split_noise(now, z.reshape(-1, z.shape[-1]))
        for v in [*matrices.variables[1:], matrices.variables[0]]:
            self._move(v, now, g, lr, tau, noise.get(v.name), extra)
        return s

    def noise_ratio(self, s: Any, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) variance that batch noise adds to the vectors of a coordinate over the variance injected there.

        Where D is a matrix, the diagonal of D⁻¹ M V M' lr / (2 tau). NaN where no noise is injected into vectors.
        """
        now = self._values(s)
        share = self._matrices.batch_share(now, grad_var.expand_as(s.theta).reshape(now["theta"].shape))
        return lr / (2 * tau) * share.view(s.theta.shape)

    def kinetic_tau(self, s: Any, lr: Scalar) -> Tensor:
        """(...,) mean of r ∂H/∂r over the vectors other than θ, whose expectation is tau as lr -> 0; NaN without."""
        if not self.vectors:
            return super().kinetic_tau(s, lr)
        now = self._values(s)
        slopes = self._slopes_of_H(now)
        each = torch.stack([(now[name] * slopes[name]).mean(-1) for name in self.vectors])
        return each.mean(0).view(s.theta.shape[:-1])

    def describe_noise(self, s: Any, lr: Scalar, tau: Scalar) -> str:
        now = self._values(s)
        each = [
            (v, (2 * mean(lr) * mean(tau) * mean(self._matrices.diagonal_of_D(v, now))) ** 0.5)
            for v in self._matrices.noisy
        ]
        stds = ", ".join(f"std {std:.3g} in {v.name}" for v, std in each)
        unseen = "; T_eff below does not know what scalars absorb of batch noise" if self.scalars else ""
        return f"injected noise, per step and coordinate: {stds}{unseen}"

    def _move(
        self, v: StateVariable, now: State, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor | None,
        extra: dict[str, Tensor] | None,
    ) -> None:  # fmt: skip
        """Move one variable in place. All that depends on it is computed before it moves."""
        x = _columns(now[v.name])
        slopes = self._slopes_of_H(now) | {"theta": g}
        moves, corrections, through, diffusion = [], [], [], 0.0
        for block in self._matrices.rows[v.name]:
            h = slopes[block.column.name]
            b, gamma = block.at_with_divergence(now)
            moves.append((-lr, times(b, h)) if is_matrix(b) else (-lr * b, h))
            if gamma is not None:
                corrections.append((lr * tau, gamma))
            if block.column.name == "theta":
                through.append(b)
            if block.diagonal and block.in_D:
                diffusion = b
        from_batches = self._subtracted(through, lr, g, extra)
        for c, y in [*moves, *corrections]:
            add_(x, c, y)
        if z is None:
            return
        if self._matrices.joint:
            inject_(x, 2 * lr * tau, z)  # z has its root of D already
        elif is_matrix(diffusion):
            inject_(x, 2 * lr * tau, times(root_of(diffusion, "D"), z))
        else:
            inject_(x, 2 * lr * tau * diffusion, z, from_batches)

    def _slopes_of_H(self, now: State) -> dict[str, Tensor]:
        """The gradient of H (C, n) by the name of each variable other than θ."""
        d = now["theta"].shape[-1]
        others = {v.name: now[v.name] for v in self._matrices.variables[1:]}
        if self.H is None or not others:
            return {name: x if name in self.vectors else d * _columns(x) for name, x in others.items()}
        energy = self.H
        slopes = vmap(grad(lambda one: energy(Variables(one))))(others)
        return {name: _columns(slope) for name, slope in slopes.items()}

    def _subtracted(
        self, through: list[Value], lr: Scalar, like: Tensor, extra: dict[str, Tensor] | None
    ) -> Tensor | None:
        """(C, d) or () variance of lr M g that batches bring, where it is subtracted from the noise of a variable.

        through: the blocks whose sum is M, the block of D + Q between the variable and θ.
        """
        if self.grad_var is None or not through:
            return None
        if any(is_matrix(b) for b in through):
            raise ConfigError("grad_var needs batch noise to pass through diagonals of D and Q: leave grad_var None")
        variance = self.from_batches(lr, like, extra)
        return None if variance is None else variance * sum(through) ** 2

    def _values(self, s: Any) -> State:
        """Views of the variables of a state: vectors as (C, d), scalars as (C,)."""
        d = s.theta.shape[-1]
        return {v.name: getattr(s, v.name).view((-1, d) if v.vector else -1) for v in self._matrices.variables}


def _columns(x: Tensor) -> Tensor:
    """(C, d) of a vector as it is, and (C, 1) of a scalar (C,)."""
    return x if x.ndim == 2 else x.unsqueeze(-1)
