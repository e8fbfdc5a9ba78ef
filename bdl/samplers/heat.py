"""How much mini-batches heat a chain, as shares of its temperature."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bdl.samplers.weighting.reweighting import any_positive

if TYPE_CHECKING:
    from bdl.samplers.sampler import Sampler


def batch_share(sampler: Sampler, what: Literal["noise_ratio", "heating"]) -> Tensor:
    """() or (C,) mean over coordinates of the noise ratio, or of T_eff/T - 1; NaN where unknown."""
    theta, dynamics = sampler._flat.theta, sampler.dynamics
    lead = sampler._flat.lead
    if sampler.is_kernel:  # no batches, no heat
        return torch.zeros(lead, device=theta.device)
    grad_var, (lr, temperature, _) = sampler._noise.variance, sampler._numbers()
    if grad_var is not None:  # of the gradient as it is stepped with
        grad_var = grad_var * sampler._reweighting.multiplier.to(grad_var).view(*lead, 1).square()
    if grad_var is None or not getattr(dynamics, "noisy", True) or not any_positive(temperature):
        return torch.full(lead, math.nan, device=theta.device)
    lr, tau = sampler._column(lr), sampler._column(temperature) / sampler.num_data
    own = getattr(dynamics, what, None) or getattr(dynamics, "noise_ratio", None)
    if own is not None:
        return own(sampler._state, grad_var, lr, tau).mean(-1)
    return (lr * grad_var / (2 * getattr(dynamics, "friction", 1.0) * tau)).mean(-1)
