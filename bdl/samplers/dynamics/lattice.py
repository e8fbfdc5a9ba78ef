"""SGLRW: Langevin dynamics of first order in steps of one size, whose signs carry the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bdl.samplers.dynamics.base import Dynamics, Position, Scalar, root


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

    def describe_noise(self, s: Position, lr: Scalar, tau: Scalar) -> str:
        return super().describe_noise(s, lr, tau).replace("std", "steps of ±")
