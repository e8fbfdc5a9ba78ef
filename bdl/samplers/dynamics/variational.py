"""MeanField: Bayes by Backprop as a dynamics. Its θ after every step is a draw from the approximation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bdl.devices import widest
from bdl.errors import ConfigError, check_choice
from bdl.samplers.dynamics.base import Dynamics, Scalar

BETAS, EPS = (0.9, 0.999), 1e-8  # Adam's defaults (Kingma & Ba 2015)


@dataclass
class Approximation:
    """q(θ) = N(mu, softplus(rho)²) per coordinate, and one draw from it."""

    theta: Tensor  # (..., d) the draw
    mu: Tensor  # (..., d)
    rho: Tensor  # (..., d)
    mean: Tensor  # (2, ..., d) Adam's running mean of the gradients of mu and rho
    square: Tensor  # (2, ..., d) Adam's running mean of their squares
    count: int = 0

    @property
    def std(self) -> Tensor:
        return softplus(self.rho)


@dataclass(frozen=True)
class MeanField(Dynamics):
    """Bayes by Backprop (Blundell et al. 2015, section 3.2): fits q(θ) = N(mu, diag σ²), σ = log(1 + exp rho).

        θ = mu + σ z,    Δmu = g,    Δrho = (g ε - κ tau / σ) / (1 + exp(-rho)),    ε = (θ - mu) / σ

    These steps minimise E_q[U] - T H[q] by Adam with step size lr, not in SGD's units. At T = 1 the negative of that
    objective is the evidence lower bound. g is the gradient of U/N at the draw. It includes the prior by Monte
    Carlo, so that any prior is possible, the paper's scale mixture too. After each step θ is a fresh draw, and the kept
    states are draws from q. The law is q, not exp(-U/T). `init_std`: the initial σ.

    kl_weights: how the batches of an epoch share the KL term. "uniform" gives each 1/M; "geometric" gives the i-th
    batch 2^-i (section 3.4 of the paper). M = `batches`, and κ is M times the share.
    """

    init_std: float = 0.05
    kl_weights: Literal["uniform", "geometric"] = "uniform"
    batches: int | None = None

    caveat = "variational: an independent normal distribution per coordinate, not exp(-U/T)"
    variational = True
    tunable = frozenset()  # lr is Adam's

    def __post_init__(self) -> None:
        if not self.init_std > 0:
            raise ConfigError(f"init_std must be > 0, got {self.init_std}")
        check_choice("kl_weights", self.kl_weights, ("uniform", "geometric"))
        if self.kl_weights == "geometric" and (self.batches is None or self.batches < 1):
            raise ConfigError(
                f"geometric kl_weights need the number of batches of an epoch, got {self.batches}: set batches"
            )

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(["prior_gradient"] if self.kl_weights == "geometric" else [])

    def init(self, theta: Tensor) -> Approximation:
        rho = torch.full_like(theta, math.log(math.expm1(self.init_std)))
        moments = theta.new_zeros(2, *theta.shape)
        return Approximation(theta, theta.clone(), rho, moments, moments.clone())

    def step(
        self, s: Approximation, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor, extra: dict[str, Tensor] | None = None
    ) -> Approximation:
        std, kappa = s.std, self._share(s.count)
        if kappa != 1:
            g = g + (kappa - 1) * (extra or {})["prior_gradient"]
        slope = (g * (s.theta - s.mu) / std - kappa * tau / std) * s.rho.sigmoid()
        step = self._adam(s, torch.stack([g, slope]))
        s.mu.sub_(lr * step[0])
        s.rho.sub_(lr * step[1])
        s.theta.copy_(s.mu + s.std * z)
        return s

    def entropy(self, s: Approximation) -> Tensor:
        """(...,) H[q], nats; NaN before θ is a draw from q."""
        if s.count == 0:
            return s.std.new_full(s.std.shape[:-1], math.nan, dtype=widest(s.std.device))
        return (s.std.to(widest(s.std.device)).log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def noise_ratio(self, s: Approximation, grad_var: Tensor, lr: Scalar, tau: Scalar) -> Tensor:
        """(..., d) NaN: batch noise does not heat the draws."""
        return torch.full_like(grad_var, math.nan)

    def describe_noise(self, s: Approximation, lr: Scalar, tau: Scalar) -> str:
        return "injected noise: every state is a fresh draw from the approximation"

    def _share(self, step: int) -> float:
        """κ for the batch of this step: M times its share of the KL term."""
        if self.kl_weights == "uniform":
            return 1.0
        m: Any = self.batches
        return m * 0.5 ** (step % m + 1) / (1 - 0.5**m)

    def _adam(self, s: Approximation, gradient: Tensor) -> Tensor:
        s.count += 1
        s.mean.lerp_(gradient, 1 - BETAS[0])
        s.square.lerp_(gradient.square(), 1 - BETAS[1])
        mean, square = s.mean / (1 - BETAS[0] ** s.count), s.square / (1 - BETAS[1] ** s.count)
        return mean / (square.sqrt() + EPS)
