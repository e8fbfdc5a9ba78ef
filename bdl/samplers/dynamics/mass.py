"""Diagonal masses, learnt in burn-in and then fixed. P is the inverse of the masses, one number per coordinate.

HMC takes the variance of a coordinate for its P (as Stan does; Carpenter et al. 2017). SGHMC takes the mean square of
its gradient for its mass. On a Gaussian that is tau times the curvature, plus the batch noise, which grows with the
curvature too; and it is known before the chain has spread. Both measure anew in windows of the steps that adapt, each
twice as long as the one before; the last is from 40 to 80 %. A window with few independent gradients is left out:
chance makes some coordinates light there, and where the stiff directions lie across the axes, light coordinates move
along them, faster than lr allows. The masses have the mean 1 over coordinates, so that lr
keeps its units: stiff coordinates keep about the mass that they had, and the others become lighter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bdl.errors import ConfigError, check_choice

Mass = Literal["unit", "diagonal"]
WINDOWS = (1, 2, 4, 8, 16, 32)  # 80ths of the adaptation at which the windows begin; they end at twice as many
BRIEFEST = 10  # independent values in a window
SHORTEST = 50  # steps of adaptation
DAMPING = 0.01  # share of the mean mass that every coordinate gets, against those whose gradients are small by chance


@dataclass
class KineticByMass:
    """State of SGHMC with masses that it learns."""

    theta: Tensor  # (..., d)
    m: Tensor  # (..., d)
    inverse_mass: Tensor  # (..., d) P
    square: Tensor  # (..., d) running mean of squared gradients
    steps: int = 0


def check_mass(mass: str, steps: int, key: str, friction: float = 1.0) -> None:
    """Raise ConfigError for an unknown mass, and for a diagonal one with too few steps to adapt in at this friction."""
    check_choice("mass", mass, ("unit", "diagonal"))
    shortest = max(SHORTEST, math.ceil(2.5 * briefest(friction)))
    if mass == "diagonal" and steps < shortest:
        at = f" at friction {friction}" if friction < 1 else ""
        raise ConfigError(f"a diagonal mass needs at least {shortest} steps to adapt in{at}, got {key} = {steps}")


def briefest(friction: float) -> int:
    """Steps of the briefest window: momenta, and with them the gradients, forget in about 1 / friction steps."""
    return math.ceil(BRIEFEST / friction)


def learn_from_gradient(s: KineticByMass, g: Tensor, adapt_steps: int, friction: float) -> Tensor | None:
    """Let the masses learn from a gradient g (..., d); at the end of a window P changes by the factor returned."""
    first, last = window(s.steps, adapt_steps, briefest(friction))
    if last == 0:
        return None
    s.square.lerp_(g.square(), 1 / (s.steps - first))
    if s.steps < last:
        return None
    usual = s.square.mean(-1, keepdim=True).clamp_min(torch.finfo(g.dtype).tiny)
    old, mass = s.inverse_mass.clone(), s.square / usual + DAMPING
    s.inverse_mass.copy_(mass.mean(-1, keepdim=True) / mass)
    return s.inverse_mass / old


def window(step: int, adapt_steps: int, least: int = BRIEFEST) -> tuple[int, int]:
    """The step before the first one of the window that holds this step, and its last step; (0, 0) outside of all."""
    edges = ((w * adapt_steps // 80, 2 * w * adapt_steps // 80) for w in WINDOWS)
    return next(((a, b) for a, b in edges if a < step <= b and b - a >= least), (0, 0))
