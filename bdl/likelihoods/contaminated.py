"""The contaminated normal law: a small share of the items has wider errors (Tukey 1960)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

WIDER = 5.0  # the standard deviation of an outlier, in that of the others


class ContaminatedNormal(Distribution):
    """(1 - share) N(mean, std²) + share N(mean, (WIDER std)²), with the batch shape of mean and std.

    std: of the items that are no outliers; `stddev` is that of the whole.
    """

    def __init__(self, mean: Tensor, std: Tensor, share: float):
        self.location, self.std, self.share = mean, std, share
        super().__init__(mean.shape, validate_args=False)

    @property
    def shares(self) -> tuple[float, float]:
        """Of the items that are no outliers, and of those that are."""
        return 1 - self.share, self.share

    @property
    def laws(self) -> tuple[Normal, Normal]:
        """Of the items that are no outliers, and of those that are."""
        wide = Normal(self.location, WIDER * self.std, validate_args=False)
        return Normal(self.location, self.std, validate_args=False), wide

    @property
    def mean(self) -> Tensor:
        return self.location

    @property
    def variance(self) -> Tensor:
        return self.std.square() * (1 + self.share * (WIDER**2 - 1))

    def log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.location) / self.std
        return -loss_of_squares(z.square(), self.share) - self.std.log() - 0.5 * math.log(2 * math.pi)

    def cdf(self, value: Tensor) -> Tensor:
        most, outliers = (law.cdf(value) for law in self.laws)
        return self.shares[0] * most + self.shares[1] * outliers

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        with torch.no_grad():
            chosen = torch.rand(shape, dtype=self.std.dtype, device=self.std.device) < self.share
            z = torch.randn(shape, dtype=self.std.dtype, device=self.std.device)
            return self.location + self.std * torch.where(chosen, WIDER * z, z)


def loss_of_squares(squares: Tensor, share: float) -> Tensor:
    """-log of the density times std sqrt(2 pi), for squares of z = (y - mean) / std, in nats.

    It is that of the outliers' law, less log(1 + 1 / odds); so large squares do not cancel.
    """
    odds = _log_odds(squares, share)
    return squares * (0.5 / WIDER**2) - math.log(share / WIDER) - torch.nn.functional.softplus(-odds)


def precision_of(squares: Tensor, share: float) -> Tensor:
    """By how much an outlier pulls less: the expected 1 / scale² of an item, for squares of z; 1 down to 1 / WIDER²."""
    return 1 - (1 - 1 / WIDER**2) * _log_odds(squares, share).sigmoid_()


def _log_odds(squares: Tensor, share: float) -> Tensor:
    """Of being an outlier."""
    return squares * (0.5 - 0.5 / WIDER**2) + math.log(share / (WIDER * (1 - share)))
