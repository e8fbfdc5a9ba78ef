"""Diagonal masses, learnt from the spread of θ in burn-in and then fixed.

The inverse mass P of a coordinate is its variance, which makes all coordinates oscillate equally fast. It is measured
anew in windows of the steps that adapt, each twice as long as the one before; the last is from 40 to 80 % (the scheme
of Stan; Carpenter et al. 2017). With each window a chain goes further along its wide coordinates, so that short windows
at the start pay. The masses 1/P have the mean 1 over coordinates, so that lr keeps its units: stiff coordinates keep
about the mass that they had, and the others become lighter.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from bdl.errors import ConfigError

Mass = Literal["unit", "diagonal"]
WINDOWS = (1, 2, 4, 8, 16, 32)  # 80ths of the adaptation at which the windows begin; they end at twice as many
BRIEFEST = 10  # steps of a window
PRIOR = 5  # steps for which the harmonic mean of all variances counts, against chance in short windows
SHORTEST = 50  # steps of adaptation


class Weighed(Protocol):
    """The fields of a state that learns masses."""

    theta: Tensor  # (..., d)
    inverse_mass: Tensor  # (..., d) P
    mean: Tensor  # (..., d) running mean of θ in the present window
    square: Tensor  # (..., d) and its sum of squared deviations
    steps: int  # so far


def check_mass(mass: str, steps: int, key: str) -> None:
    """Raise ConfigError for an unknown mass, and for a diagonal one that has too few steps to adapt in."""
    if mass not in ("unit", "diagonal"):
        raise ConfigError(f'mass must be "unit" or "diagonal", got {mass!r}')
    if mass == "diagonal" and steps < SHORTEST:
        raise ConfigError(f"a diagonal mass needs at least {SHORTEST} steps to adapt in, got {key} = {steps}")


def learn_mass(s: Weighed, adapt_steps: int) -> Tensor | None:
    """Let the masses learn from the present θ; at the end of a window, P changes by the factor (..., d) returned."""
    first, last = window(s.steps, adapt_steps)
    if last - first < BRIEFEST:
        return None
    n = s.steps - first
    if n == 1:
        s.mean.zero_()
        s.square.zero_()
    change = s.theta - s.mean
    s.mean.add_(change, alpha=1 / n)
    s.square.addcmul_(change, s.theta - s.mean)
    if s.steps < last:
        return None
    old = s.inverse_mass.clone()
    s.inverse_mass.copy_(inverse_mass(s.square / (n - 1), n, old))
    return s.inverse_mass / old


def window(step: int, adapt_steps: int) -> tuple[int, int]:
    """The step before the first one of the window that holds this step, and its last step; (0, 0) outside of all."""
    edges = ((w * adapt_steps // 80, 2 * w * adapt_steps // 80) for w in WINDOWS)
    return next(((first, last) for first, last in edges if first < step <= last), (0, 0))


def inverse_mass(variance: Tensor, n: int, old: Tensor) -> Tensor:
    """(..., d) P from the variances of n steps: in proportion to them, and with masses of mean 1.

    A chain that has not moved keeps its old P.
    """
    moved = variance > 0
    usual = moved.sum(-1, keepdim=True) / torch.where(moved, 1 / variance, 0).sum(-1, keepdim=True)
    shrunk = (n * variance + PRIOR * usual) / (n + PRIOR)
    return torch.where(moved.any(-1, keepdim=True), shrunk * (1 / shrunk).mean(-1, keepdim=True), old)
