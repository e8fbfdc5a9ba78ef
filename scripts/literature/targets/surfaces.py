"""A rugged surface in two dimensions with hundreds of minima."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from literature.targets.base import Target
from literature.targets.quadrature import Quadrature, integrate


@dataclass(frozen=True)
class RuggedSurface(Target):
    """The multimodal surface of Robert and Casella (2004, example 5.5), used at T = 20 in Liang 2024.

        U(x) = -(x1 sin 20 x2 + x2 sin 20 x1)² cosh(x1 sin 10 x1) - (x1 cos 10 x2 - x2 sin 10 x1)² cosh(x2 cos 20 x2)

    U is unbounded below, so exp(-U/T) is a law only on a box |x_i| <= r; r = `half_width`. In the usual box, r = 1.1,
    the lowest energy is -8.12465, at (±1.0445, -1.0084), and T = 20 makes the law almost uniform. The slides name no
    box; their T suits a wider one. `energy` ignores the box; pass `box` to `Chains`.
    """

    half_width: float = 1.1
    dim: int = 2
    temperature: ClassVar[float] = 20.0  # Liang 2024

    @property
    def box(self) -> tuple[float, float]:
        return -self.half_width, self.half_width

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x1, x2 = x.unbind(-1)
        s1, c1, s2, c2 = (10 * x1).sin(), (10 * x1).cos(), (10 * x2).sin(), (10 * x2).cos()
        S1, C1, S2, C2 = 2 * s1 * c1, 1 - 2 * s1 * s1, 2 * s2 * c2, 1 - 2 * s2 * s2  # sines and cosines of 20 x
        a, b = x1 * S2 + x2 * S1, x1 * c2 - x2 * s1
        p, q = x1 * s1, x2 * C2
        cosh_p, cosh_q = p.cosh(), q.cosh()
        energy = -a * a * cosh_p - b * b * cosh_q
        u1 = 2 * a * (S2 + 20 * x2 * C1) * cosh_p + a * a * p.sinh() * (s1 + 10 * x1 * c1)
        u2 = 2 * a * (20 * x1 * C2 + S1) * cosh_p
        u1 = u1 + 2 * b * (c2 - 10 * x2 * c1) * cosh_q
        u2 = u2 - 2 * b * (10 * x1 * s2 + s1) * cosh_q + b * b * q.sinh() * (C2 - 20 * x2 * S2)
        return energy, -torch.stack([u1, u2], -1)

    def quadrature(self, temperature: float = 1.0, points: int = 1000) -> Quadrature:
        """The law on its box."""
        return integrate(self, *self.box, points, temperature)
