"""Dynamics of second order whose momentum is a displacement; and SGNHT, whose thermostat absorbs batch noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.dynamics.base import Dynamics, Kinetic, Scalar, Thermostatted, add_, root, varies
from bdl.samplers.dynamics.subtracting import MEAN_ONLY, SUBTRACTS_INDEPENDENT


class Underdamped(Dynamics):
    """A dynamics with a momentum `m`, a displacement, whose variance is 2 lr tau P / (2 - a); a = `friction`.

    P is the inverse of the masses, 1 unless a subclass has others. Raises ConfigError for a friction outside (0, 1].
    """

    friction: float
    travels = ("theta", "m")
    per_coordinate = True
    tunable = frozenset(["lr", "friction"])

    def __post_init__(self) -> None:
        a = self.friction
        if not 0 < a <= 1:
            raise ConfigError(f"friction must be in (0, 1], got {a} (friction = 1 - momentum; 0.1 is usual)")

    def init(self, theta: Tensor) -> Any:
        return Kinetic(theta, torch.zeros_like(theta))

    def inverse_mass(self, s: Any) -> Tensor | None:
        """(..., d) P; None for 1."""
        return None

    def present_friction(self, s: Any) -> Scalar:
        """a, or (..., 1) the friction of every chain where it adapts."""
        return self.friction

    def kinetic_tau(self, s: Any, lr: Scalar) -> Tensor:
        """(...,) |m|² (2 - a) / (2 lr P d), whose expectation is tau as lr -> 0."""
        P, a = self.inverse_mass(s), self.present_friction(s)
        square = (s.m if P is None else s.m / P.sqrt()).square()
        if varies(lr):
            return (square / lr).mean(-1, keepdim=True).mul(1 - a / 2).squeeze(-1)
        return square.mean(-1, keepdim=True).mul(1 - a / 2).div(lr).squeeze(-1)

    def after_swap(self, s: Any, order: Tensor, g: Tensor, lr: Scalar, temperature: Tensor) -> None:
        rescale_swapped_momentum(s.m, order, g, self.friction, lr, temperature, self.inverse_mass(s))


def rescale_swapped_momentum(
    m: Tensor, order: Tensor, g: Tensor, a: float, lr: Scalar, temperature: Tensor, inverse_mass: Tensor | None = None
) -> None:
    """Rescale swapped displacements m (C, d) in place: Var m is proportional to lr P T, P = `inverse_mass` (C, d) or 1.

    Chain c, which receives the momentum of chain o, scales it by sqrt(lr_c P_c T_c / (lr_o P_o T_o)). It does so in the
    middle of the coming kick -lr P g, where momentum and position are independent: half of the kick, lr P g / (2 - a),
    is taken off before and added back after.
    """
    half = g / (2 - a)
    lr = lr.to(temperature, non_blocking=True) if isinstance(lr, Tensor) else torch.full_like(temperature, lr)
    lr, temperature = lr.expand_as(temperature).unsqueeze(1), temperature.unsqueeze(1)
    lr = lr if inverse_mass is None else lr * inverse_mass
    scale = ((lr * temperature) / (lr * temperature)[order]).sqrt()
    m.sub_(half * lr[order].to(m)).mul_(scale.to(m)).add_(half * lr.to(m))


def in_common_units(square: Tensor, lr: Scalar, tau: Scalar) -> tuple[Tensor, Tensor, Tensor]:
    """m² (..., d), lr and tau (..., 1) for a thermostat of coordinates whose lr or tau differ.

    m_i² / (lr_i tau_i) has one mean in all coordinates. It is multiplied by the mean of lr tau, which stands for lr;
    tau becomes 1, or 0 where it was 0.
    """
    sampling = torch.as_tensor(tau > 0)
    heat = lr * torch.where(sampling, torch.as_tensor(tau), 1)  # (..., d)
    common = heat.mean(-1, keepdim=True)
    return square * (common / heat), common, (sampling[..., :1] if sampling.ndim else sampling).to(square)


@dataclass(frozen=True)
class SGNHT(Underdamped):
    """Stochastic gradient Nosé-Hoover thermostat (Ding et al. 2014, eq. 7) in displacement form, one ξ per chain.

        m <- (1 - ξ) m - lr g + sqrt(2 a lr tau) z
        θ <- θ + m
        ξ <- ξ + r ((1 - ξ/2) |m|² / (lr tau d) - 1)

    a = friction, where ξ starts. r = `rate`; None means lr tau, the rate of the paper. Its factor of |m|² is 1, but the
    Euler form needs 1 - ξ/2: without it ξ settles at 1 - sqrt(1 - 2a) and the variance of θ is a/ξ. ξ is constant at
    T = 0. A larger r lets ξ follow sooner: within some hundred steps at 1e-3, where r = lr T / N needs 1e5. The spread
    of ξ is sqrt(r/d). D = diag(0, a, 0), and Q couples m with ξ (Ma et al. 2015).

    Batch noise of the same variance in every direction raises ξ to a (1 + noise_ratio) and leaves the law at T. Where
    the variances differ, ξ absorbs only their mean: directions with more noise stay hot and the others become cold,
    while the mean temperature and that of the momenta are T. On a linear regression of condition 58 at noise_ratio 1
    the variances are 0.54 to 2.4 times the right ones (`experiment.py noise`); `CCHMC` removes noise by direction.
    The batch noise of shuffled epochs cancels in slow directions, and there ξ absorbs too much.
    """

    friction: float = 0.1
    rate: float | None = 1e-3  # r; None: lr tau
    caveat = f"{MEAN_ONLY}; it {SUBTRACTS_INDEPENDENT}"
    thermostat = True
    every_gradient = True  # the thermostat averages |m|² over all parameters

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"rate of the thermostat must be > 0, or null for lr T / N, got {self.rate}")

    @property
    def recordable(self) -> bool:
        return True

    def init(self, theta: Tensor) -> Thermostatted:
        return Thermostatted(theta, torch.zeros_like(theta), theta.new_full(theta.shape[:-1], self.friction))

    def step(self, s: Thermostatted, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Thermostatted:
        xi = s.xi.unsqueeze(-1)
        add_(s.m.mul_(1 - xi), -lr, g)
        add_(s.m, root(2 * self.friction * lr * tau), z)
        s.theta.add_(s.m)
        square = s.m.square()
        if varies(lr):
            square, lr, tau = in_common_units(square, lr, tau)
        excess = (1 - xi / 2) * square.mean(-1, keepdim=True) - lr * tau  # kinetic minus injected heat
        sampling = torch.as_tensor(tau > 0)  # a float tau stays on the CPU, so no kernel waits for it
        heat = lr * torch.where(sampling, torch.as_tensor(tau), 1)  # lr tau, harmless at tau = 0
        xi.add_(sampling * excess * (1 if self.rate is None else self.rate / heat))
        return s

    def heating(self, s: Thermostatted, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) terms whose mean is T_eff/T - 1: friction that injected and batch noise require, over ξ, less 1."""
        injected = self.friction + lr * grad_var / (2 * tau)
        return injected / s.xi.unsqueeze(-1).clamp_min(1e-9) - 1

    def heat_along(self, c: Scalar, mean: Scalar, lr: Scalar, tau: Scalar) -> Any:
        """The friction that the noise of the direction requires, over ξ, which is what the mean requires."""
        return super().heat_along(c, mean, lr, tau) / super().heat_along(mean, mean, lr, tau)

    def present_friction(self, s: Thermostatted) -> Tensor:
        return s.xi.unsqueeze(-1)
