"""The mixture on which Welling and Teh (2011) showed SGLD."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bdl.seeding import generator
from literature.targets.base import DataTarget, double, freeze


def simulate_welling_teh(n: int = 100, theta: tuple[float, float] = (0.0, 1.0), seed: int = 13) -> Tensor:
    """(n,) draws from N(θ1, 2) / 2 + N(θ1 + θ2, 2) / 2; n and θ as in the paper.

    Few such data sets give two clear modes as in the paper's figure 1: for half of the seeds below 25 no barrier
    exceeds .1 nats. Seed 13 has modes close to (0, 1) and (1, -1).
    """
    stream = generator("cpu", "welling_teh", seed)
    second = torch.rand(n, generator=stream, dtype=torch.float64) < 0.5
    z = torch.randn(n, generator=stream, dtype=torch.float64)
    return theta[0] + theta[1] * second + math.sqrt(2) * z


@dataclass(frozen=True, eq=False)
class WellingTeh(DataTarget):
    """Mixture of Gaussians with tied means (Welling and Teh 2011, section 5.1).

        θ1 ~ N(0, 10),    θ2 ~ N(0, 1),    x_i ~ N(θ1, 2) / 2 + N(θ1 + θ2, 2) / 2    (variances)

    x (n,) holds 100 draws at θ = (0, 1) unless given. The posterior then has modes at (-.10, 1.14) and (1.03, -1.13)
    and a barrier of .6 nats between them. U is -log p(x, θ) with all constants.
    """

    x: Any = None  # (n,)
    dim: int = 2

    def __post_init__(self) -> None:
        freeze(self, x=simulate_welling_teh() if self.x is None else double(self.x))

    @property
    def num_data(self) -> int:
        return len(self.x)

    def loss(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        first, odds = self._residuals(x, index)
        log_p = softplus(odds) - 0.25 * first.square() - math.log(2) - 0.5 * math.log(4 * math.pi)
        log_prior = -0.5 * (x.square() @ _precisions(x)) - math.log(2 * math.pi) - 0.5 * math.log(10)
        return -log_p.mean(-1) - log_prior / self.num_data

    def _residuals(self, x: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor]:
        """(..., B) residuals x_i - θ1, and (..., B) log odds of the second component."""
        data = self.x.to(x) if index is None else self.x.to(x)[index]
        first = data - x[..., :1]
        return first, 0.25 * x[..., 1:] * (2 * first - x[..., 1:])


def _precisions(x: Tensor) -> Tensor:
    """(2,) precisions of the prior."""
    return x.new_tensor([0.1, 1.0])
