"""How much mini-batches heat a chain, as shares of its temperature."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.chain import Chain
from bdl.samplers.settings import Settings
from bdl.samplers.weighting.reweighting import Reweighting


def batch_share(
    chain: Chain,
    batch_noise: BatchNoise,
    reweighting: Reweighting,
    now: Settings,
    num_data: int,
    terms: Callable[..., Tensor],
) -> Tensor:
    """() or (C,) mean over coordinates of `terms`: the noise ratio, or T_eff/T - 1. NaN where it is unknown.

    terms: `noise_ratio` or `heating` of the chain's dynamics.
    """
    device = chain.theta.device
    if chain.dynamics.full_batch or batch_noise.absent:
        return torch.zeros(chain.lead, device=device)
    variance = batch_noise.variance
    if variance is None or not chain.dynamics.noisy or not now.samples:
        return torch.full(chain.lead, torch.nan, device=device)
    multiplier = reweighting.multiplier.to(variance).view(*chain.lead, 1)
    variance = variance * multiplier.square()  # Var(w g) = w² Var(g)
    lr, tau = chain.per_coordinate(now.lr, now.temperature, num_data)
    return terms(chain.state, variance, lr, tau).mean(-1)
