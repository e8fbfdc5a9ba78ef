"""Dynamics: discretised SDEs as functions `(state, g, lr, tau, z) -> state` on flat arrays `(..., d)`.

Leading axes are chains. `g` is the gradient of U/N, `lr` a step in SGD's units, `tau = T/N`, `z` standard normal, all
as in the module docstring of `bdl.samplers`. `lr` and `tau` are floats or `(C, 1)` tensors. A dynamics owns its state
and may overwrite state, g and z in place; it never draws random numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from bdl.errors import ConfigError

Scalar = float | Tensor  # a float, or a (C, 1) tensor with one value per chain


@dataclass
class Position:
    """State of a first-order dynamics."""

    theta: Tensor  # (..., d)


@dataclass
class Kinetic:
    """State of a second-order dynamics. What unit `m` has is said by the dynamics."""

    theta: Tensor  # (..., d)
    m: Tensor  # (..., d)


@runtime_checkable
class Dynamics(Protocol):
    """What the shell asks of a dynamics.

    It may also have `noisy = False` (an optimiser: tau and z are ignored), `friction` (1 where absent),
    `noise_ratio(grad_var, lr, tau)` where lr Var(g) / (2 friction tau) is not right, and `kinetic_tau(s, lr)`.
    """

    def init(self, theta: Tensor) -> Any: ...

    def step(self, s: Any, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Any: ...


def add_(x: Tensor, c: Scalar, y: Tensor) -> Tensor:
    """x += c y in place, in one kernel for a float c."""
    return x.addcmul_(y, c) if isinstance(c, Tensor) else x.add_(y, alpha=c)


def root(c: Scalar) -> Scalar:
    return c.sqrt() if isinstance(c, Tensor) else math.sqrt(c)


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

        θ <- θ - lr P g + sqrt(2 lr tau P) z

    P = a fixed symmetric positive definite preconditioner, the identity unless given: a vector `(d,)` of positive
    numbers (diagonal) or a matrix `(d, d)`. A constant P leaves the law unchanged. At tau = 0 this is plain SGD.
    D = P, Q = 0 in the complete recipe (Ma et al. 2015). Stationary law as lr -> 0: exp(-U/T).

    Raises ConfigError for a preconditioner that is not positive definite or does not have d rows.
    """

    preconditioner: Any = None  # (d,) or (d, d), tensor or lists
    _root: Any = field(init=False, repr=False, default=None)  # R with R R' = P

    def __post_init__(self) -> None:
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
        object.__setattr__(self, "preconditioner", p)
        object.__setattr__(self, "_root", factor)

    def __str__(self) -> str:
        return (
            "SGLD"
            if self.preconditioner is None
            else f"SGLD with a preconditioner of {tuple(self.preconditioner.shape)}"
        )

    def init(self, theta: Tensor) -> Position:
        p = self.preconditioner
        if p is not None and (p.shape[0] != theta.shape[-1] or p.device != theta.device or p.dtype != theta.dtype):
            raise ConfigError(
                f"preconditioner has {p.shape[0]} rows of {p.dtype} on {p.device}, "
                f"the parameters are {theta.shape[-1]} numbers of {theta.dtype} on {theta.device}: make them agree"
            )
        return Position(theta)

    def step(self, s: Position, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Position:
        if self.preconditioner is not None:
            g, z = self._apply(self.preconditioner, g), self._apply(self._root, z)
        add_(s.theta, -lr, g)
        add_(s.theta, root(2 * lr * tau), z)
        return s

    def noise_ratio(self, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) terms lr P_ii Var(g_i) / 2 tau, whose mean is the heating tr(∇²U Cov θ)/d of the law, over T."""
        p = self.preconditioner
        if p is not None:
            grad_var = grad_var * (p if p.ndim == 1 else p.diagonal())
        return lr * grad_var / (2 * tau)

    @staticmethod
    def _apply(p: Tensor, x: Tensor) -> Tensor:
        return x.mul_(p) if p.ndim == 1 else x @ p.to(x).T


@dataclass(frozen=True)
class SGHMC:
    """Stochastic gradient HMC in momentum form (Chen et al. 2014, eq. 15, with lr = N eta).

        m <- (1 - a) m - lr g + sqrt(2 a lr tau) z
        θ <- θ + m

    a = friction. At tau = 0 and constant lr this is SGD with momentum 1 - a; at a = 1 it is SGLD. `m` is a
    displacement: with velocity v = m / sqrt(lr), D = diag(0, a / sqrt(lr)) and Q = [[0, -1], [1, 0]] in the complete
    recipe (Ma et al. 2015). Stationary law as lr -> 0: exp(-U/T) x N(m; 0, 2 lr tau / (2 - a)).
    """

    friction: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.friction <= 1:
            raise ConfigError(
                f"friction must be in (0, 1], got {self.friction} (friction = 1 - momentum; 0.1 is usual)"
            )

    def init(self, theta: Tensor) -> Kinetic:
        return Kinetic(theta, torch.zeros_like(theta))

    def step(self, s: Kinetic, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Kinetic:
        a = self.friction
        add_(s.m.mul_(1 - a), -lr, g)
        add_(s.m, root(2 * a * lr * tau), z)
        s.theta.add_(s.m)
        return s

    def kinetic_tau(self, s: Kinetic, lr: Scalar) -> Tensor:
        """(...,) tau that the momenta show: |m|² (2 - a) / (2 lr d), whose expectation is tau as lr -> 0."""
        return s.m.square().mean(-1, keepdim=True).mul(1 - self.friction / 2).div(lr).squeeze(-1)
