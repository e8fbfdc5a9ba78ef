"""Linear regression with known noise, whose posterior is normal at any temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from literature.targets import GaussianLaw
from literature.targets.base import factor, freeze
from literature.targets.regression import Regression, conjugate, least_squares, mean_squares
from torch import Tensor


@dataclass(frozen=True, eq=False)
class KnownNoiseRegression(Regression):
    """Linear regression with known noise: y_i | b ~ N(x_i' b, s²), b ~ N(m, V), as a law of x = b on R^p.

    U(x) = -log p(y, b) with all constants. The posterior at T is N(m_n, T V_n), V_n⁻¹ = V⁻¹ + X'X / s².
    X (n, p), y (n,). noise: s > 0. prior_mean: m. prior_covariance: V, a number (times the identity) or (p, p).
    """

    X: Any  # (n, p)
    y: Any  # (n,)
    noise: float
    prior_mean: Any = 0.0  # (p,)
    prior_covariance: Any = 1.0  # (p, p)
    _precision: Any = field(init=False, repr=False)  # (p, p) V⁻¹
    gram: Any = field(init=False, repr=False)  # (p, p) X'X
    fit: Any = field(init=False, repr=False)  # (p,) least squares
    rss: Any = field(init=False, repr=False)  # () |y - X fit|²
    _constant: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        X, y, m, V = conjugate(self.X, self.y, self.prior_mean, self.prior_covariance)
        root = factor("prior_covariance", V)
        gram, fit, rss = least_squares(X, y)
        constant = 0.5 * sum(X.shape) * math.log(2 * math.pi) + len(y) * math.log(self.noise)
        constant += root.diagonal().log().sum().item()
        freeze(self, X=X, y=y, prior_mean=m, prior_covariance=V, _precision=torch.cholesky_inverse(root))
        freeze(self, gram=gram, fit=fit, rss=rss, _constant=constant)

    def loss_and_grad(self, x: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        squares, pull = mean_squares(self, x, index)
        r = x - self.prior_mean.to(x)
        scaled = r @ self._precision.to(x)
        loss = 0.5 * (squares / self.noise**2 + torch.linalg.vecdot(r, scaled) / self.num_data)
        return loss + self._constant / self.num_data, pull / self.noise**2 + scaled / self.num_data

    def posterior(self) -> GaussianLaw:
        root = torch.linalg.cholesky(self._precision + self.gram / self.noise**2)
        pull = self._precision @ self.prior_mean + self.gram @ self.fit / self.noise**2
        return GaussianLaw(torch.cholesky_solve(pull[:, None], root).squeeze(1), torch.cholesky_inverse(root))

    def mean(self) -> Tensor:
        return self.posterior().mean()

    def covariance(self, temperature: float = 1.0) -> Tensor:
        return self.posterior().covariance(temperature)

    def sample(self, n: int, generator: torch.Generator | None = None, temperature: float = 1.0) -> Tensor:
        return self.posterior().sample(n, generator, temperature)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.posterior().log_prob(x)

    def log_evidence(self) -> float:
        """log p(y) = log p(y, b) - log p(b | y), at any b."""
        posterior = self.posterior()
        return -(self.energy(posterior.mean()) + posterior.log_prob(posterior.mean())).item()
