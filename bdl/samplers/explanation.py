"""How a sampler explains itself to people, and the plain values by which checkpoints and other runs know it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bdl.display import Shown
from bdl.identity import identity
from bdl.samplers.dynamics.base import mean
from bdl.samplers.priors.scales import runs_of
from bdl.samplers.readings import Readings
from bdl.samplers.settings import StepSettings
from bdl.samplers.weighting.base import Weighting


class Explained(Readings, Shown):
    """What a `Sampler` says of itself, from its settings and its readings."""

    def shown(self) -> tuple[str, Mapping[str, str]]:
        now, weighting, clip = self.settings(), self.reweighting.weighting, self.potential.clip
        lines = {
            "step": f"{self.steps:,}",
            "chains": f"{self.chains or 1}, of {self.chain.theta.shape[-1]:,} parameters",
            "target": f"exp(-U/T), T = {mean(now.temperature):g}, N = {self.num_data:,}",
            "prior": str(self.potential.prior),
            "lr": f"{mean(now.lr):g}",
            "weighting": f"{weighting}" if weighting.needs_energy else "",
            "clip": "" if clip is None else f"{clip}",
        }
        return f"Sampler by {self.dynamics}", {name: value for name, value in lines.items() if value}

    def explain(self) -> str:
        """A few lines: N, T, prior, the target distribution, the injected noise of one step, and what adds to it."""
        dynamics, potential, now = self.dynamics, self.potential, StepSettings.of(self.param_groups[0], self.steps)
        chains = f"{self.chains} chains" if self.chains else "1 chain"
        lines = [
            f"{dynamics} on {self.chain.theta.shape[-1]:,} parameters, {chains}, N = {self.num_data:,}, "
            f"lr = {mean(now.lr):g}, T = {mean(now.temperature):g}",
            f"prior: {potential.prior}; U = N x mean batch loss - log prior, in nats "
            "(the loss must be a mean negative log-likelihood)",
        ]
        if not dynamics.noisy or mean(now.temperature) == 0:
            lines.append("target distribution: none, this is optimisation: no noise is injected and T is ignored")
        else:
            lines += [_law(now, self.reweighting.weighting), *self.reweighting.explain(now)]
            lines += [dynamics.describe_noise(self.chain.state, now.lr, now.temperature / self.num_data)]
            if not (dynamics.full_batch or dynamics.variational):
                target = self.target_chains if self.chains else ...
                lines += [_batch_noise(self.noise_ratio[target], self.t_eff[target])]
                lines += self.evaluation.explain(self.batch_noise)
        if dynamics.caveat:
            lines.append(f"caveat: {dynamics.caveat}")
        if self.replicas is not None:
            lines.append(self.replicas.describe())
        if potential.clip is not None:
            lines.append(f"gradient clipping: {potential.clip}; where it acts, another distribution is sampled")
        return "\n".join([*lines, *self.notes])

    def identity(self) -> dict[str, Any]:
        """Plain values that a sampler must share to continue this one."""
        return {
            "num_data": self.num_data,
            "dynamics": self.dynamics.identity(),
            "weighting": self.reweighting.weighting.identity()["type"],
            "exchange": identity(None if self.replicas is None else self.replicas.exchange),
            "gradient": identity(self.control),
            "chains": self.chains,
            "numbers per chain": self.chain.theta.shape[-1],
            "blocks": None if self.chain.lr_factors is None else runs_of(self.chain.lr_factors),
        }

    def law(self) -> dict[str, Any]:
        """What runs must share to be merged into one posterior, as JSON values."""
        return {
            "num_data": self.num_data,
            "prior": self.potential.prior.identity(),
            "clip": identity(self.potential.clip),
            "weighting": self.reweighting.weighting.identity(),
            "injects_noise": self.dynamics.noisy,
            "caveat": self.dynamics.caveat,
        }


def _law(now: StepSettings, weighting: Weighting) -> str:
    bayes = bool((torch.as_tensor(now.temperature) == 1).all())
    name = " (the Bayes posterior)" if bayes else ""
    return f"target distribution: exp(-U/T), T = {mean(now.temperature):g}{name}{weighting.describe(now.zeta)}"


def _batch_noise(ratio: Tensor, t_eff: Tensor) -> str:
    if math.isnan(mean(ratio)):
        return "batch noise: not measured yet; unless subtracted, it heats the chain to T_eff = T (1 + noise_ratio)"
    return f"batch noise: noise_ratio {mean(ratio):.3g}; T_eff, the mean over directions, is about {mean(t_eff):.3g}"
