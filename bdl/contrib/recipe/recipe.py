"""Recipe: the dynamics of any D and Q, with its drift, its correction Γ and its noise (Ma, Chen & Fox 2015)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from bdl.contrib.recipe.blocks import StateVariable, Variables, in_rows
from bdl.contrib.recipe.checks import check_block, check_grid, check_subtraction, root_of
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

    Variables move one after the other, θ last, each by the newest values of those before it (symplectic Euler, where D
    and Q are constant). The law is right as lr -> 0, and the error of the step is of first order in lr. A momentum with
    friction C and Q of 1 is bdl's SGHMC with lr² and friction lr C: such a lr is the root of SGD's. At tau = 0 the
    drift is left. Γ costs a backward pass for each block that is a function, where this is a number, or elementwise,
    which is tested; else one forward pass for each of at most 1,024 coordinates.

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
        fields = [(v.name, Tensor) for v in variables]
        object.__setattr__(self, "_matrices", RecipeMatrices(variables, blocks))
        self._matrices.check_joint()
        object.__setattr__(self, "_state", make_dataclass("RecipeState", [*fields, ("steps", int)]))

    def __str__(self) -> str:
        names = ", ".join(v.name for v in self._matrices.variables)
        return f"Recipe({', '.join(b.label for b in self._matrices.blocks)}; state {names}){self.subtraction()}"

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
        for block in self._matrices.blocks:
            for constant in (block.given, block.mirror):
                if isinstance(constant, Tensor):
                    block.check_shape(constant, theta.shape[-1])
        vectors = [torch.zeros_like(theta) for _ in self.vectors]
        scalars = [theta.new_full(theta.shape[:-1], float(value)) for value in self.scalars.values()]
        return self._state(theta, *vectors, *scalars, steps=0)

    def step(
        self, s: Any, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, extra: dict[str, Tensor] | None = None
    ) -> Any:
        now = self._values(s)
        if s.steps % CHECK_EVERY == 0:
            for block in self._matrices.blocks:
                if not block.constant or callable(block.mirror):
                    check_block(block, now)
        s.steps += 1
        noise = self._matrices.split_noise(now, z)
        for v in [*self._matrices.variables[1:], self._matrices.variables[0]]:
            self._move(v, now, g, lr if v.vector else _column(lr), tau if v.vector else _column(tau), noise, extra)
        return s

    def noise_ratio(self, s: Any, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) variance that batch noise adds to the vectors of a coordinate over the variance injected there.

        Where D is a matrix, the diagonal of D⁻¹ M V M' lr / (2 tau). NaN where no noise is injected into vectors.
        """
        return lr / (2 * tau) * self._matrices.batch_share(self._values(s), grad_var)

    def kinetic_tau(self, s: Any, lr: Scalar) -> Tensor:
        """(...,) mean of r ∂H/∂r over the vectors other than θ, whose expectation is tau as lr -> 0; NaN without."""
        if not self.vectors:
            return super().kinetic_tau(s, lr)
        now = self._values(s)
        slopes = self._slopes_of_H(now)
        return torch.stack([(now[name] * slopes[name]).mean(-1) for name in self.vectors]).mean(0)

    def describe_noise(self, s: Any, lr: Scalar, tau: Scalar) -> str:
        now = self._values(s)
        each = [
            (v, (2 * mean(lr) * mean(tau) * mean(self._matrices.diagonal_of_D(v, now))) ** 0.5)
            for v in self._matrices.noisy
        ]
        stds = ", ".join(f"std {std:.3g} in {v.name}" for v, std in each)
        unseen = "; T_eff below does not know what scalars absorb of batch noise" if self.scalars else ""
        return f"injected noise, per step and coordinate: {stds}{unseen}"

    # ---- one variable of a step ----

    def _move(
        self, v: StateVariable, now: dict[str, Tensor], g: Tensor, lr: Scalar, tau: Scalar,
        noise: Mapping[str, Tensor], extra: dict[str, Tensor] | None,
    ) -> None:  # fmt: skip
        """Move one variable in place. All that depends on it is computed before it moves."""
        x, terms, gammas = now[v.name], [], []
        slopes = self._slopes_of_H(now) | {"theta": g}
        for block, transposed, other in self._matrices.rows[v.name]:
            b, gamma = block.at_with_divergence(now, transposed)
            sign = block.sign if transposed else 1
            terms.append((sign, block, b, transposed, other))
            gammas += [] if gamma is None else [(sign, gamma)]
        diffusion = next((b for _, block, b, _, _ in terms if block.diagonal and block.sign == 1), None)
        from_batches = self._subtracted(v, terms, lr, noise, extra)
        own_first = sorted(terms, key=lambda term: term[4] != v.name)  # the variable's own ∇H may be x, which moves
        for sign, block, b, transposed, other in own_first:
            if b.rank == 2 or block.row.vector != block.column.vector:
                add_(x, -sign * lr, block.times(b, slopes[other], transposed))
            else:
                add_(x, -sign * lr * b.value, slopes[other])
        for sign, gamma in gammas:
            add_(x, sign * lr * tau, gamma)
        if v.name in noise:
            z = noise[v.name]
            if self._matrices.joint or diffusion is None:  # z has its root of D already
                inject_(x, 2 * lr * tau, z)
            elif diffusion.rank == 2:
                inject_(x, 2 * lr * tau, (root_of(diffusion.value, "D") @ z.unsqueeze(-1)).squeeze(-1))
            else:
                inject_(x, 2 * lr * tau * diffusion.value, z, from_batches)

    def _slopes_of_H(self, now: dict[str, Tensor]) -> dict[str, Tensor]:
        """The gradient of H by the name of each variable other than θ."""
        d = now["theta"].shape[-1]
        others = {v.name: now[v.name] for v in self._matrices.variables[1:]}
        if self.H is None or not others:
            return {name: value if name in self.vectors else d * value for name, value in others.items()}
        energy = self.H
        slopes = vmap(grad(lambda one: energy(Variables(one))))(in_rows(others, now["theta"]))
        return {name: slopes[name].reshape(value.shape) for name, value in others.items()}

    def _subtracted(
        self, v: StateVariable, terms: list[Any], lr: Scalar, noise: Mapping[str, Tensor], extra: Any
    ) -> Tensor | None:
        """(..., d) or () variance of lr M g that batches bring, where it is subtracted from the noise of v."""
        through = [(sign, b) for sign, _, b, _, other in terms if other == "theta"]
        if self.grad_var is None or not through:
            return None
        if any(b.rank == 2 for _, b in through):
            raise ConfigError("grad_var needs batch noise to pass through diagonals of D and Q: leave grad_var None")
        m = sum(sign * b.value for sign, b in through)
        variance = self.from_batches(lr, noise[v.name], extra)
        return None if variance is None else variance * m**2

    def _values(self, s: Any) -> dict[str, Tensor]:
        return {v.name: getattr(s, v.name) for v in self._matrices.variables}


def _column(value: Scalar) -> Scalar:
    """(C, 1) -> (C,), for scalars; floats stay."""
    return value.squeeze(-1) if isinstance(value, Tensor) and value.ndim else value
