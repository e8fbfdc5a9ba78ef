"""A line through some points with unknown noise, under a uniform prior."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from literature.targets.base import DataTarget, double, freeze
from literature.targets.normal_inverse_gamma import NormalInverseGamma
from literature.targets.regression import least_squares, mean_squares


@dataclass(frozen=True, eq=False)
class ToyRegression(DataTarget):
    """y_i ~ N(b0 + b1 x_i, s²) with a uniform prior on (b0, b1, s), s > 0, as a law of (b0, b1, r), s = |r|.

        U = n log s + Σ_i (y_i - b0 - b1 x_i)² / (2 s²) + n/2 log 2π

    The law is symmetric in r, as in the Lightning post. The prior is improper; the posterior is proper for n > 3.
    U is -log p(y | b, s).
    """

    x: Any  # (n,)
    y: Any  # (n,)
    dim: int = 3
    X: Any = field(init=False, repr=False)  # (n, 2) an intercept and x
    gram: Any = field(init=False, repr=False)  # (2, 2) X'X
    fit: Any = field(init=False, repr=False)  # (2,) least squares
    rss: Any = field(init=False, repr=False)  # () |y - X fit|²

    def __post_init__(self) -> None:
        x, y = double(self.x), double(self.y)
        X = torch.stack([torch.ones_like(x), x], -1)
        gram, fit, rss = least_squares(X, y)
        freeze(self, x=x, y=y, X=X, gram=gram, fit=fit, rss=rss)

    def loss_and_grad(self, x: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        s = x[..., 2].abs()
        squares, pull = mean_squares(self, x[..., :2], index)
        ratio = squares / s.square()
        loss = s.log() + 0.5 * ratio + 0.5 * math.log(2 * math.pi)
        grad_r = (1 - ratio) / s * x[..., 2].sign()
        return loss, torch.cat([pull / s.square()[..., None], grad_r[..., None]], -1)

    def posterior(self) -> NormalInverseGamma:
        """The law of (b, s²): N(fit, s² (X'X)⁻¹) and IG((n - 3) / 2, rss / 2)."""
        shape, rate = 0.5 * (self.num_data - 3), 0.5 * self.rss.item()
        return NormalInverseGamma(self.fit, torch.linalg.inv(self.gram), shape, rate)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        draws = self.posterior().sample(n, generator)
        draws[:, 2] = (draws[:, 2] / 2).exp() * (torch.randint(2, (n,), generator=generator) * 2 - 1)
        return draws
