"""Laws that no single step size suits: banana, funnel, double well."""

import math
from dataclasses import dataclass

import torch
from literature.targets.base import Target
from literature.targets.quadrature import Quadrature, integrate
from torch import Tensor


@dataclass(frozen=True)
class Banana(Target):
    """Twisted Gaussian (Haario, Saksman and Tamminen 1999).

        x1 = s z1,    x2 = z2 - b (x1² - s²),    x3 = z3, ...
        U(x) = x1² / (2 s²) + (x2 + b (x1² - s²))² / 2 + Σ_{i>2} x_i² / 2

    b = bend, s = scale. The twist preserves volume, so the law at temperature T has the same form with z ~ N(0, T).
    The paper has s = 10 with b = .03 (moderate) or .1 (strong).
    """

    dim: int = 2
    bend: float = 0.1
    scale: float = 3.0

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        b, s = self.bend, self.scale
        x1, rest = x[..., :1], x[..., 1:]
        y = torch.cat([rest[..., :1] + b * (x1.square() - s**2), rest[..., 1:]], -1)
        energy = 0.5 * (x1.square().squeeze(-1) / s**2 + y.square().sum(-1))
        return energy, torch.cat([x1 / s**2 + 2 * b * x1 * y[..., :1], y], -1)

    def mean(self, temperature: float = 1.0) -> Tensor:
        mean = torch.zeros(self.dim, dtype=torch.float64)
        mean[1] = self.bend * self.scale**2 * (1 - temperature)
        return mean

    def covariance(self, temperature: float = 1.0) -> Tensor:
        """x1 and x2 are uncorrelated; Var x2 = T + 2 b² s⁴ T²."""
        variance = torch.full((self.dim,), temperature, dtype=torch.float64)
        variance[0] *= self.scale**2
        variance[1] += 2 * (self.bend * self.scale**2 * temperature) ** 2
        return variance.diag()

    def sample(self, n: int, generator: torch.Generator | None = None, temperature: float = 1.0) -> Tensor:
        x = math.sqrt(temperature) * torch.randn(n, self.dim, generator=generator, dtype=torch.float64)
        x[:, 0] *= self.scale
        x[:, 1] -= self.bend * (x[:, 0].square() - self.scale**2)
        return x


@dataclass(frozen=True)
class Funnel(Target):
    """Neal's funnel (Neal 2003, section 8), normalised.

        v ~ N(0, s²),    x_i | v ~ N(0, exp(v)),    x = (v, x_1, ..., x_{d-1})
        U(x) = v² / (2 s²) + Σ_i x_i² exp(-v) / 2 + (d - 1) v / 2 + log s + d log(2π) / 2

    s = scale, 3 in the paper, with d = 10.
    """

    dim: int = 10
    scale: float = 3.0

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        v, rest, n = x[..., 0], x[..., 1:], self.dim - 1
        scaled = rest * (-v).exp().unsqueeze(-1)
        half = 0.5 * torch.linalg.vecdot(rest, scaled)
        constant = math.log(self.scale) + 0.5 * self.dim * math.log(2 * math.pi)
        energy = 0.5 * v.square() / self.scale**2 + half + 0.5 * n * v + constant
        return energy, torch.cat([(v / self.scale**2 - half + 0.5 * n).unsqueeze(-1), scaled], -1)

    def mean(self) -> Tensor:
        return torch.zeros(self.dim, dtype=torch.float64)

    def covariance(self) -> Tensor:
        variance = torch.full((self.dim,), math.exp(self.scale**2 / 2), dtype=torch.float64)
        variance[0] = self.scale**2
        return variance.diag()

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        x = torch.randn(n, self.dim, generator=generator, dtype=torch.float64)
        x[:, 0] *= self.scale
        x[:, 1:] *= (x[:, :1] / 2).exp()
        return x


@dataclass(frozen=True)
class DoubleWell(Target):
    """One dimension, two wells near -1 and 1: U(x) = h (x² - 1)² + t x.

    h = height of the barrier between equal wells, nats; t = tilt, which makes one well 2t nats deeper. A quadrature
    gives the moments, the draws and the normalising constant at any temperature.
    """

    height: float = 4.0
    tilt: float = 0.0
    dim: int = 1

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r = x.square() - 1
        return (self.height * r.square() + self.tilt * x).squeeze(-1), 4 * self.height * r * x + self.tilt

    def quadrature(self, temperature: float = 1.0, points: int = 20_000) -> Quadrature:
        """The law on an interval beyond which the density is below exp(-80) times the density at 0."""
        reach = 2.0
        while self.height * (reach**2 - 1) ** 2 - self.height - abs(self.tilt) * reach < 80 * temperature:
            reach *= 1.1
        return integrate(self, -reach, reach, points, temperature)

    def mean(self, temperature: float = 1.0) -> Tensor:
        return self.quadrature(temperature).mean()

    def covariance(self, temperature: float = 1.0) -> Tensor:
        return self.quadrature(temperature).covariance()

    def cdf(self, x: Tensor, temperature: float = 1.0) -> Tensor:
        return self.quadrature(temperature).cdf(x)

    def sample(self, n: int, generator: torch.Generator | None = None, temperature: float = 1.0) -> Tensor:
        return self.quadrature(temperature).sample(n, generator)
