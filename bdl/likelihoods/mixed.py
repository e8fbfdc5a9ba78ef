"""MixedLaw: masses at points, and a density elsewhere that is normal on the line to which its support is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from bdl.likelihoods.support import Support

SAME = 1e-6  # relative difference of a value from a point, at which the rounding of float32 takes it for the point


class MixedLaw(Distribution):
    """P(y = points[j]) = exp(log_mass[j]); elsewhere y has the density exp(log_rest) N(u(y); mean, std²) du/dy.

    `log_prob` is the log of the mass at a point, and of the density elsewhere: the density with respect to the counting
    measure of the points plus Lebesgue's.

    Args:
        support: the map u.
        mean, std: (...,) of the normal law on the line.
        points: J values.
        log_mass: (J, ...) and log_rest: (...,), which sum to 1 together.
    """

    def __init__(
        self, support: Support, mean: Tensor, std: Tensor, points: tuple[float, ...], log_mass: Tensor, log_rest: Tensor
    ):
        self.domain, self.points, self.log_mass, self.log_rest = support, points, log_mass, log_rest
        self.normal = Normal(mean, std, validate_args=False)
        super().__init__(mean.shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        u = self.domain.to_line(value)
        density = self.log_rest + self.normal.log_prob(u) + self.domain.log_slope(value)
        density = density.masked_fill(~self.domain.contains(value), -torch.inf)
        for point, log_mass in zip(self.points, self.log_mass, strict=True):
            density = torch.where(is_point(value, point), log_mass, density)
        return density

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y <= value)."""
        low, high = self.domain.bounds
        below = self.normal.cdf(self.domain.to_line(value))
        total = self.log_rest.exp() * torch.where(value <= low, 0, torch.where(value >= high, 1, below))
        return total + self._mass(lambda point: (value > point) | is_point(value, point))

    def mass(self, value: Tensor) -> Tensor:
        """P(Y = value)."""
        return self._mass(lambda point: is_point(value, point)) + torch.zeros_like(value + self.log_rest)

    @property
    def mean(self) -> Tensor:
        return self._moments()[0]

    @property
    def variance(self) -> Tensor:
        first, second = self._moments()
        return (second - first.square()).clamp_min(0)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        y = self.domain.from_line(self.normal.sample(sample_shape))
        uniform, below = torch.rand(y.shape, dtype=y.dtype, device=y.device), 0.0
        for point, log_mass in zip(self.points, self.log_mass, strict=True):
            above = below + log_mass.exp()
            y = torch.where((uniform >= below) & (uniform < above), point, y)
            below = above
        return y

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and mean square of y."""
        rest = self.log_rest.exp()
        first, second = (rest * moment for moment in self.domain.moments(self.normal.mean, self.normal.stddev))
        for point, log_mass in zip(self.points, self.log_mass, strict=True):
            first, second = first + log_mass.exp() * point, second + log_mass.exp() * point**2
        return first, second

    def _mass(self, counts: Callable[[float], Tensor]) -> Tensor:
        """The mass of the points for which counts(point), a tensor of booleans, is true."""
        total = torch.zeros_like(self.log_rest)
        for point, log_mass in zip(self.points, self.log_mass, strict=True):
            total = total + log_mass.exp() * counts(point)
        return total


def is_point(y: Tensor, point: float) -> Tensor:
    """Whether values are a point, up to the rounding of float32; 0 is met exactly."""
    return (y - point).abs() <= SAME * abs(point)
