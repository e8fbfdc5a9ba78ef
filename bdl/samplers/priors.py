"""Priors over flat parameters `(..., d)`: their energy -log p(θ) in nats, constants dropped, and its gradient.

A scale is one number, a list with one number per parameter tensor, or a name. "he" gives weights the variance
2 / fan-in (He et al. 2015), "fan_in" the variance 1 / fan-in; biases and other vectors have variance 1 under both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.identity import identity

Shapes = Sequence[tuple[int, ...]]  # shapes of one chain's parameter tensors

GAINS = {"he": 2.0, "fan_in": 1.0}  # variance of a weight times its fan-in


class Prior(ABC):
    """A density over θ (..., d), whose leading axes are chains."""

    def bind(self, shapes: Shapes, like: Tensor) -> Prior:
        """The same prior with the scale of each tensor repeated for its coordinates; shapes of one chain's tensors."""
        return self

    def to(self, like: Tensor) -> Prior:
        """The same bound prior with its tensors in the type and on the device of `like`."""
        return self

    @abstractmethod
    def energy(self, theta: Tensor) -> Tensor | float:
        """(...,) -log p(θ), nats, constants dropped."""

    @abstractmethod
    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        """g += ∇(-log p(θ)) / num_data, in place."""

    @abstractmethod
    def constant(self, d: int) -> float:
        """The constant that `energy` drops, for d coordinates: -log p(θ) = energy(θ) + constant. NaN if improper."""

    def identity(self) -> Any:
        """Plain values that are equal for bound priors with the same scale at every coordinate, however it was given.

        Scales per coordinate become the values and lengths of their runs of equal numbers.
        """
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        plain = identity(replace(self, **dict.fromkeys(tensors, 1.0)))  # type: ignore[type-var]
        return plain | {name: runs_of(value) for name, value in tensors.items()}


@dataclass(frozen=True)
class Uniform(Prior):
    """Improper uniform prior, p(θ) ∝ 1."""

    def energy(self, theta: Tensor) -> float:
        return 0.0

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        pass

    def constant(self, d: int) -> float:
        return math.nan

    def __str__(self) -> str:
        return "uniform (improper)"


@dataclass(frozen=True, eq=False)
class Gaussian(Prior):
    """N(0, 1/precision) on every coordinate; precision: one number >= 0, one per parameter tensor, "he" or "fan_in".

    At T = 0 it acts as SGD's weight decay, with weight_decay = precision / N.
    """

    precision: Any = 1.0  # per coordinate (d,) once bound

    def __post_init__(self) -> None:
        check_scale("prior precision", self.precision, "is bdl.Uniform()")

    def bind(self, shapes: Shapes, like: Tensor) -> Gaussian:
        return replace(self, precision=bound(self.precision, shapes, like, lambda variance: 1 / variance))

    def to(self, like: Tensor) -> Gaussian:
        return replace(self, precision=_like(self.precision, like))

    def energy(self, theta: Tensor) -> Tensor:
        if isinstance(self.precision, int | float):
            square = torch.dot(theta, theta) if theta.ndim == 1 else torch.linalg.vecdot(theta, theta)
            return 0.5 * self.precision * square
        return 0.5 * (theta.square() @ self.precision.to(theta))

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        if isinstance(self.precision, int | float):
            g.add_(theta, alpha=self.precision / num_data)
        else:
            g.addcmul_(theta, self.precision.to(theta), value=1 / num_data)

    def constant(self, d: int) -> float:
        return 0.5 * (d * math.log(2 * math.pi) - _sum_log(self.precision, d))

    def __str__(self) -> str:
        return f"Gaussian, precision{_words(self.precision)}"


@dataclass(frozen=True, eq=False)
class Laplace(Prior):
    """exp(-|θ| / scale) on every coordinate; scale: one number > 0, one per tensor, "he" or "fan_in" (by variance)."""

    scale: Any = 1.0

    def __post_init__(self) -> None:
        check_scale("Laplace scale", self.scale)

    def bind(self, shapes: Shapes, like: Tensor) -> Laplace:
        return replace(self, scale=bound(self.scale, shapes, like, lambda variance: math.sqrt(variance / 2)))

    def to(self, like: Tensor) -> Laplace:
        return replace(self, scale=_like(self.scale, like))

    def energy(self, theta: Tensor) -> Tensor:
        return (theta.abs() / _like(self.scale, theta)).sum(-1)

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        g.add_(theta.sign().div_(_like(self.scale, theta)), alpha=1 / num_data)

    def constant(self, d: int) -> float:
        return d * math.log(2) + _sum_log(self.scale, d)

    def __str__(self) -> str:
        return f"Laplace, scale{_words(self.scale)}"


@dataclass(frozen=True, eq=False)
class StudentT(Prior):
    """(1 + θ² / (df scale²))^(-(df + 1)/2) on every coordinate; scale: one number > 0, one per tensor, "he", "fan_in".

    A named scale sets the variance where that exists, at df > 2, and else the scale.
    """

    df: float = 4.0
    scale: Any = 1.0

    def __post_init__(self) -> None:
        check_scale("Student-t scale", self.scale)
        if not 0 < self.df < math.inf:
            raise ConfigError(f"Student-t df must be > 0, got {self.df}")

    def bind(self, shapes: Shapes, like: Tensor) -> StudentT:
        share = (self.df - 2) / self.df if self.df > 2 else 1.0
        return replace(self, scale=bound(self.scale, shapes, like, lambda variance: math.sqrt(variance * share)))

    def to(self, like: Tensor) -> StudentT:
        return replace(self, scale=_like(self.scale, like))

    def energy(self, theta: Tensor) -> Tensor:
        return (self.df + 1) / 2 * (theta / _like(self.scale, theta)).square().div(self.df).log1p().sum(-1)

    def add_grad_(self, g: Tensor, theta: Tensor, num_data: int) -> None:
        spread = self.df * _like(self.scale, theta) ** 2
        g.add_((self.df + 1) * theta / (spread + theta.square()), alpha=1 / num_data)

    def constant(self, d: int) -> float:
        one = math.lgamma(self.df / 2) - math.lgamma((self.df + 1) / 2) + 0.5 * math.log(math.pi * self.df)
        return d * one + _sum_log(self.scale, d)

    def __str__(self) -> str:
        return f"Student-t, df {self.df:g}, scale{_words(self.scale)}"


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


def runs_of(values: Tensor) -> dict[str, list[float]]:
    """The values (d,) as their runs of equal numbers, and how long each is."""
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), (values[1:] != values[:-1]).nonzero().flatten().cpu() + 1])
    counts = torch.cat([starts[1:], torch.tensor([len(values)])]) - starts
    return {"values": values[starts.to(values.device)].cpu().double().tolist(), "counts": counts.tolist()}


def check_scale(what: str, value: Any, zero: str | None = None) -> None:
    """Raise ConfigError unless value is a name of GAINS, or numbers > 0 (>= 0 where `zero` says what 0 means)."""
    if isinstance(value, str):
        if value not in GAINS:
            raise ConfigError(f"{what} must be a number, one per tensor, or one of {sorted(GAINS)}, got {value!r}")
        return
    values = value if isinstance(value, Tensor) else _numbers(math.nan if isinstance(value, bool) else value)
    low, high = map(float, values.aminmax() if values.numel() else (math.nan, math.nan))  # of d numbers, once bound
    if not (0 < low or zero is not None and low == 0) or not high < math.inf:
        raise ConfigError(f"{what} must be {f'>= 0, got {value} (0 {zero})' if zero else f'> 0, got {value}'}")


def bound(scale: Any, shapes: Shapes, like: Tensor, of_variance: Callable[[float], float]) -> Any:
    """A scale as a number, or per coordinate (d,). Raises ConfigError for another number of scales than of tensors.

    of_variance: the scale that gives a coordinate such a variance.
    """
    if isinstance(scale, int | float):
        return scale
    if isinstance(scale, str):
        fans = [math.prod(shape[1:]) if len(shape) > 1 else None for shape in shapes]  # None for vectors
        scale = [of_variance(1.0 if fan is None else GAINS[scale] / fan) for fan in fans]
    values = _numbers(scale).reshape(-1)
    if len(values) != len(shapes):
        raise ConfigError(
            f"the prior has {len(values)} scales for {len(shapes)} parameter tensors: give one, or one each"
        )
    each = like.new_empty(sum(map(math.prod, shapes)))
    for part, value in zip(each.split([math.prod(shape) for shape in shapes]), values.tolist(), strict=True):
        part.fill_(value)
    return each


def _like(scale: Any, theta: Tensor) -> Any:
    return scale.to(theta) if isinstance(scale, Tensor) else scale


def _numbers(value: Any) -> Tensor:
    """A number or numbers as a tensor in double precision; NaN for what is neither."""
    try:
        values = value if isinstance(value, int | float | Tensor) else [float(v) for v in value]
        return torch.as_tensor(values.cpu() if isinstance(values, Tensor) else values, dtype=torch.float64)
    except (TypeError, ValueError):
        return torch.tensor(math.nan)


def _sum_log(scale: Any, d: int) -> float:
    """Σ log scale over d coordinates; NaN where a scale is 0."""
    if isinstance(scale, int | float):
        return d * math.log(scale) if scale > 0 else math.nan
    total = float(scale.cpu().double().log().sum())
    return total if math.isfinite(total) else math.nan


def _words(scale: Any) -> str:
    if isinstance(scale, int | float):
        return f" {scale:g}"
    if isinstance(scale, str):
        return f" {scale}"
    values = _numbers(scale)
    return f"s {values.min():g} to {values.max():g}"
