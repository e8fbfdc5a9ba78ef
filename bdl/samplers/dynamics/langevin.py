"""Langevin dynamics of first and second order; SGD, their limit at T = 0; and SGLRW, whose steps have one size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.dynamics.base import Dynamics, Kinetic, Position, Scalar, add_, inject_, root
from bdl.samplers.dynamics.mass import KineticByMass, Mass, check_mass, learn_from_gradient
from bdl.samplers.dynamics.subtracting import Subtracting
from bdl.samplers.dynamics.underdamped import Underdamped


@dataclass(frozen=True)
class SGD(Dynamics):
    """Stochastic gradient descent with heavy-ball momentum, in torch.optim.SGD's form. An optimiser, not a sampler.

        m <- mu m + g
        θ <- θ - lr m

    mu = momentum. It ignores the temperature: tau and z do not enter. `m` is in units of the gradient of U/N, so that
    a change of lr acts at once on all of m, as in torch.
    """

    momentum: float = 0.9
    noisy = False
    per_coordinate = True
    linear = True

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be in [0, 1), got {self.momentum}")

    def init(self, theta: Tensor) -> Kinetic:
        return Kinetic(theta, torch.zeros_like(theta))

    def step(self, s: Kinetic, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Kinetic:
        s.m.mul_(self.momentum).add_(g)
        add_(s.theta, -lr, s.m)
        return s


@dataclass(frozen=True, eq=False)
class SGLD(Subtracting):
    """Stochastic gradient Langevin dynamics (Welling & Teh 2011, eq. 4, with lr = N eps / 2).

        θ <- θ - lr P g + sqrt(2 lr tau P - lr² P² V) z

    P is a fixed symmetric positive definite preconditioner: a vector `(d,)` of positive numbers (diagonal) or a matrix
    `(d, d)`, the identity unless given. A constant P leaves the law unchanged. V = `grad_var` is the variance that
    mini-batches give to g. It is subtracted from the injected variance, at most all of it (Ahn et al. 2012). V is a
    number, `(d,)`, or "estimated" along the chain; None subtracts nothing. At tau = 0 this is plain SGD.
    D = P, Q = 0 in the complete recipe (Ma et al. 2015). Stationary law as lr -> 0: exp(-U/T).

    Raises ConfigError for a preconditioner that is not positive definite or does not have d rows, and for `grad_var`
    with a dense one.
    """

    preconditioner: Any = None  # (d,) or (d, d), tensor or lists
    grad_var: Any = None  # Var(g): None, "estimated", a number, or (d,)
    _root: Any = field(init=False, repr=False, default=None)  # R with R R' = P

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preconditioner is None:
            return
        p = torch.as_tensor(self.preconditioner)
        p = p if p.is_floating_point() else p.float()
        if p.ndim == 2 and p.shape[0] == p.shape[1] and torch.allclose(p, p.T):
            factor, info = torch.linalg.cholesky_ex(p)
            positive = info.item() == 0
        else:
            factor, positive = p.sqrt(), p.ndim == 1 and bool((p > 0).all())
        if not positive:
            raise ConfigError(
                "preconditioner must be a vector of positive numbers or a symmetric positive definite matrix"
            )
        if p.ndim == 2 and self.grad_var is not None:
            raise ConfigError("grad_var needs a diagonal preconditioner (d,), got a matrix: leave one of the two out")
        object.__setattr__(self, "preconditioner", p)
        object.__setattr__(self, "_root", factor)

    def __str__(self) -> str:
        p = self.preconditioner
        return f"SGLD{'' if p is None else f' with a preconditioner of shape {tuple(p.shape)}'}{self.subtraction()}"

    @property
    def per_coordinate(self) -> bool:
        return self.preconditioner is None or self.preconditioner.ndim == 1

    @property
    def tunable(self) -> frozenset[str]:
        return frozenset(["lr"] if self.preconditioner is None else [])

    @property
    def linear(self) -> bool:
        return self.preconditioner is None and self.grad_var is None

    def init(self, theta: Tensor) -> Position:
        p = self.preconditioner
        if p is not None and (p.shape[0] != theta.shape[-1] or p.device != theta.device or p.dtype != theta.dtype):
            raise ConfigError(
                f"preconditioner has {p.shape[0]} rows of {p.dtype} on {p.device}, "
                f"the parameters are {theta.shape[-1]} numbers of {theta.dtype} on {theta.device}: make them agree"
            )
        return Position(theta)

    def step(
        self, s: Position, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, extra: dict[str, Tensor] | None = None
    ) -> Position:
        from_batches = self.from_batches(lr, z, extra)  # (..., d) or (), variance of lr g
        if self.preconditioner is not None:
            g, z = self._apply(self.preconditioner, g), self._apply(self._root, z)
            if from_batches is not None:  # z has its root of P already, so one factor P is left
                from_batches = from_batches * self.preconditioner
        add_(s.theta, -lr, g)
        inject_(s.theta, 2 * lr * tau, z, from_batches)
        return s

    def noise_ratio(self, s: Position, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) lr P_ii Var(g_i) / (2 tau); the mean is the relative excess of tr(∇²U Cov θ)/d over T."""
        p = self.preconditioner
        if p is not None:
            grad_var = grad_var * (p if p.ndim == 1 else p.diagonal())
        return lr * grad_var / (2 * tau)

    def describe_noise(self, s: Position, lr: Scalar, tau: Scalar) -> str:
        plain = super().describe_noise(s, lr, tau)
        return plain if self.preconditioner is None else f"{plain}, times the root of the preconditioner"

    @staticmethod
    def _apply(p: Tensor, x: Tensor) -> Tensor:
        return x.mul_(p) if p.ndim == 1 else x @ p.to(x).T


@dataclass(frozen=True, eq=False)
class SGHMC(Underdamped, Subtracting):
    """Stochastic gradient HMC in momentum form (Chen et al. 2014, eq. 15, with lr = N eta).

        m <- (1 - a) m - lr P g + sqrt(2 (a - b) lr tau P) z,    b = lr P V / (2 tau)
        θ <- θ + m

    a = friction. V = `grad_var` is the variance that mini-batches give to g, and b, their β^, the share of the injected
    noise that it replaces, at most a. V is a number, `(d,)`, or "estimated" along the chain; None subtracts nothing.
    P is the inverse of the masses: 1 under mass="unit". Under mass="diagonal" each chain finds P in its first
    `mass_steps` steps, in which no sample may be kept: 1/P is in proportion to E g² + 0.01 mean(E g²), with the mean 1.
    Then P is fixed, and the law is that of unit masses.
    At P = 1, tau = 0 and constant lr this is SGD with momentum 1 - a; at a = 1 it is SGLD. `m` is a displacement. With
    velocity v = m / sqrt(lr), D = diag(0, a / sqrt(lr)), Q = [[0, -1], [1, 0]] in the complete recipe (Ma et al. 2015).
    Stationary law as lr -> 0: exp(-U/T) x N(m; 0, 2 lr tau P / (2 - a)).
    """

    friction: float = 0.1
    grad_var: Any = None  # Var(g): None, "estimated", a number, or (d,)
    mass: Mass = "unit"
    mass_steps: int = 1000  # read under mass="diagonal" only

    def __post_init__(self) -> None:
        Underdamped.__post_init__(self)
        check_mass(self.mass, self.mass_steps, "mass_steps", self.friction)
        Subtracting.__post_init__(self)

    def __str__(self) -> str:
        mass = "" if self.mass == "unit" else ", mass=diagonal"
        return f"SGHMC(friction={self.friction}{mass}){self.subtraction()}"

    @property
    def adapt_steps(self) -> int | None:
        return self.mass_steps if self.mass == "diagonal" else None

    @property
    def tunable(self) -> frozenset[str]:
        return frozenset(["lr", "friction"] if self.mass == "unit" else [])

    @property
    def linear(self) -> bool:
        return self.mass == "unit" and self.grad_var is None

    def init(self, theta: Tensor) -> Kinetic | KineticByMass:
        zero = torch.zeros_like(theta)
        if self.mass == "unit":
            return Kinetic(theta, zero)
        return KineticByMass(theta, zero, torch.ones_like(theta), zero.clone())

    def inverse_mass(self, s: Any) -> Tensor | None:
        return s.inverse_mass if isinstance(s, KineticByMass) else None

    def step(
        self, s: Any, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, extra: dict[str, Tensor] | None = None
    ) -> Kinetic | KineticByMass:
        a, from_batches = self.friction, self.from_batches(lr, z, extra)
        if isinstance(s, KineticByMass):
            s.steps += 1
            if (factor := learn_from_gradient(s, g, self.mass_steps, a)) is not None:
                s.m.mul_(factor.sqrt_())  # Var m is proportional to P
            g, z = g.mul_(s.inverse_mass), z.mul_(s.inverse_mass.sqrt())
            from_batches = None if from_batches is None else from_batches * s.inverse_mass  # z has the other root
        add_(s.m.mul_(1 - a), -lr, g)
        inject_(s.m, 2 * a * lr * tau, z, from_batches)
        s.theta.add_(s.m)
        return s

    def noise_ratio(self, s: Any, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        P = self.inverse_mass(s)
        return super().noise_ratio(s, grad_var if P is None else grad_var * P, lr, tau)


@dataclass(frozen=True)
class BAOAB(Underdamped):
    """Langevin dynamics by the splitting BAOAB (Leimkuhler & Matthews 2013), one gradient a step.

        m <- m - (2 / (2 - a)) lr g
        θ <- θ + m / 2
        m <- (1 - a) m + sqrt(2 a lr tau) z
        θ <- θ + m / 2

    Two half kicks B meet between steps and are one whole kick here; θ is that of the scheme. a = friction, with
    e^(-γh) = 1 - a and h² = 2 lr / (N (2 - a)). On a Gaussian θ has the right covariance at any lr; elsewhere its error
    is of second order in lr, where that of SGHMC is of first order. At the same lr and friction it moves as far as
    SGHMC. `m` is a displacement. D and Q are those of SGHMC. Stationary law: exp(-U/T) for θ; N(0, 2 lr tau / (2 - a))
    for m between the two halves of the kick.
    """

    friction: float = 0.1
    linear = True

    def step(self, s: Kinetic, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Kinetic:
        a = self.friction
        add_(s.m, -2 / (2 - a) * lr, g)
        s.theta.add_(s.m, alpha=0.5)
        add_(s.m.mul_(1 - a), root(2 * a * lr * tau), z)
        s.theta.add_(s.m, alpha=0.5)
        return s


@dataclass(frozen=True)
class SGLRW(Dynamics):
    """Stochastic gradient lattice random walk, binary form (Mensch et al. 2026; Duffield et al. 2025).

        θ_i <- θ_i + δ with probability p_i, else θ_i - δ,    δ = sqrt(2 lr tau),
        p_i = (1 - lr g_i / δ) / 2, clipped to [0, 1]

    Where nothing is clipped, a step has the mean -lr g and the second moment 2 lr tau, whatever the gradient. The
    second moment of SGLD's step is 2 lr tau + lr² g², which is why batch noise heats it. Here batch noise enters only
    the products of different coordinates, lr² E[g_i g_j]. Two consequences hold at any lr: on a Gaussian whose
    coordinates are independent the variance is right, and batch noise that is independent between coordinates leaves
    it so. Elsewhere the error of the law is of first order in lr.

    A coordinate with |g_i| > sqrt(2 tau / lr) is clipped: it takes one step of δ downhill, so that no noise, however
    heavy its tails, makes the chain diverge; but a law whose gradients are clipped is too wide. From a start far away θ
    moves by δ a step at most: optimise first. At tau = 0 the lattice has no spacing, and the step is its mean, that of
    SGD. D = 1, Q = 0.
    """

    per_coordinate = True

    def init(self, theta: Tensor) -> Position:
        return Position(theta)

    def step(self, s: Position, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Position:
        spacing, mean = root(2 * lr * tau), g.mul_(-lr)  # δ, float or (C, 1); (..., d) mean of the step
        # 2p - 1 = mean / δ, and erf(z / sqrt 2) is uniform on (-1, 1) for a normal z
        lattice = spacing * (mean - spacing * torch.erf(z.mul_(math.sqrt(0.5)))).sign_()
        if isinstance(tau, Tensor):
            s.theta.add_(torch.where(tau > 0, lattice, mean))
        else:
            s.theta.add_(lattice if tau > 0 else mean)
        return s

    def noise_ratio(self, s: Position, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) zeros: batch noise changes which way a step goes, not its variance."""
        return torch.zeros_like(grad_var)

    def heat_along(self, c: Scalar, mean: Scalar, lr: Scalar, tau: Scalar) -> Any:
        """What coordinates have in common heats: c less the mean of the coordinates."""
        return super().heat_along(c, mean, lr, tau) - lr * mean / (2 * tau)

    def describe_noise(self, s: Position, lr: Scalar, tau: Scalar) -> str:
        return super().describe_noise(s, lr, tau).replace("std", "steps of ±")
