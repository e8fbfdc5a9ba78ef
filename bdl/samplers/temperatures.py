"""Temperatures: how hot the chains of a sampler are, by the noise of batches and by their momenta."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdl.devices import moved
from bdl.samplers.batch_noise import BatchNoise
from bdl.samplers.chain import Chain
from bdl.samplers.dynamics.base import Scalar, mean
from bdl.samplers.settings import StepSettings
from bdl.samplers.weighting.reweighting import Reweighting


@dataclass(eq=False)
class ChainTemperatures:
    """What a sampler measures of the temperature of its chains; () or (C,) each, at the numbers of a step."""

    chain: Chain
    batch_noise: BatchNoise
    reweighting: Reweighting
    num_data: int

    def noise_ratio(self, now: StepSettings) -> Tensor:
        """Mean over coordinates of lr Var(g) / (2 a tau), batch noise over injected noise."""
        return self._share(self.chain.dynamics.noise_ratio, now)

    def effective(self, now: StepSettings) -> Tensor:
        """T (1 + noise_ratio), less what the dynamics subtracts or absorbs."""
        share, t = self._share(self.chain.dynamics.heating, now), now.temperature
        return (moved(t, share.device, non_blocking=True) if isinstance(t, Tensor) else t) * (1 + share)

    def kinetic(self, now: StepSettings) -> Tensor:
        """What the momenta show; NaN without momenta."""
        lr, _ = self.chain.per_coordinate(now.lr, 1.0, 1)
        return self.num_data * self.chain.dynamics.kinetic_tau(self.chain.state, lr)

    def explain(self, now: StepSettings, chains: list[int]) -> str:
        """The sentence of `Sampler.explain` on batch noise, for the mean of these chains."""
        target = chains if self.chain.lead else ...
        ratio = mean(self.noise_ratio(now)[target])
        if ratio != ratio:
            return "batch noise: not measured yet; unless subtracted, it heats the chain to T_eff = T (1 + noise_ratio)"
        t_eff = mean(self.effective(now)[target])
        return f"batch noise: noise_ratio {ratio:.3g}; T_eff, the mean over directions, is about {t_eff:.3g}"

    def _share(self, terms: Callable[..., Tensor], now: StepSettings) -> Tensor:
        """Mean over coordinates of the dynamics' `noise_ratio` or `heating`; NaN where it is unknown."""
        chain, variance = self.chain, self.batch_noise.variance
        if chain.sees_all_data:
            return torch.zeros(chain.lead, device=chain.theta.device)
        if variance is None or not chain.dynamics.noisy or not now.samples:
            return torch.full(chain.lead, torch.nan, device=chain.theta.device)
        multiplier = self.reweighting.multiplier.to(variance).view(*chain.lead, 1)
        lr, tau = chain.per_coordinate(now.lr, now.temperature, self.num_data)
        state, lr = self._thinned(lr)
        weighted = chain.host.of_one_batch(variance) * multiplier.square()  # Var(w g) = w² Var(g)
        return terms(state, weighted, lr, tau).mean(-1)

    def _thinned(self, lr: Scalar) -> tuple[Any, Scalar]:
        """The state, and lr as `Chain.per_coordinate` gives it, of every coordinate that the batch noise follows."""
        chain, stride = self.chain, self.batch_noise.stride
        if stride == 1:
            return chain.state, lr
        fields = {name: getattr(chain.state, name)[..., ::stride] for name in chain.vector_fields()}
        of_each = isinstance(lr, Tensor) and lr.ndim > 0 and lr.shape[-1] == chain.theta.shape[-1] > 1
        return replace(chain.state, **fields), lr[..., ::stride] if of_each else lr  # type: ignore[index]
