"""Priors over flat parameters `(..., d)`: their energy -log p(θ) in nats, constants dropped, and its gradient.

A scale is one number, a list with one number per parameter tensor, or a name, see `scales`. A mean is one number, a
mapping from the names of parameters to tensors or numbers, or "start": the weights where the chains begin, which all
chains must share, because a posterior has one prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError, check_positive
from bdl.samplers.priors.base import Centred, Prior, centre
from bdl.samplers.priors.centres import check_mean, describe, offset
from bdl.samplers.priors.learned import LEARNED, Learned, LearnedGaussian
from bdl.samplers.priors.scales import Shapes, bound, check_scale, in_type_of, sum_log, words


@dataclass(frozen=True)
class Uniform(Prior):
    """Improper uniform prior, p(θ) ∝ 1."""

    def energy(self, theta: Tensor) -> float:
        return 0.0

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        pass

    def linear(self) -> tuple[Any, Any]:
        return 0.0, 0.0

    def constant(self, d: int) -> float:
        return math.nan

    def __str__(self) -> str:
        return "uniform (improper)"


@dataclass(frozen=True, eq=False)
class Gaussian(Centred):
    """N(mean, 1/precision) on every coordinate.

    precision: one number >= 0, one per parameter tensor, "he" or "fan_in"; or a `Learned` hyperprior, which "learned"
    stands for with its defaults: one precision for each tensor, drawn inside the run.
    mean: one number, numbers or tensors by name of parameter, or "start", the weights where the chains begin. With mean
    0 and at T = 0 it acts as SGD's weight decay, with weight_decay = precision / N.
    """

    precision: Any = 1.0  # per coordinate (d,) once bound
    mean: Any = centre()

    def __post_init__(self) -> None:
        check_mean(self.mean)
        if isinstance(self.precision, str) and self.precision == LEARNED:
            object.__setattr__(self, "precision", Learned())
        if not self.learns:
            check_scale("prior precision", self.precision, "is bdl.Uniform()")

    @property
    def learns(self) -> bool:
        return isinstance(self.precision, Learned)

    def bind(self, shapes: Shapes, like: Tensor) -> Gaussian | LearnedGaussian:
        if self.learns:
            return LearnedGaussian.of(self.precision, self.mean, shapes, like)
        return replace(self, precision=bound(self.precision, shapes, like, lambda variance: 1 / variance))

    def energy(self, theta: Tensor) -> Tensor:
        x = theta if self.at_zero else offset(theta, self.mean)
        if isinstance(self.precision, int | float):
            square = torch.dot(x, x) if x.ndim == 1 else torch.linalg.vecdot(x, x)
            return 0.5 * self.precision * square
        return 0.5 * (x.square() @ self.precision.to(x))

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        x = theta if self.at_zero else offset(theta, self.mean)
        if isinstance(self.precision, int | float):
            g.add_(x, alpha=self.precision / num_data)
        else:
            g.addcmul_(x, self.precision.to(x), value=1 / num_data)

    def linear(self) -> tuple[Any, Any]:
        return self.precision, self.mean

    def constant(self, d: int) -> float:
        return 0.5 * (d * math.log(2 * math.pi) - sum_log(self.precision, d))

    def __str__(self) -> str:
        if self.learns:
            return f"Gaussian, {self.precision}{describe(self.mean)}"
        return f"Gaussian, precision{words(self.precision)}{describe(self.mean)}"


@dataclass(frozen=True, eq=False)
class Laplace(Centred):
    """exp(-|θ - mean| / scale) on every coordinate.

    scale: one number > 0, one per tensor, "he" or "fan_in" (by variance). mean: as that of `Gaussian`.
    """

    scale: Any = 1.0
    mean: Any = centre()

    def __post_init__(self) -> None:
        check_mean(self.mean)
        check_scale("Laplace scale", self.scale)

    def bind(self, shapes: Shapes, like: Tensor) -> Laplace:
        return replace(self, scale=bound(self.scale, shapes, like, lambda variance: math.sqrt(variance / 2)))

    def energy(self, theta: Tensor) -> Tensor:
        return (self.offset(theta).abs() / in_type_of(self.scale, theta)).sum(-1)

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        g.add_(self.offset(theta).sign().div_(in_type_of(self.scale, theta)), alpha=1 / num_data)

    def constant(self, d: int) -> float:
        return d * math.log(2) + sum_log(self.scale, d)

    def __str__(self) -> str:
        return f"Laplace, scale{words(self.scale)}{describe(self.mean)}"


@dataclass(frozen=True, eq=False)
class StudentT(Centred):
    """(1 + x² / (df scale²))^(-(df + 1)/2) with x = θ - mean on every coordinate.

    scale: one number > 0, one per tensor, "he" or "fan_in". A named scale sets the variance where that exists, at
    df > 2, and else the scale. mean: as that of `Gaussian`.
    """

    df: float = 4.0
    scale: Any = 1.0
    mean: Any = centre()

    def __post_init__(self) -> None:
        check_mean(self.mean)
        check_scale("Student-t scale", self.scale)
        check_positive("Student-t df", self.df)

    def bind(self, shapes: Shapes, like: Tensor) -> StudentT:
        share = (self.df - 2) / self.df if self.df > 2 else 1.0
        return replace(self, scale=bound(self.scale, shapes, like, lambda variance: math.sqrt(variance * share)))

    def energy(self, theta: Tensor) -> Tensor:
        x = theta if self.at_zero else offset(theta, self.mean)
        return (self.df + 1) / 2 * (x / in_type_of(self.scale, x)).square().div(self.df).log1p().sum(-1)

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        x = theta if self.at_zero else offset(theta, self.mean)
        spread = self.df * in_type_of(self.scale, x) ** 2
        g.add_((self.df + 1) * x / (spread + x.square()), alpha=1 / num_data)

    def constant(self, d: int) -> float:
        one = math.lgamma(self.df / 2) - math.lgamma((self.df + 1) / 2) + 0.5 * math.log(math.pi * self.df)
        return d * one + sum_log(self.scale, d)

    def __str__(self) -> str:
        return f"Student-t, df {self.df:g}, scale{words(self.scale)}{describe(self.mean)}"


@dataclass(frozen=True)
class ScaleMixture(Prior):
    """share N(0, wide²) + (1 - share) N(0, narrow²) on every coordinate (Blundell et al. 2015, eq. 7)."""

    share: float = 0.5
    wide: float = 1.0
    narrow: float = 0.0025

    def __post_init__(self) -> None:
        if not (0 < self.share < 1 and 0 < self.narrow < self.wide < math.inf):
            raise ConfigError(
                "a scale mixture needs 0 < share < 1 and 0 < narrow < wide, "
                f"got {self.share}, {self.narrow}, {self.wide}"
            )

    def energy(self, theta: Tensor) -> Tensor:
        return -torch.logaddexp(*self._parts(theta)).sum(-1)

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        wide, narrow = self._parts(theta)
        from_wide = torch.sigmoid(wide - narrow)  # responsibility of the wide component
        precision = from_wide / self.wide**2 + (1 - from_wide) / self.narrow**2
        g.addcmul_(theta, precision, value=1 / num_data)

    def constant(self, d: int) -> float:
        return 0.5 * d * math.log(2 * math.pi)

    def __str__(self) -> str:
        return f"scale mixture, {self.share:g} N(0, {self.wide:g}²) + {1 - self.share:g} N(0, {self.narrow:g}²)"

    def _parts(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        square = theta.square() / 2
        return (
            math.log(self.share / self.wide) - square / self.wide**2,
            math.log((1 - self.share) / self.narrow) - square / self.narrow**2,
        )
