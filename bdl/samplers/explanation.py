"""Explanation: what a sampler says of itself to people, and the plain values by which checkpoints and runs know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bdl.display import count_of
from bdl.identity import identity
from bdl.samplers.chain import Chain
from bdl.samplers.dynamics.base import mean
from bdl.samplers.exchange import Replicas
from bdl.samplers.potential import Potential
from bdl.samplers.priors.scales import runs_of
from bdl.samplers.settings import StepSettings
from bdl.samplers.weighting.learnt import explained
from bdl.samplers.weighting.reweighting import Reweighting


@dataclass(eq=False)
class Explanation:
    """Reads the pieces of a sampler. control: how it estimates gradients, None for those of batches as they are."""

    chain: Chain
    potential: Potential
    reweighting: Reweighting
    replicas: Replicas | None
    control: Any

    def lines(self, now: StepSettings, heat: list[str]) -> list[str]:
        """N, T, prior, the target distribution, the noise of one step, what adds to it. heat: on batch noise."""
        chain, potential, dynamics = self.chain, self.potential, self.chain.dynamics
        chains = count_of(chain.chains or 1, "chain")
        lines = [
            f"{dynamics} on {count_of(chain.theta.shape[-1], 'parameter')}, {chains}, N = {potential.num_data:,}, "
            f"lr = {mean(now.lr):g}, T = {mean(now.temperature):g}",
            f"prior: {potential.prior}; U = N x mean batch loss - log prior, in nats "
            "(the loss must be a mean negative log-likelihood)",
        ]
        if not dynamics.noisy or mean(now.temperature) == 0:
            lines.append("target distribution: none, this is optimisation: no noise is injected and T is ignored")
        else:
            lines += [self._target(now), *explained(self.reweighting, now)]
            lines += [dynamics.describe_noise(chain.state, now.lr, now.temperature / potential.num_data)]
            lines += [] if dynamics.full_batch or dynamics.variational else heat
        if dynamics.caveat:
            lines.append(f"caveat: {dynamics.caveat}")
        if self.replicas is not None:
            lines.append(self.replicas.describe())
        if potential.clip is not None:
            lines.append(f"gradient clipping: {potential.clip}; where it acts, another distribution is sampled")
        return lines

    def shown(self, now: StepSettings) -> tuple[str, Mapping[str, str]]:
        """See `bdl.display.Shown`."""
        chain, weighting, clip = self.chain, self.reweighting.weighting, self.potential.clip
        lines = {
            "step": f"{chain.steps:,}",
            "chains": f"{chain.chains or 1}, of {count_of(chain.theta.shape[-1], 'parameter')}",
            "target": f"exp(-U/T), T = {mean(now.temperature):g}, N = {self.potential.num_data:,}",
            "prior": str(self.potential.prior),
            "lr": f"{mean(now.lr):g}",
            "weighting": f"{weighting}" if weighting.needs_energy else "",
            "clip": "" if clip is None else f"{clip}",
        }
        return f"Sampler by {chain.dynamics}", {name: value for name, value in lines.items() if value}

    def identity(self) -> dict[str, Any]:
        """Plain values that a sampler must share to continue this one."""
        chain = self.chain
        return {
            "num_data": self.potential.num_data,
            "dynamics": chain.dynamics.identity(),
            "weighting": self.reweighting.weighting.identity()["type"],
            "exchange": identity(None if self.replicas is None else self.replicas.exchange),
            "gradient": identity(self.control),
            "chains": chain.chains,
            "numbers per chain": chain.theta.shape[-1],
            "blocks": None if chain.lr_factors is None else runs_of(chain.lr_factors),
        }

    def law(self) -> dict[str, Any]:
        """What runs must share to be merged into one posterior, as JSON values."""
        return {
            "num_data": self.potential.num_data,
            "prior": self.potential.prior.identity(),
            "clip": identity(self.potential.clip),
            "weighting": self.reweighting.weighting.identity(),
            "injects_noise": self.chain.dynamics.noisy,
            "caveat": self.chain.dynamics.caveat,
        }

    def _target(self, now: StepSettings) -> str:
        name = " (the Bayes posterior)" if bool((torch.as_tensor(now.temperature) == 1).all()) else ""
        weighted = self.reweighting.weighting.describe(now.zeta)
        return f"target distribution: exp(-U/T), T = {mean(now.temperature):g}{name}{weighted}"
