"""Support: where a density lies, and the map that takes it to the real line, on which it is normal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from bdl.errors import ConfigError
from bdl.likelihoods.per_target import number

Tail = Literal["log", "linear"]
NODES = 40  # of the Gauss-Hermite rule for moments; exact to 1e-6 up to a standard deviation of 3 on the line


@dataclass(frozen=True)
class Support:
    """An interval with the increasing map u(y) = ±(t(v) - center) / spread of its values y to the real line.

        no bound       v = y           t = v
        one bound      v = |y - bound| t = log v, or log(e^v - 1), which is log v near the bound and v far from it
        two bounds     v = the share of the interval below y    t = log v - log(1 - v)

    Args:
        low, high: the bounds; None for none.
        tail: at one bound, "log" for the first and "linear" for the second.
        center, spread: mean and standard deviation of ±t, so that what networks see is standardised.
        limit: moments are those of min(v, limit); None for none. The mean of a log-normal law grows with
            exp(variance / 2): without the limit, one network that is unsure of a row would decide the mean of all.

    Raises ConfigError unless low < high and spread > 0.
    """

    low: float | None = None
    high: float | None = None
    tail: Tail = "log"
    center: float = 0.0
    spread: float = 1.0
    limit: float | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high", "center", "spread", "limit"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, number(name, value))
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ConfigError(f"low must be below high, got {self.low} and {self.high}")
        if self.tail not in ("log", "linear"):
            raise ConfigError(f"tail must be log or linear, got {self.tail!r}")
        if not self.spread > 0 or self.limit is not None and not self.limit > 0:
            raise ConfigError(f"spread and limit must be > 0, got {self.spread} and {self.limit}")

    @property
    def bounds(self) -> tuple[float, float]:
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    def contains(self, y: Tensor) -> Tensor:
        low, high = self.bounds
        return (y > low) & (y < high)

    def to_line(self, y: Tensor) -> Tensor:
        """u of y. At a bound, and beyond, it is that of the smallest distance from it."""
        v = self._distance(y)
        if self.low is None and self.high is None:
            t = v
        elif self.low is not None and self.high is not None:
            t = v.log() - torch.log1p(-v)
        else:
            t = v.log() if self.tail == "log" else v + torch.log(-torch.expm1(-v))
        return (self._sign * t - self.center) / self.spread

    def from_line(self, u: Tensor) -> Tensor:
        """The inverse of `to_line`."""
        return self._at(self._value(self._sign * (self.center + self.spread * u)))

    def log_slope(self, y: Tensor) -> Tensor:
        """log du/dy."""
        v, log_spread = self._distance(y), math.log(self.spread)
        if self.low is None and self.high is None:
            return torch.zeros_like(v) - log_spread
        if self.low is not None and self.high is not None:
            return -v.log() - torch.log1p(-v) - math.log(self.high - self.low) - log_spread
        return (-v.log() if self.tail == "log" else -torch.log(-torch.expm1(-v))) - log_spread

    def moments(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and mean square of y, up to `limit`, where u is normal with this mean and standard deviation."""
        if self.low is None and self.high is None:
            mean = self.center + self.spread * mean
            return mean, mean.square() + (self.spread * std).square()
        if self.tail == "log" and (self.low is None or self.high is None):
            center, scale = self._sign * (self.center + self.spread * mean), self.spread * std
            first, second = (self._log_normal_moment(center, scale, p) for p in (1, 2))
        else:
            first, second = self._quadrature(mean, std)
        if self.low is not None and self.high is not None:
            return first, second
        at, sign = self._at(torch.zeros_like(first)), self._sign
        return at + sign * first, at.square() + 2 * sign * at * first + second

    @property
    def _sign(self) -> int:
        """-1 where v falls as y grows: below an upper bound."""
        return -1 if self.low is None and self.high is not None else 1

    def _distance(self, y: Tensor) -> Tensor:
        """v; at least the smallest normal number."""
        if self.low is None and self.high is None:
            return y
        tiny, eps = torch.finfo(y.dtype).tiny, torch.finfo(y.dtype).eps
        if self.low is not None and self.high is not None:
            return ((y - self.low) / (self.high - self.low)).clamp(tiny, 1 - eps)
        return (y - self.low if self.low is not None else self.high - y).clamp_min(tiny)  # type: ignore[operator]

    def _at(self, v: Tensor) -> Tensor:
        """y at v."""
        if self.low is not None and self.high is not None:
            return self.low + (self.high - self.low) * v
        return self.high - v if self.high is not None else v if self.low is None else v + self.low

    def _value(self, t: Tensor) -> Tensor:
        """v at t."""
        if self.low is None and self.high is None:
            return t
        if self.low is not None and self.high is not None:
            return t.sigmoid()
        return t.exp() if self.tail == "log" else softplus(t)

    def _log_normal_moment(self, center: Tensor, scale: Tensor, p: int) -> Tensor:
        """E min(v, limit)^p of log v ~ N(center, scale²)."""
        squares = p * center + 0.5 * p * p * scale.square()
        if self.limit is None:
            return squares.exp()
        z = (math.log(self.limit) - center) / scale
        below = (squares + torch.special.log_ndtr(z - p * scale)).exp()
        return below + self.limit**p * torch.special.ndtr(-z)

    def _quadrature(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """E v and E v² at one bound, E y and E y² between two."""
        first, second = torch.zeros_like(mean), torch.zeros_like(mean)
        between = self.low is not None and self.high is not None
        for x, weight in zip(*np.polynomial.hermite_e.hermegauss(NODES), strict=True):
            v = self._value(self._sign * (self.center + self.spread * (mean + float(x) * std)))
            y = self._at(v) if between else v if self.limit is None else v.clamp_max(self.limit)
            weight = float(weight) / math.sqrt(2 * math.pi)
            first, second = first + weight * y, second + weight * y.square()
        return first, second
