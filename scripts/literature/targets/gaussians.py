"""Gaussians and their mixtures, whose moments and densities are known in closed form."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from literature.targets.base import Target, double, factor, freeze

# Ji 2023, listings: (mean, covariance) of each mode. Two of the printed matrices are not symmetric; we take their upper
# triangles. Only the last case has modes far apart.
CASES = {
    1: [((0, 0), ((1, 0.8), (0.8, 10)))],
    2: [((0, 0), ((1, 0.9), (0.9, 10))), ((5, 5), ((10, -0.9), (-0.9, 10)))],
    3: [((0, 0), ((1, 0.9), (0.9, 1))), ((6, 0), ((1, -0.9), (-0.9, 1))), ((3, 3), ((1, 0.1), (0.1, 1)))],
    4: [(m, ((1, 0), (0, 1))) for m in ((0, 0), (5, 0), (5, 5), (0, 5))],
}
# Ji's starting points, one per run. For four modes his text says (5, 5) and his listing (-10, 0).
STARTS = {1: [(-10.0, 0.0)], 2: [(10.0, 0.0)], 3: [(3.0, 0.0)], 4: [(5.0, 5.0), (-10.0, 0.0)]}


@dataclass(frozen=True, eq=False, init=False)
class GaussianLaw(Target):
    """N(m, S): U(x) = (x - m)' S⁻¹ (x - m) / 2, so that the law at temperature T is N(m, T S).

    mean: m (d,). covariance: S (d, d). Raises ConfigError unless S is symmetric and positive definite.
    """

    m: Tensor  # (d,)
    s: Tensor  # (d, d)
    _root: Tensor = field(repr=False)  # (d, d) lower, root root' = S
    _precision: Tensor = field(repr=False)  # (d, d)

    def __init__(self, mean: Any, covariance: Any):
        m, s = double(mean), double(covariance)
        root = factor("covariance", s)
        freeze(self, m=m, s=s, _root=root, _precision=torch.cholesky_inverse(root))

    @property
    def dim(self) -> int:
        return len(self.m)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r = x - self.m.to(x)
        g = r @ self._precision.to(x)
        return 0.5 * torch.linalg.vecdot(g, r), g

    def mean(self) -> Tensor:
        return self.m

    def covariance(self, temperature: float = 1.0) -> Tensor:
        return temperature * self.s

    def sample(self, n: int, generator: torch.Generator | None = None, temperature: float = 1.0) -> Tensor:
        return self.m + math.sqrt(temperature) * _normal(n, self.dim, generator) @ self._root.T

    def log_prob(self, x: Tensor, temperature: float = 1.0) -> Tensor:
        log_z = 0.5 * self.dim * math.log(2 * math.pi * temperature) + self._root.diagonal().log().sum().item()
        return -self.energy(x) / temperature - log_z


@dataclass(frozen=True, eq=False)
class Mixture(Target):
    """Σ_k w_k N(m_k, S_k), normalised: U(x) = -log Σ_k w_k N(x; m_k, S_k).

    weights: w (K,) positive; they are normalised. means: (K, d). covariances: (K, d, d), or one (d, d) for all.
    Raises ConfigError unless every S_k is symmetric and positive definite.
    """

    weights: Any  # (K,)
    means: Any  # (K, d)
    covariances: Any  # (K, d, d)
    _roots: Any = field(init=False, repr=False)  # (K, d, d) lower, root root' = S
    # (d, d K) rows of all S_k⁻¹ side by side, k running fastest: one matrix product serves all modes
    _precisions: Any = field(init=False, repr=False)
    _pulls: Any = field(init=False, repr=False)  # (d, K) S_k⁻¹ m_k
    _log_scales: Any = field(init=False, repr=False)  # (K,) log w_k - log sqrt det 2π S_k

    def __post_init__(self) -> None:
        w, m, s = double(self.weights), double(self.means), double(self.covariances)
        d = m.shape[1]
        s, w = s.expand(len(m), d, d), w / w.sum()
        root = factor("covariances", s)
        log_scale = w.log() - root.diagonal(dim1=1, dim2=2).log().sum(-1) - 0.5 * d * math.log(2 * math.pi)
        precisions = torch.cholesky_inverse(root)
        columns, pulls = precisions.permute(1, 2, 0).reshape(d, -1), torch.einsum("kij,kj->ik", precisions, m)
        freeze(self, weights=w, means=m, covariances=s, _roots=root, _precisions=columns, _pulls=pulls)
        freeze(self, _log_scales=log_scale)

    @classmethod
    def case(cls, modes: int) -> Mixture:
        """The mixture of 1, 2, 3 or 4 equal modes of Ji 2023; `STARTS[modes]` holds its starting points."""
        means, covariances = zip(*CASES[modes], strict=True)
        return cls([1.0] * modes, means, covariances)

    @property
    def dim(self) -> int:
        return self.means.shape[1]

    def energy(self, x: Tensor) -> Tensor:
        return -self._log_terms(x)[0].logsumexp(-1)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        terms, scaled = self._log_terms(x)
        energy = -terms.logsumexp(-1)
        responsibility = (terms + energy.unsqueeze(-1)).exp()
        return energy, (scaled * responsibility.unsqueeze(-2)).sum(-1)

    def log_prob(self, x: Tensor) -> Tensor:
        return -self.energy(x)

    def responsibilities(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., K) probability that x came from mode k."""
        return self._log_terms(x)[0].softmax(-1)

    def mode_weights(self, samples: Tensor) -> Tensor:
        """(n, ..., d) -> (..., K) share of the n samples whose most probable mode is k."""
        nearest = self.responsibilities(samples).argmax(-1, keepdim=True)
        return (nearest == torch.arange(len(self.weights), device=samples.device)).double().mean(0)

    def mean(self) -> Tensor:
        return self.weights @ self.means

    def covariance(self) -> Tensor:
        r = self.means - self.mean()
        return torch.einsum("k,kij->ij", self.weights, self.covariances) + r.T @ (self.weights[:, None] * r)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        k = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        z = _normal(n, self.dim, generator)
        return self.means[k] + torch.einsum("nij,nj->ni", self._roots[k], z)

    def _log_terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(..., K) log w_k N(x; m_k, S_k), and (..., d, K) S_k⁻¹ (x - m_k)."""
        r = x.unsqueeze(-1) - self.means.to(x).T  # (..., d, K)
        scaled = (x @ self._precisions.to(x)).unflatten(-1, r.shape[-2:]) - self._pulls.to(x)
        return self._log_scales.to(x) - 0.5 * (r * scaled).sum(-2), scaled


def grid25() -> Mixture:
    """25 equal modes at {-4, -2, 0, 2, 4}², variance .03 (Zhang et al. 2020, section 5.1)."""
    means = list(itertools.product((-4.0, -2.0, 0.0, 2.0, 4.0), repeat=2))
    return Mixture([1.0] * 25, means, 0.03 * torch.eye(2, dtype=torch.float64))


def _normal(n: int, d: int, generator: torch.Generator | None) -> Tensor:
    return torch.randn(n, d, generator=generator, dtype=torch.float64)
