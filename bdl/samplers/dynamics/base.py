"""What every dynamics is: its state, its step, and what it says of itself.

Dynamics are discretised SDEs, functions `(state, g, lr, tau, z) -> state` on flat arrays `(..., d)`.
Leading axes are chains. `g` is the gradient of U/N, `lr` a step in SGD's units, `tau = T/N`, `z` standard normal, all
as in the module docstring of `bdl.samplers`. `lr` and `tau` are floats or `(C, 1)` tensors. A dynamics owns its state
and may overwrite state, g and z in place; it never draws random numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from bdl.errors import ConfigError

Scalar = float | Tensor  # a float, or a (C, 1) tensor with one value per chain


@dataclass
class Position:
    """State of a first-order dynamics."""

    theta: Tensor  # (..., d)


@dataclass
class Kinetic:
    """State of a second-order dynamics. What unit `m` has is said by the dynamics."""

    theta: Tensor  # (..., d)
    m: Tensor  # (..., d)


@dataclass
class Thermostatted:
    """State of a second-order dynamics with a friction per chain that adapts."""

    theta: Tensor  # (..., d)
    m: Tensor  # (..., d)
    xi: Tensor  # (...)


@runtime_checkable
class Dynamics(Protocol):
    """What the shell asks of a dynamics. A momentum in its state is `m`, a displacement that replica exchange
    rescales.

    It may also have
        needs: names of what it needs besides a gradient; `step` then has one more argument, `extra`, a dict with them
            (see `Sampler.extras`).
        noisy: False for an optimiser: tau and z are ignored.
        friction: 1 where absent.
        noise_ratio(s, grad_var, lr, tau): where lr Var(g) / (2 friction tau) is not right.
        heating(s, grad_var, lr, tau): where T_eff/T - 1 is not the noise ratio.
        kinetic_tau(s, lr): the tau that momenta show.
        caveat: one line, for `explain()`, on how its law differs from exp(-U/T).
    """

    def init(self, theta: Tensor) -> Any: ...

    def step(self, s: Any, g: Tensor, lr: Scalar, tau: Scalar, z: Tensor) -> Any: ...


def add_(x: Tensor, c: Scalar, y: Tensor) -> Tensor:
    """x += c y in place, in one kernel for a float c."""
    return x.addcmul_(y, c) if isinstance(c, Tensor) else x.add_(y, alpha=c)


def root(c: Scalar) -> Scalar:
    return c.sqrt() if isinstance(c, Tensor) else math.sqrt(c)


def inject_(x: Tensor, variance: Scalar, z: Tensor, brought: Tensor | None = None) -> Tensor:
    """x += sqrt(variance) z in place, less the variance that the batches have brought already, if that is known."""
    if brought is None:
        return add_(x, root(variance), z)
    return x.addcmul_(z, (variance - brought).clamp_min_(0).sqrt_())


def check_friction(friction: float) -> None:
    if not 0 < friction <= 1:
        raise ConfigError(f"friction must be in (0, 1], got {friction} (friction = 1 - momentum; 0.1 is usual)")
