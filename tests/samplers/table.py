"""The one table of samplers that all parametrised tests read: a new sampler is one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import bdl


@dataclass(frozen=True)
class Row:
    """A dynamics and what is known of its step on a Gaussian, U = h x²/2 in one dimension.

    The stationary variance is (T/h) / (1 - e p h / (2 (2 - a))), e = lr/N, a = friction, p = scale: first order in lr.
    """

    name: str
    build: Callable[[int, torch.dtype], object]  # (d <= 2, dtype) -> dynamics
    friction: float = 1.0
    scale: float = 1.0  # p: what multiplies lr in one dimension
    diagonal: tuple[float, float] = (1.0, 1.0)  # of the preconditioner in two
    noisy: bool = True
    steps: int = 4000  # that give 4,096 chains the power to see +2% of variance

    def __str__(self) -> str:
        return self.name


def sgld(p):
    """SGLD with the leading (d, d) or (d,) part of p as its preconditioner."""
    p = torch.tensor(p)
    return lambda d, dtype: bdl.SGLD(p[:d, :d].to(dtype) if p.ndim == 2 else p[:d].to(dtype))


TABLE = [
    Row("sgd", lambda d, dtype: bdl.SGD(momentum=0.0), noisy=False),
    Row("sgd-momentum", lambda d, dtype: bdl.SGD(momentum=0.9), friction=0.1, noisy=False),
    Row("sgld", lambda d, dtype: bdl.SGLD()),
    Row("sgld-diagonal", sgld([1.5, 0.5]), scale=1.5, diagonal=(1.5, 0.5)),
    Row("sgld-dense", sgld([[1.5, 0.4], [0.4, 0.5]]), scale=1.5, diagonal=(1.5, 0.5)),
    Row("sghmc-0.01", lambda d, dtype: bdl.SGHMC(friction=0.01), friction=0.01, steps=10000),
    Row("sghmc-0.1", lambda d, dtype: bdl.SGHMC(friction=0.1), friction=0.1),
    Row("sghmc-0.5", lambda d, dtype: bdl.SGHMC(friction=0.5), friction=0.5),
    Row("sghmc-1", lambda d, dtype: bdl.SGHMC(friction=1.0), friction=1.0),
]
NOISY = [row for row in TABLE if row.noisy]
MIXING = [row for row in NOISY if row.friction >= 0.1]  # fast enough across a barrier
