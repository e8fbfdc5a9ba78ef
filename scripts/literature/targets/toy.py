"""A line through thirty points with unknown noise, under a uniform prior."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from bdl.errors import ConfigError
from bdl.seeding import generator
from literature.targets.base import DataTarget, double
from literature.targets.normal_inverse_gamma import NormalInverseGamma
from literature.targets.regression import design, least_squares, mean_squares

LINKS = {  # s = link(r): link, its inverse, log |ds/dr|, ds/dr, d log |ds/dr| / dr
    "abs": (torch.abs, lambda s: s, torch.zeros_like, torch.sign, torch.zeros_like),
    "log": (torch.exp, torch.log, lambda r: r, torch.exp, torch.ones_like),
    "softplus": (
        softplus,
        lambda s: s + torch.log(-torch.expm1(-s)),
        logsigmoid,
        torch.sigmoid,
        lambda r: (-r).sigmoid(),
    ),
}


def simulate_toy(n: int = 30, noise: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """x (n,) standard normal and y (n,) = -1 + 2 x + N(0, noise²).

    n and noise are those of the Lightning post, which does not say how it draws x.
    """
    stream = generator("cpu", "toy", seed)
    x = torch.randn(n, generator=stream, dtype=torch.float64)
    return x, -1 + 2 * x + noise * torch.randn(n, generator=stream, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class ToyRegression(DataTarget):
    """y_i ~ N(b0 + b1 x_i, s²) with a uniform prior on (b0, b1, s), s > 0, as a law of (b0, b1, r), s = link(r).

        U = n log s + Σ_i (y_i - b0 - b1 x_i)² / (2 s²) + n/2 log 2π - log |ds/dr|

    link "abs": s = |r|, as in the Lightning post, which gives a law symmetric in r; "log": s = exp(r); "softplus":
    s = log(1 + exp r). All three are the same law of (b, s). The prior is improper; the posterior is proper for n > 3.
    U is -log p(y | b, s) - log |ds/dr|.
    """

    x: Any  # (n,)
    y: Any  # (n,)
    link: str = "log"
    dim: int = 3
    X: Any = field(init=False, repr=False)  # (n, 2) an intercept and x
    gram: Any = field(init=False, repr=False)  # (2, 2) X'X
    fit: Any = field(init=False, repr=False)  # (2,) least squares
    rss: Any = field(init=False, repr=False)  # () |y - X fit|²

    def __post_init__(self) -> None:
        if self.link not in LINKS:
            raise ConfigError(f"link must be one of {list(LINKS)}, got {self.link!r}")
        x = double(self.x)
        X, y = design(torch.stack([torch.ones_like(x), x], -1), self.y)
        if len(y) < 4 or self.dim != 3:
            raise ConfigError(f"a uniform prior needs at least 4 points and dim 3, got {len(y)} and {self.dim}")
        gram, fit, rss = least_squares(X, y)
        for name, value in {"x": x, "y": y, "X": X, "gram": gram, "fit": fit, "rss": rss}.items():
            object.__setattr__(self, name, value)

    @property
    def num_data(self) -> int:
        return len(self.y)

    def noise(self, x: Tensor) -> Tensor:
        """(..., 3) -> (...,) s."""
        return LINKS[self.link][0](x[..., 2])

    def loss(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        return self.loss_and_grad(x, index)[0]

    def loss_and_grad(self, x: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        link, _, log_jacobian, slope, bend = LINKS[self.link]
        r, n = x[..., 2], self.num_data
        s = link(r)
        squares, pull = mean_squares(self, x[..., :2], index)
        ratio = squares / s.square()
        loss = s.log() + 0.5 * ratio + 0.5 * math.log(2 * math.pi) - log_jacobian(r) / n
        grad_r = (1 - ratio) / s * slope(r) - bend(r) / n
        return loss, torch.cat([pull / s.square()[..., None], grad_r[..., None]], -1)

    def posterior(self) -> NormalInverseGamma:
        """The law of (b, s²): N(fit, s² (X'X)⁻¹) and IG((n - 3) / 2, rss / 2)."""
        shape, rate = 0.5 * (self.num_data - 3), 0.5 * self.rss.item()
        return NormalInverseGamma(self.fit, torch.linalg.inv(self.gram), shape, rate)

    def mean(self) -> Tensor:
        return torch.cat([self.posterior().location, self._link_moment(1)[None]])

    def covariance(self) -> Tensor:
        variance = self._link_moment(2) - self._link_moment(1) ** 2
        return torch.block_diag(self.posterior().covariance()[:2, :2], variance.reshape(1, 1))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        draws = self.posterior().sample(n, generator)
        draws[:, 2] = LINKS[self.link][1]((draws[:, 2] / 2).exp())
        if self.link == "abs":
            draws[:, 2] *= torch.randint(2, (n,), generator=generator) * 2 - 1
        return draws

    def log_prob(self, x: Tensor) -> Tensor:
        """Normalised; b | s and s of the posterior give Z in closed form."""
        p = self.posterior()
        log_z = (1 - 0.5 * self.num_data) * math.log(2 * math.pi) + 0.5 * torch.logdet(p.scale).item()
        log_z += math.lgamma(p.shape) - p.shape * math.log(p.rate)  # integral over (b, s²) at density 1 / s
        return -self.energy(x) - log_z + (0.0 if self.link == "abs" else math.log(2.0))

    def _link_moment(self, power: int) -> Tensor:
        """E r^power, by quadrature over c = log s²."""
        if self.link == "abs" and power == 1:
            return torch.zeros((), dtype=torch.float64)
        p = self.posterior()
        reach = 40 * p.covariance()[2, 2].sqrt()
        c = p.mean()[2] + torch.linspace(-1, 1, 20_001, dtype=torch.float64) * reach
        density = (-p.shape * c - p.rate * (-c).exp() + p.shape * math.log(p.rate) - math.lgamma(p.shape)).exp()
        r = LINKS[self.link][1]((c / 2).exp())
        return (density * r**power).sum() * (c[1] - c[0])
