"""Quantiles and CRPS of mixtures of laws with masses at points, on the line on which their densities are normal."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from bdl.likelihoods import MixedLaw
from bdl.posterior.roots import CLOSE, ROOT_WIDTH, root

REACH = 8.0  # standard deviations, beyond which a normal law holds nothing
FADED = 1e-7  # of the center's distance from a bound, which is as good as 0
NOISE = 1e-6  # of a probability in float32, which a heavy tail would multiply
PANELS, NODES = 4, 12  # of the Gauss-Legendre rule between two points


class MixedMixture:
    """Σ_s w_s law_s for the laws of S networks, n items and k targets that share their support and their points.

    weights: (S,), which sum to 1.
    """

    def __init__(self, law: MixedLaw, weights: Tensor):
        self.law, self.support = law, law.domain
        shares = weights.view(-1, 1, 1) * law.log_rest.exp()  # (S, n, k)
        self.rest = shares.sum(0)  # (n, k) probability of the density
        self.masses = [(weights.view(-1, 1, 1) * log_mass.exp()).sum(0) for log_mass in law.log_mass]  # each (n, k)
        mean, std = law.normal.mean, law.normal.stddev
        self._ends = (mean - REACH * std).amin(0), (mean + REACH * std).amax(0)
        self._center = mean.mean(0)  # without it float32 would lose the digits of u - mean
        self._width = std.log().mean(0).exp()
        self._mean, self._scale = (mean - self._center).float(), (math.sqrt(0.5) / std).float()
        self._half, self._std = 0.5 * shares.float(), std

    def continuous(self, u: Tensor) -> Tensor:
        """(n, k) probability of the density below u (n, k), with an error of 1e-7, because it works in float32."""
        z = torch.sub((u - self._center).float(), self._mean).mul_(self._scale).erf_()
        return 0.5 * self.rest + (self._half * z).sum(0).double()

    def quantile(self, q: float) -> Tensor:
        """(n, k) smallest y with P(Y <= y) >= q."""
        points = sorted(zip(self.law.points, self.masses, strict=True), key=lambda each: each[0])
        lower, below, sits = 0.0, torch.zeros_like(self.rest), torch.full_like(self.rest, math.nan)
        # The density has to reach what the points below the quantile leave of q
        for point, mass in points:
            before, lower = lower + self._below(point), lower + mass
            sits = torch.where((before < q) & (before + mass >= q), point, sits)
            below = below + mass * (before + mass < q)
        share = self.rest.clamp_min(torch.finfo(self.rest.dtype).tiny)
        wanted = ((q - below) / share).clamp(1e-12, 1 - 1e-12)
        z = torch.special.ndtri(wanted)
        each = self.law.normal.mean + self._std * z  # (S, n, k): the quantile lies between those of the networks
        low, high, std = each.amin(0), each.amax(0), self._std.amin(0)
        close = torch.minimum(1e-3 * wanted, 1e-3 * (1 - wanted)).clamp(2e-7, CLOSE)
        u = root(
            lambda u: self.continuous(u) / share, wanted, low - 1e-3 * std, high + 1e-3 * std, ROOT_WIDTH * std, close
        )
        return torch.where(sits.isnan(), self.support.from_line(u), sits)

    def crps(self, y: Tensor) -> Tensor:
        """(n, k) ∫ (P(Y <= x) - 1{x >= y})² dx (Gneiting & Raftery 2007, eq. 20) up to the support's limit, or y.

        By a Gauss-Legendre rule in t, where u = center + width sinh(t) on the line: fine where most networks are, and
        coarse where a few go far. The points and y, where the integrand jumps, are ends of its pieces.
        """
        low, high = self._range(y)
        places = [self._line(point, y) for point in self.law.points]
        each = [low, *places, self.support.to_line(y), high]
        low, *places, at, high = (((u.clamp(low, high) - self._center) / self._width).asinh() for u in each)
        ends, total = torch.stack([low, *places, at, high]).sort(0).values, self._outside(y)
        for begin, end in zip(ends, ends[1:], strict=False):
            total = total + self._between(begin, end, at, places)
        return total

    def _outside(self, y: Tensor) -> Tensor:
        """The integral below the lower bound and above the upper one, where points may lie, and y at one of them."""
        (low, high), total = self.support.bounds, torch.zeros_like(y)
        ends = sorted({end for end in (*self.law.points, low, high) if math.isfinite(end)})
        for begin, end in zip(ends, ends[1:], strict=False):
            if end <= low or begin >= high:
                held = [mass for point, mass in zip(self.law.points, self.masses, strict=True) if point <= begin]
                below = sum(held, self.rest if begin >= high else torch.zeros_like(y))
                total = total + (end - begin) * (below - (y <= begin).to(y.dtype)).square()
        return total

    def _between(self, begin: Tensor, end: Tensor, at: Tensor, places: list[Tensor]) -> Tensor:
        """The integral for t from begin to end. at: the t of y; places: those of the points."""
        middle = (begin + end) / 2
        seen, total = (middle > at).to(at.dtype), torch.zeros_like(at)
        for mass, place in zip(self.masses, places, strict=True):
            seen = seen - mass * (middle > place)
        for share, weight in _rule():
            t = begin + share * (end - begin)
            u = self._center + self._width * t.sinh()
            slope = self._width * t.cosh() * torch.exp(-self.support.log_slope(self.support.from_line(u)))  # dy/dt
            gap = (self.continuous(u) - seen).square()
            total = total + weight * slope * gap * (gap > NOISE**2)
        return total * (end - begin)

    def _range(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(n, k) ends on the line, beyond which the distribution function is 0 or 1 at all that matters.

        Towards a bound, at which a point may lie, a distance of FADED times that of the center is as good as 0.
        """
        (low, high), (bottom, top) = self._ends, self.support.bounds
        center, limit = self.support.from_line(self._center), self.support.limit
        if limit is not None:
            low = torch.maximum(low, self._line(top - limit, y)) if math.isfinite(top) else low
            high = torch.minimum(high, self._line(bottom + limit, y)) if math.isfinite(bottom) else high
        low = self.support.to_line(bottom + FADED * (center - bottom)) if math.isfinite(bottom) else low
        high = self.support.to_line(top - FADED * (top - center)) if math.isfinite(top) else high
        for place in [y, *(torch.full_like(y, point) for point in self.law.points)]:
            inside, u = self.support.contains(place), self.support.to_line(place)
            low, high = (
                torch.where(inside, torch.minimum(low, u), low),
                torch.where(inside, torch.maximum(high, u), high),
            )
        return low, high

    def _line(self, value: float, like: Tensor) -> Tensor:
        return self.support.to_line(torch.full_like(like, value))

    def _below(self, point: float) -> Tensor:
        """(n, k) probability of the density below a point."""
        low, high = self.support.bounds
        if point <= low:
            return torch.zeros_like(self.rest)
        if point >= high:
            return self.rest
        return self.continuous(self._line(point, self.rest))


@functools.cache
def _rule() -> list[tuple[float, float]]:
    """Nodes and weights of the composite rule on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(NODES)
    return [((i + (a + 1) / 2) / PANELS, b / 2 / PANELS) for i in range(PANELS) for a, b in zip(x, w, strict=True)]
