"""Langevin dynamics of first and second order, with and without a thermostat, and SGD, their limit at T = 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.batch_noise import INDEPENDENT, batch_variance, caveat, known_variance, left, needs_variance, said
from bdl.samplers.dynamics.base import Kinetic, Position, Scalar, Thermostatted, add_, check_friction, inject_, root


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with heavy-ball momentum, in torch.optim.SGD's form. An optimiser, not a sampler.

        m <- mu m + g
        θ <- θ - lr m

    mu = momentum. Deaf to temperature: tau and z are ignored. `m` is in units of the gradient of U/N, so a change of lr
    acts at once on all of m, as in torch.
    """

    momentum: float = 0.9
    noisy: ClassVar[bool] = False

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
class SGLD:
    """Stochastic gradient Langevin dynamics (Welling & Teh 2011, eq. 4, with lr = N eps / 2).

        θ <- θ - lr P g + sqrt(2 lr tau P - lr² P² V) z

    P = a fixed symmetric positive definite preconditioner, the identity unless given: a vector `(d,)` of positive
    numbers (diagonal) or a matrix `(d, d)`. A constant P leaves the law unchanged. V = `grad_var`, the variance of g
    that mini-batches bring and that is taken off the noise (Ahn et al. 2012): none unless given, a number, `(d,)`, or
    "estimated" along the chain; no more is taken than there is. At tau = 0 this is plain SGD.
    D = P, Q = 0 in the complete recipe (Ma et al. 2015). Stationary law as lr -> 0: exp(-U/T).

    Raises ConfigError for a preconditioner that is not positive definite or does not have d rows, and for `grad_var`
    with a dense one.
    """

    preconditioner: Any = None  # (d,) or (d, d), tensor or lists
    grad_var: Any = None  # Var(g): None, "estimated", a number, or (d,)
    _root: Any = field(init=False, repr=False, default=None)  # R with R R' = P

    def __post_init__(self) -> None:
        object.__setattr__(self, "grad_var", known_variance(self.grad_var))
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
        if self.preconditioner is None:
            return "SGLD" if self.grad_var is None else f"SGLD less {said(self.grad_var)} batch noise"
        less = "" if self.grad_var is None else f", less {said(self.grad_var)} batch noise"
        return f"SGLD with a preconditioner {tuple(self.preconditioner.shape)} {said(self.preconditioner)}{less}"

    @property
    def needs(self) -> frozenset[str]:
        return needs_variance(self.grad_var)

    @property
    def caveat(self) -> str | None:
        return caveat(self.grad_var)

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
        brought = batch_variance(self.grad_var, lr, z, extra)  # per coordinate, of lr g
        if self.preconditioner is not None:
            g, z = self._apply(self.preconditioner, g), self._apply(self._root, z)
            brought = None if brought is None else brought * self.preconditioner  # of z before its root of P
        add_(s.theta, -lr, g)
        inject_(s.theta, 2 * lr * tau, z, brought)
        return s

    def noise_ratio(self, s: Position, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) terms lr P_ii Var(g_i) / 2 tau, whose mean is the heating tr(∇²U Cov θ)/d of the law, over T."""
        p = self.preconditioner
        if p is not None:
            grad_var = grad_var * (p if p.ndim == 1 else p.diagonal())
        return lr * grad_var / (2 * tau)

    def heating(self, s: Position, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        ratio = self.noise_ratio(s, grad_var, lr, tau)
        return left(ratio, self.grad_var, lambda v: self.noise_ratio(s, v, lr, tau))

    @staticmethod
    def _apply(p: Tensor, x: Tensor) -> Tensor:
        return x.mul_(p) if p.ndim == 1 else x @ p.to(x).T


@dataclass(frozen=True, eq=False)
class SGHMC:
    """Stochastic gradient HMC in momentum form (Chen et al. 2014, eq. 15, with lr = N eta).

        m <- (1 - a) m - lr g + sqrt(2 (a - b) lr tau) z,    b = lr V / (2 tau)
        θ <- θ + m

    a = friction. V = `grad_var`, the variance of g that mini-batches bring and that is taken off the noise: none unless
    given, a number, `(d,)`, or "estimated" along the chain; b is their β^, and no more is taken than a. At tau = 0 and
    constant lr this is SGD with momentum 1 - a; at a = 1 it is SGLD. `m` is a displacement: with velocity
    v = m / sqrt(lr), D = diag(0, a / sqrt(lr)) and Q = [[0, -1], [1, 0]] in the complete recipe (Ma et al. 2015).
    Stationary law as lr -> 0: exp(-U/T) x N(m; 0, 2 lr tau / (2 - a)).
    """

    friction: float = 0.1
    grad_var: Any = None  # Var(g): None, "estimated", a number, or (d,)

    def __post_init__(self) -> None:
        check_friction(self.friction)
        object.__setattr__(self, "grad_var", known_variance(self.grad_var))

    def __str__(self) -> str:
        less = "" if self.grad_var is None else f", less {said(self.grad_var)} batch noise"
        return f"SGHMC(friction={self.friction}{less})"

    @property
    def needs(self) -> frozenset[str]:
        return needs_variance(self.grad_var)

    @property
    def caveat(self) -> str | None:
        return caveat(self.grad_var)

    def init(self, theta: Tensor) -> Kinetic:
        return Kinetic(theta, torch.zeros_like(theta))

    def step(
        self, s: Kinetic, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, extra: dict[str, Tensor] | None = None
    ) -> Kinetic:
        a = self.friction
        add_(s.m.mul_(1 - a), -lr, g)
        inject_(s.m, 2 * a * lr * tau, z, batch_variance(self.grad_var, lr, z, extra))
        s.theta.add_(s.m)
        return s

    def heating(self, s: Kinetic, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) terms whose mean is T_eff/T - 1: the noise ratio, less the part of it that is subtracted."""
        full = lr / (2 * self.friction * tau)
        return left(grad_var * full, self.grad_var, lambda v: v * full)

    def kinetic_tau(self, s: Kinetic, lr: Scalar) -> Tensor:
        return _kinetic_tau(s, lr, self.friction)


@dataclass(frozen=True)
class BAOAB:
    """Langevin dynamics by the splitting BAOAB (Leimkuhler & Matthews 2013), one gradient a step.

        m <- m - (2 / (2 - a)) lr g
        θ <- θ + m / 2
        m <- (1 - a) m + sqrt(2 a lr tau) z
        θ <- θ + m / 2

    The two half kicks B that meet between steps are one whole kick here, so θ is the scheme's own. a = friction, with
    e^(-γh) = 1 - a and h² = 2 lr / (N (2 - a)). On a Gaussian θ has the right covariance at any lr, and elsewhere an
    error of second order, where SGHMC's is of first. The same lr and friction move it as far as SGHMC. `m` is a
    displacement. D and Q as for SGHMC. Stationary law: exp(-U/T), and m, taken between the two halves of the kick,
    N(0, 2 lr tau / (2 - a)).
    """

    friction: float = 0.1

    def __post_init__(self) -> None:
        check_friction(self.friction)

    def init(self, theta: Tensor) -> Kinetic:
        return Kinetic(theta, torch.zeros_like(theta))

    def step(self, s: Kinetic, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Kinetic:
        a = self.friction
        add_(s.m, -2 / (2 - a) * lr, g)
        s.theta.add_(s.m, alpha=0.5)
        add_(s.m.mul_(1 - a), root(2 * a * lr * tau), z)
        s.theta.add_(s.m, alpha=0.5)
        return s

    def kinetic_tau(self, s: Kinetic, lr: Scalar) -> Tensor:
        return _kinetic_tau(s, lr, self.friction)


@dataclass(frozen=True)
class SGNHT:
    """Stochastic gradient Nosé-Hoover thermostat (Ding et al. 2014, eq. 7) in displacement form, one ξ per chain.

        m <- (1 - ξ) m - lr g + sqrt(2 a lr tau) z
        θ <- θ + m
        ξ <- ξ + r ((1 - ξ/2) |m|² / (lr tau d) - 1)

    a = friction, where ξ starts; r = `rate`, lr tau unless given, which is the paper's. Their factor of |m|² is 1; the
    Euler form needs 1 - ξ/2, or ξ settles at 1 - sqrt(1 - 2a) and the variance of θ is a/ξ. Batch noise of the same
    variance in every direction raises ξ to a (1 + noise_ratio) and leaves the law at T; of unequal variances it takes
    away the mean only, and of shuffled epochs too much from slow directions, where their noise cancels. ξ stands
    still at T = 0. A larger r (1e-3, say) lets ξ follow within some hundred steps, where lr T / N needs 1e5; its
    spread is sqrt(r/d). D = diag(0, a, 0) and Q couples m with ξ (Ma et al. 2015).
    """

    friction: float = 0.1
    rate: float | None = None  # None: lr tau
    caveat: ClassVar[str] = INDEPENDENT

    def __post_init__(self) -> None:
        check_friction(self.friction)
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"rate of the thermostat must be > 0, or null for lr T / N, got {self.rate}")

    def init(self, theta: Tensor) -> Thermostatted:
        return Thermostatted(theta, torch.zeros_like(theta), theta.new_full(theta.shape[:-1], self.friction))

    def step(self, s: Thermostatted, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Thermostatted:
        xi = s.xi.unsqueeze(-1)
        add_(s.m.mul_(1 - xi), -lr, g)
        add_(s.m, root(2 * self.friction * lr * tau), z)
        s.theta.add_(s.m)
        excess = (1 - xi / 2) * s.m.square().mean(-1, keepdim=True) - lr * tau  # of |m|²/d
        sampling = torch.as_tensor(tau > 0)  # one number stays on the CPU, from where no kernel has to wait for it
        heat = lr * torch.where(sampling, torch.as_tensor(tau), 1)  # lr tau, harmless at tau = 0
        xi.add_(sampling * excess * (1 if self.rate is None else self.rate / heat))
        return s

    def heating(self, s: Thermostatted, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) terms whose mean is T_eff/T - 1: what batches bring, over what the thermostat has risen to take."""
        injected = self.friction + lr * grad_var / (2 * tau)
        return injected / s.xi.unsqueeze(-1).clamp_min(1e-9) - 1

    def kinetic_tau(self, s: Thermostatted, lr: Scalar) -> Tensor:
        return _kinetic_tau(s, lr, s.xi.unsqueeze(-1))


def _kinetic_tau(s: Kinetic | Thermostatted, lr: Scalar, friction: Scalar) -> Tensor:
    """(...,) tau that the momenta show: |m|² (2 - a) / (2 lr d), whose expectation is tau as lr -> 0."""
    return s.m.square().mean(-1, keepdim=True).mul(1 - friction / 2).div(lr).squeeze(-1)
