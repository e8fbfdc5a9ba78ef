"""Distances of samples from a law, with standard errors over chains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

DIRECTIONS, LEVELS = 16, 400


@dataclass(frozen=True, eq=False)
class Slices:
    """Quantiles of a law of one or two dimensions along directions through the origin."""

    axes: Tensor  # (d, K)
    quantiles: Tensor  # (K, L)

    @classmethod
    def of(cls, draws: Tensor) -> Slices:
        """draws (m, d): exact draws of the law, many."""
        axes = _directions(draws.shape[1]).to(draws)
        return cls(axes, _quantiles((draws @ axes).T))

    def distance(self, samples: Tensor) -> Tensor:
        """(...) sliced Wasserstein-1 distance of samples (..., n, d) from the law (Bonneel et al. 2015).

        It is the mean over directions of the area between the two distribution functions.
        """
        return (_quantiles((samples @ self.axes).mT) - self.quantiles).abs().mean((-1, -2))


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """(...) half the sum of |p - q| over the last axis."""
    return (p - q).abs().sum(-1) / 2


def with_error(values: Tensor, digits: int = 3) -> str:
    """Mean of one value per chain, and its standard error."""
    if len(values) < 2:
        return f"{values.mean():.{digits}f}"
    return f"{values.mean():.{digits}f} ± {values.std() / math.sqrt(len(values)):.{digits}f}"


def _directions(d: int) -> Tensor:
    if d == 1:
        return torch.ones(1, 1)
    if d != 2:
        raise ValueError(f"directions are for 1 or 2 dimensions, got {d}")
    angles = torch.arange(DIRECTIONS, dtype=torch.float64) * math.pi / DIRECTIONS
    return torch.stack([angles.cos(), angles.sin()])


def _quantiles(x: Tensor) -> Tensor:
    """(..., n) -> (..., L) quantiles, linear between order statistics. torch.quantile takes only 16 million values."""
    ordered, last = x.sort(-1).values, x.shape[-1] - 1
    position = (torch.arange(LEVELS, dtype=x.dtype) + 0.5) / LEVELS * last
    low = position.long()
    return torch.lerp(ordered[..., low], ordered[..., (low + 1).clamp_max(last)], position - low)
