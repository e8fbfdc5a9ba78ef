"""Draws of θ from a proper prior."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.prior import Prior
from bdl.samplers.priors import Gaussian, Laplace, ScaleMixture, StudentT


def draw_from(prior: Prior, d: int, random: torch.Generator) -> Tensor:
    """θ (d,) from a bound prior. Raises ConfigError for one that is improper or learned, which no number stands for."""
    z = torch.randn(d, generator=random)
    if isinstance(prior, Gaussian) and bool((torch.as_tensor(prior.precision) > 0).all()):
        return prior.mean + z / torch.as_tensor(prior.precision).sqrt()
    if isinstance(prior, Laplace):
        exponential = -torch.rand(d, generator=random).clamp_min(1e-30).log()
        return prior.mean + prior.scale * z.sign() * exponential
    if isinstance(prior, StudentT):
        numpy = np.random.default_rng(int(torch.randint(2**62, (), generator=random)))
        return prior.mean + prior.scale * z / torch.from_numpy(numpy.chisquare(prior.df, d) / prior.df).sqrt().to(z)
    if isinstance(prior, ScaleMixture):
        wide = torch.rand(d, generator=random) < prior.share
        return z * torch.where(wide, prior.wide, prior.narrow)
    raise ConfigError(f"the prior ({prior}) cannot be drawn from: origin=posterior takes kept networks in its place")
