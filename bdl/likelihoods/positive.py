"""Likelihoods of positive numbers: log-normal and gamma."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Gamma, Independent

from bdl.devices import widest
from bdl.likelihoods.base import Likelihood, Outputs, as_columns, halves, moments_of, refuse_targets
from bdl.likelihoods.hurdle import moments_on_line, outside
from bdl.likelihoods.mixed import MixedLaw
from bdl.likelihoods.support import Support
from bdl.likelihoods.values import HeteroscedasticNLL


@dataclass(frozen=True)
class PositiveNLL(Likelihood):
    """-log p(y) of targets y > 0, from two outputs for each. For its settings see `LogNormalNLL`."""

    center: float = 0.0
    spread: float = 1.0
    limit: float | None = None
    outputs: ClassVar[Outputs] = "values"

    def __post_init__(self) -> None:
        _ = self.support  # which checks its part

    @property
    def support(self) -> Support:
        return Support(low=0.0, center=self.center, spread=self.spread, limit=self.limit)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.support.bounds

    @property
    def per_target(self) -> int:
        return 2

    def check(self, y: Tensor, outputs: int | None = None) -> None:
        super().check(y, outputs)
        refuse_targets(y <= 0, y, *outside(self.support))


@dataclass(frozen=True)
class LogNormalNLL(PositiveNLL):
    """-log p(y) where (log y - center) / spread ~ N(mean, e^s): outputs (..., B, 2k) = mean and s; y (..., B, k) > 0.

    The density is that of y, in its units, so that the NLL compares with other laws. The median of a network's law is
    exp(center + spread mean), and its mean is larger, see `limit`.

    >>> import torch
    >>> LogNormalNLL()(torch.zeros(1, 2), torch.tensor([[1.0]]))  # log(2 pi) / 2
    tensor([0.9189])

    Args:
        center, spread: mean and standard deviation of log y, so that networks see standardised numbers.
        limit: predicted means and standard deviations are those of min(y, limit). A network that is unsure of a row has
            a mean of exp(variance / 2), and the average of many networks would be that of the worst one. Quantiles and
            densities have no limit.
        min_std: standard deviation that the standardised log has in any case, as in `HeteroscedasticNLL`.

    Raises ConfigError unless spread > 0, limit > 0 and min_std >= 0.
    """

    min_std: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._normal  # which checks its part

    def marginals(self, outputs: Tensor) -> MixedLaw:
        normal = self._normal.marginals(outputs)
        return self._law(normal.mean, normal.stddev)

    def distribution(self, outputs: Tensor) -> Distribution:
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        y = as_columns(y, halves(self, outputs)[0].shape)
        return self._normal(outputs, self.support.to_line(y)) - self.support.log_slope(y).sum(-1)

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = as_columns(y, halves(self, outputs)[0].shape)
        loss, gradient = self._normal.mean_and_gradient(outputs, self.support.to_line(y))
        return loss - self.support.log_slope(y).sum(-1).mean(-1), gradient

    def constant(self, y: Tensor) -> Distribution:
        return self._law(*moments_on_line(self.support, y))

    def _law(self, mean: Tensor, std: Tensor) -> MixedLaw:
        return MixedLaw(self.support, mean, std, (), mean.new_zeros(0, *mean.shape), torch.zeros_like(mean))

    @property
    def _normal(self) -> HeteroscedasticNLL:
        """The law of the standardised log."""
        return HeteroscedasticNLL(min_std=self.min_std)


@dataclass(frozen=True)
class GammaNLL(PositiveNLL):
    """-log Gamma(y; mean, shape): outputs (..., B, 2k) = m and s; targets y (..., B, k) > 0 -> (..., B) nats.

        log E y = center + spread m,    shape = e^-s / spread²,    Var y = (E y)² / shape

    For a large shape log y has nearly the standard deviation spread e^(s/2), as under `LogNormalNLL`, whose tail is
    heavier.

    >>> import torch
    >>> GammaNLL()(torch.zeros(1, 2), torch.tensor([[1.0]]))  # exponential with mean 1
    tensor([1.])

    Args:
        center, spread, limit: as in `LogNormalNLL`.

    Raises ConfigError unless spread > 0 and limit > 0.
    """

    def distribution(self, outputs: Tensor) -> Distribution:
        log_mean, shape = self._parameters(outputs)
        return Independent(Gamma(shape, shape * (-log_mean).exp(), validate_args=False), 1, validate_args=False)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        wide = outputs.to(widest(outputs.device))  # in float32 a large shape loses the digits of its lgamma
        log_mean, shape = self._parameters(wide)
        y = as_columns(y, shape.shape).to(wide.dtype)
        ratio = y.log() - log_mean
        loss = torch.lgamma(shape) - shape * (shape.log() + ratio - ratio.exp()) + y.log()
        return loss.sum(-1).to(outputs.dtype)

    def mean_and_gradient(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """With a = shape and t = log y - log E y: a (1 - e^t) by log E y, a (ψ(a) - log a - 1 - t + e^t) by log a."""
        wide = outputs.to(widest(outputs.device))
        log_mean, shape = self._parameters(wide)
        y = as_columns(y, shape.shape).to(wide.dtype)
        log_shape, ratio = shape.log(), y.log() - log_mean
        excess = ratio.exp()
        loss = (torch.lgamma(shape) - shape * (log_shape + ratio - excess) + y.log()).sum(-1).mean(-1)
        by_mean = self.spread * shape * (1 - excess)
        by_s = shape * (log_shape + 1 + ratio - excess - torch.special.digamma(shape))
        gradient = torch.cat([by_mean, by_s], -1).mul_(1 / outputs.shape[-2])
        return loss.to(outputs.dtype), gradient.to(outputs.dtype)

    def mean(self, outputs: Tensor) -> Tensor:
        return self._moment(outputs, 1)

    def variance(self, outputs: Tensor) -> Tensor:
        return (self._moment(outputs, 2) - self._moment(outputs, 1).square()).clamp_min(0)

    def _moment(self, outputs: Tensor, p: int) -> Tensor:
        """E min(y, limit)^p for p = 1, 2: y^p times the density is that of the shape + p."""
        log_mean, shape = self._parameters(outputs)
        whole = (p * log_mean).exp() * (1 + (p - 1) / shape)
        if self.limit is None:
            return whole
        end = shape * self.limit * (-log_mean).exp()
        below, beyond = torch.special.gammainc(shape + p, end), torch.special.gammaincc(shape, end)
        return torch.where(below > 0, whole * below, 0) + self.limit**p * beyond

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_mean, shape = self._parameters(outputs)
        return torch.special.gammainc(*torch.broadcast_tensors(shape, shape * (-log_mean).exp() * y.clamp_min(0)))

    def constant(self, y: Tensor) -> Distribution:
        mean, variance = moments_of(y)
        return Gamma(mean.square() / variance, mean / variance)

    def _parameters(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """log E y, and the shape."""
        m, s = halves(self, outputs)
        return self.center + self.spread * m, (-s).exp() / self.spread**2
