"""SGNHT: Langevin dynamics of second order with a thermostat, which absorbs batch noise of unknown size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.dynamics.base import Scalar, Thermostatted, add_, root, varies
from bdl.samplers.dynamics.subtracting import SUBTRACTS_INDEPENDENT
from bdl.samplers.dynamics.underdamped import Underdamped


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
    the variances differ, ξ absorbs only their mean. The batch noise of shuffled epochs cancels in slow directions,
    and there ξ absorbs too much.
    """

    friction: float = 0.1
    rate: float | None = 1e-3  # r; None: lr tau
    caveat = SUBTRACTS_INDEPENDENT
    every_gradient = True  # its thermostat averages |m|² over all parameters

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"rate of the thermostat must be > 0, or null for lr T / N, got {self.rate}")

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

    def present_friction(self, s: Thermostatted) -> Tensor:
        return s.xi.unsqueeze(-1)
