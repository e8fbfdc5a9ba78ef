"""Laws of one or two dimensions, integrated on a grid."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from literature.targets.base import double


@dataclass(frozen=True, eq=False)
class Quadrature:
    """exp(-U/T) / Z on a box of n cells, by the midpoint rule.

    For a smooth law that vanishes at the faces of the box the error falls faster than any power of the cell width,
    otherwise with its square. `cdf` and `sample` treat the density as constant within a cell.
    """

    nodes: Tensor  # (n, d) midpoints; the last axis runs fastest
    energies: Tensor  # (n,) U at the nodes, nats
    mass: Tensor  # (n,) probability of each cell
    widths: Tensor  # (d,)
    shape: tuple[int, ...]  # cells per axis
    log_z: float  # log of the integral of exp(-U/T) over the box

    def expect(self, values: Tensor) -> Tensor:
        """(n, ...) values at the nodes -> (...) their expectation."""
        return torch.einsum("n,n...->...", self.mass, values.to(self.mass))

    def mean(self) -> Tensor:
        return self.expect(self.nodes)

    def covariance(self) -> Tensor:
        r = self.nodes - self.mean()
        return r.T @ (self.mass[:, None] * r)

    def density(self) -> Tensor:
        """(*shape) at the nodes."""
        return (self.mass / self.widths.prod()).reshape(self.shape)

    def cdf(self, x: Any) -> Tensor:
        """P(X <= x) of a one-dimensional law at x (...)."""
        position = ((double(x) - self.nodes[0, 0]) / self.widths[0] + 0.5).clamp(0, len(self.mass))
        cell = position.long().clamp_max(len(self.mass) - 1)
        below = self.mass.cumsum(0) - self.mass
        return below[cell] + (position - cell) * self.mass[cell]

    def energy_cdf(self, u: Any) -> Tensor:
        """G(u) = P(U(X) <= u) at the energies u (...), nats."""
        ordered, order = self.energies.sort()
        below = torch.cat([self.mass.new_zeros(1), self.mass[order].cumsum(0)])
        return below[torch.searchsorted(ordered, double(u), right=True)]

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, d) independent draws."""
        cell = torch.multinomial(self.mass, n, replacement=True, generator=generator)
        shift = torch.rand(n, len(self.widths), generator=generator, dtype=self.mass.dtype) - 0.5
        return self.nodes[cell] + shift * self.widths


def integrate(target: Any, low: Any, high: Any, points: int, temperature: float = 1.0) -> Quadrature:
    """The law of a target on the box [low, high], numbers or (d,), with `points` cells along each axis."""
    low, high = double(low).expand(target.dim), double(high).expand(target.dim)
    widths = (high - low) / points
    steps = torch.arange(points, dtype=torch.float64) + 0.5
    axes = [a + w * steps for a, w in zip(low, widths, strict=True)]
    nodes = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, target.dim)
    energies = target.energy(nodes)
    log_mass = -energies / temperature + widths.log().sum()
    log_z = log_mass.logsumexp(0)
    return Quadrature(nodes, energies, (log_mass - log_z).exp(), widths, (points,) * target.dim, log_z.item())
