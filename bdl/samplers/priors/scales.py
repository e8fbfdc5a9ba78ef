"""Scales of priors: one number, a list with one number per parameter tensor, or a name.

A name gives a weight a variance over its fan-in, which keeps the outputs of a layer at one size however wide it is:
"he" 2 (He et al. 2015) and "fan_in" 1. "smooth" and "steep" are about functions, and so they tell the first, the last
and the inner layers apart: "smooth" lets outputs be large and change slowly with the inputs, as a Gaussian process of a
long length scale does (Neal 1996, chapter 2); under "steep" logits may be large, as where classes separate, and under
"rough" larger ones, of functions that bend more often. Biases and other vectors have the variance 1, and 1/4 under
"smooth".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError

Shapes = Sequence[tuple[int, ...]]  # shapes of one chain's parameter tensors


@dataclass(frozen=True)
class Gains:
    """Variances of weights times their fan-in, by layer, and those of vectors. A single layer is an inner one."""

    first: float
    inner: float
    last: float
    vectors: float = 1.0

    def variances(self, shapes: Shapes) -> list[float]:
        """The variance that each parameter tensor has."""
        matrices = [i for i, shape in enumerate(shapes) if len(shape) > 1]
        gains = dict.fromkeys(matrices, self.inner)
        if len(matrices) > 1:
            gains |= {matrices[0]: self.first, matrices[-1]: self.last}
        return [gains[i] / math.prod(shape[1:]) if i in gains else self.vectors for i, shape in enumerate(shapes)]


NAMED = {
    "he": Gains(2.0, 2.0, 2.0),
    "fan_in": Gains(1.0, 1.0, 1.0),
    "smooth": Gains(0.25, 0.25, 25.0, vectors=0.25),
    "steep": Gains(1.0, 1.0, 64.0),
    "rough": Gains(2.0, 2.0, 256.0),
}


def runs_of(values: Tensor) -> dict[str, list[float]]:
    """The values (d,) as their runs of equal numbers, and how long each is."""
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), (values[1:] != values[:-1]).nonzero().flatten().cpu() + 1])
    counts = torch.cat([starts[1:], torch.tensor([len(values)])]) - starts
    return {"values": values[starts.to(values.device)].cpu().double().tolist(), "counts": counts.tolist()}


def check_scale(what: str, value: Any, zero: str | None = None) -> None:
    """Raise ConfigError unless value is a name of NAMED, or numbers > 0 (>= 0 where `zero` says what 0 means)."""
    if isinstance(value, str):
        if value not in NAMED:
            raise ConfigError(f"{what} must be a number, one per tensor, or one of {sorted(NAMED)}, got {value!r}")
        return
    values = value if isinstance(value, Tensor) else numbers(math.nan if isinstance(value, bool) else value)
    low, high = map(float, values.aminmax() if values.numel() else (math.nan, math.nan))
    if not (0 < low or zero is not None and low == 0) or not high < math.inf:
        raise ConfigError(f"{what} must be {f'>= 0, got {value} (0 {zero})' if zero else f'> 0, got {value}'}")


def bound(scale: Any, shapes: Shapes, like: Tensor, of_variance: Callable[[float], float]) -> Any:
    """A scale as a number, or per coordinate (d,). Raises ConfigError for another number of scales than of tensors.

    of_variance: the scale that gives a coordinate such a variance.
    """
    if isinstance(scale, int | float):
        return scale
    each = like.new_empty(sum(map(math.prod, shapes)))
    values = of_tensors(scale, shapes, of_variance)
    for part, value in zip(each.split([math.prod(shape) for shape in shapes]), values, strict=True):
        part.fill_(value)
    return each


def of_tensors(scale: Any, shapes: Shapes, of_variance: Callable[[float], float]) -> list[float]:
    """The scale of each parameter tensor. Raises ConfigError for another number of scales than of tensors."""
    if isinstance(scale, int | float):
        return [float(scale)] * len(shapes)
    if isinstance(scale, str):
        return [of_variance(variance) for variance in NAMED[scale].variances(shapes)]
    values = numbers(scale).reshape(-1).tolist()
    if len(values) != len(shapes):
        raise ConfigError(
            f"the prior has {len(values)} scales for {len(shapes)} parameter tensors: give one, or one each"
        )
    return values


def in_type_of(scale: Any, theta: Tensor) -> Any:
    return scale.to(theta) if isinstance(scale, Tensor) else scale


def numbers(value: Any) -> Tensor:
    """A number or numbers as a tensor in double precision; NaN for what is neither."""
    try:
        values = value if isinstance(value, int | float | Tensor) else [float(v) for v in value]
        return torch.as_tensor(values.cpu() if isinstance(values, Tensor) else values, dtype=torch.float64)
    except (TypeError, ValueError):
        return torch.tensor(math.nan)


def sum_log(scale: Any, d: int) -> float:
    """Σ log scale over d coordinates; NaN where a scale is 0."""
    if isinstance(scale, int | float):
        return d * math.log(scale) if scale > 0 else math.nan
    total = float(scale.cpu().double().log().sum())
    return total if math.isfinite(total) else math.nan


def words(scale: Any) -> str:
    if isinstance(scale, int | float):
        return f" {scale:g}"
    if isinstance(scale, str):
        return f" {scale}"
    values = numbers(scale)
    return f"s {values.min():g} to {values.max():g}"
