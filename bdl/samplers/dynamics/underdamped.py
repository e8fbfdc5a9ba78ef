"""Underdamped: what dynamics of second order share whose momentum is a displacement."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.dynamics.base import Dynamics, Kinetic, Scalar, varies


class Underdamped(Dynamics):
    """A dynamics with a momentum `m`, a displacement, whose variance is 2 lr tau P / (2 - a); a = `friction`.

    P is the inverse of the masses, 1 unless a subclass has others. Raises ConfigError for a friction outside (0, 1].
    """

    friction: float
    travels = ("theta", "m")
    per_coordinate = True
    tunable = frozenset(["lr", "friction"])

    def __post_init__(self) -> None:
        a = self.friction
        if not 0 < a <= 1:
            raise ConfigError(f"friction must be in (0, 1], got {a} (friction = 1 - momentum; 0.1 is usual)")

    def init(self, theta: Tensor) -> Any:
        return Kinetic(theta, torch.zeros_like(theta))

    def inverse_mass(self, s: Any) -> Tensor | None:
        """(..., d) P; None for 1."""
        return None

    def present_friction(self, s: Any) -> Scalar:
        """a, or (..., 1) the friction of every chain where it adapts."""
        return self.friction

    def kinetic_tau(self, s: Any, lr: Scalar) -> Tensor:
        """(...,) |m|² (2 - a) / (2 lr P d), whose expectation is tau as lr -> 0."""
        P, a = self.inverse_mass(s), self.present_friction(s)
        square = (s.m if P is None else s.m / P.sqrt()).square()
        if varies(lr):
            return (square / lr).mean(-1, keepdim=True).mul(1 - a / 2).squeeze(-1)
        return square.mean(-1, keepdim=True).mul(1 - a / 2).div(lr).squeeze(-1)

    def after_swap(self, s: Any, order: Tensor, g: Tensor, lr: Scalar, temperature: Tensor) -> None:
        rescale_swapped_momentum(s.m, order, g, self.friction, lr, temperature, self.inverse_mass(s))


def rescale_swapped_momentum(
    m: Tensor, order: Tensor, g: Tensor, a: float, lr: Scalar, temperature: Tensor, inverse_mass: Tensor | None = None
) -> None:
    """Rescale swapped displacements m (C, d) in place: Var m is proportional to lr P T, P = `inverse_mass` (C, d) or 1.

    Chain c, which receives the momentum of chain o, scales it by sqrt(lr_c P_c T_c / (lr_o P_o T_o)). It does so in the
    middle of the coming kick -lr P g, where momentum and position are independent: half of the kick, lr P g / (2 - a),
    is taken off before and added back after.
    """
    half = g / (2 - a)
    lr = lr.to(temperature, non_blocking=True) if isinstance(lr, Tensor) else torch.full_like(temperature, lr)
    lr, temperature = lr.expand_as(temperature).unsqueeze(1), temperature.unsqueeze(1)
    lr = lr if inverse_mass is None else lr * inverse_mass
    scale = ((lr * temperature) / (lr * temperature)[order]).sqrt()
    m.sub_(half * lr[order].to(m)).mul_(scale.to(m)).add_(half * lr.to(m))
