"""Mixtures of normal laws: their distribution function, fast, and CRPS in closed form or by quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from bdl.likelihoods.contaminated import ContaminatedNormal

PAIR = 8  # the time of a pair of networks, in that of a step of the quadrature for one network
FEW = 32  # networks whose pairs cost little, and are exact in double precision
NARROW = 1e-6  # by how much `_spread` may widen laws: weight times (std / local step)²
IN_CACHE = 2**16  # numbers that are worked on together: fewer cost a call of torch each, more leave the cache
REACH = 5.0  # E (Z - 5)+ of a standard normal Z is 5e-8


class NormalMixture:
    """Σ_s w_s N(means[s], stds[s]²) for n items and k targets.

    means, stds: (S, n, k). weights: (S,), which sum to 1.
    """

    def __init__(self, means: Tensor, stds: Tensor, weights: Tensor):
        self.means, self.stds, self.weights = means, stds, weights

    @classmethod
    def of(cls, law: Distribution, weights: Tensor) -> NormalMixture | None:
        """The mixture of S normal laws by weights, or of contaminated ones, which are two each; None of other laws."""
        if isinstance(law, Normal):
            return cls(law.mean, law.stddev.expand_as(law.mean), weights)
        if not isinstance(law, ContaminatedNormal):
            return None
        means, stds = (torch.cat([getattr(each, name) for each in law.laws]) for name in ("mean", "stddev"))
        return cls(means, stds, torch.cat([share * weights for share in law.shares]))

    def cdf(self) -> Callable[[Tensor], Tensor]:
        """The distribution function (..., n, k) -> (..., n, k), with an error of 1e-7, because it works in float32."""
        centre = self._mean(self.means)  # without it float32 would lose the digits of y - mean
        means, precision = (self.means - centre).float(), (math.sqrt(0.5) / self.stds).float()
        # Equal weights become 1, whose sum in float32 is exact: F is 0 or 1 in the tails, where an error would add up
        weights = (self.weights / self.weights.max()).float()
        half = 0.5 / weights.double().sum()

        def cdf(y: Tensor) -> Tensor:
            at = (slice(None), *[None] * (y.ndim - 2))  # S before the axes of y
            z = torch.sub((y - centre).float(), means[at]).mul_(precision[at]).erf_()  # (S, ..., n, k)
            return 0.5 + half * (weights @ z.flatten(1)).double().view(y.shape)

        return cdf

    def crps(self, y: Tensor) -> Tensor:
        """(n, k) E|Y - y| - ½ E|Y - Y'|."""
        return self._mean(_mean_distance(self.means - y, self.stds)) - 0.5 * self._spread()

    def _mean(self, values: Tensor) -> Tensor:
        return (self.weights.view(-1, 1, 1) * values).sum(0)

    def _spread(self) -> Tensor:
        """(n, k) E|Y - Y'| of every item, by the cheaper of two ways: a quadrature, or all pairs of networks.

        The quadrature steps evenly in u, y = centre + scale sinh(u): steps are wider in the tails, as far networks
        are wide. A law that is narrower than the steps is widened. From s to r that adds twice its weight times
        r² - s², times the density of Y where it sits, which is half the second derivative of E|x - Y'| by x.
        So a few networks that are certain need no steps of their own size.
        """
        means, stds = self.means, self.stds
        centre = means.median(0).values
        scale = 1 / self._mean(1 / torch.hypot(stds, means - centre))  # of the bulk, where a few wide laws do not count
        local = torch.hypot(scale, means - centre)  # dy / du
        narrowest, order = (stds / local).sort(0)
        least = torch.where(self.weights[order].cumsum(0) * narrowest.square() <= NARROW, narrowest, 0).amax(0)
        wide = torch.maximum(stds, least * local)
        low, high = (((means + k * wide - centre) / scale).asinh() for k in (-REACH, REACH))
        low, high = low.amin(0), high.amax(0)
        # Steps of 0.8 of the smallest std; for u no longer than 0.28, because sinh grows fast in the tails
        steps = (1.25 * (high - low) / (wide / local).amin(0).clamp_max(0.35)).amax(-1) + 2  # (n,)
        narrow = (steps < PAIR * len(means)) & (len(means) > FEW)  # nor does a scale of 0 or infinity pay
        spread = torch.empty_like(low)
        sizes, at_once = steps.log2().ceil(), max(1, IN_CACHE // (len(means) * means.shape[2]))
        for size in sizes[narrow].unique().tolist():  # items of about as many steps together
            for part in (narrow & (sizes == size)).nonzero().squeeze(1).split(at_once):
                cdf = NormalMixture(means[:, part], wide[:, part], self.weights).cdf()
                spread[part] = _quadrature(
                    cdf, centre[part], scale[part], low[part], high[part], 2 ** int(size), max(1, at_once // len(part))
                )
        if not bool(narrow.all()):
            spread[~narrow] = NormalMixture(means[:, ~narrow], stds[:, ~narrow], self.weights)._pairs()
        return spread

    def _pairs(self) -> Tensor:
        total = torch.zeros_like(self.means[0])
        for weight, m, s in zip(self.weights, self.means, self.stds, strict=True):
            total += weight * self._mean(_mean_distance(self.means - m, (self.stds.square() + s.square()).sqrt()))
        return total


def _quadrature(
    cdf: Callable[[Tensor], Tensor], centre: Tensor, scale: Tensor, low: Tensor, high: Tensor, steps: int, together: int
) -> Tensor:
    """2 ∫ F (1 - F) dy by the trapezoid rule over u, y = centre + scale sinh(u), from low to high.

    together: steps at which F is evaluated by one call.
    """
    step = (high - low) / (steps - 1)
    total = torch.zeros_like(low)
    for places in torch.arange(steps, dtype=low.dtype).split(together):
        u = low + places.view(-1, 1, 1) * step
        f = cdf(centre + scale * u.sinh())
        total += (f * (1 - f) * u.cosh()).sum(0)
    return 2 * total * step * scale


def _mean_distance(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, std²)."""
    z = mean / std.clamp_min(torch.finfo(std.dtype).tiny)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * torch.erf(z / math.sqrt(2))
