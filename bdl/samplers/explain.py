"""What a Sampler is set to sample, in a few lines; each of its pieces contributes a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bdl.samplers.chain import Chain
from bdl.samplers.dynamics.base import mean
from bdl.samplers.exchange import Replicas
from bdl.samplers.potential import Potential
from bdl.samplers.settings import StepSettings
from bdl.samplers.weighting.reweighting import Reweighting
from bdl.samplers.weighting.weightings import Weighting


def explain(
    chain: Chain,
    potential: Potential,
    now: StepSettings,
    reweighting: Reweighting,
    replicas: Replicas | None,
    heat: tuple[Tensor, Tensor],
    notes: Sequence[str],
) -> str:
    """N, T, prior, the intended law, the injected noise of one step, and what adds to it.

    heat: noise ratio and T_eff, () or (C,), of the chains with the intended law. notes: lines to end with.
    """
    dynamics, n = chain.dynamics, potential.num_data
    chains = f"{chain.chains} chains" if chain.chains else "1 chain"
    lines = [
        f"{dynamics} on {chain.theta.shape[-1]:,} parameters, {chains}, N = {n:,}, lr = {mean(now.lr):g}, "
        f"T = {mean(now.temperature):g}",
        f"prior: {potential.prior}; U = N x mean batch loss - log prior, in nats "
        "(the loss must be a mean negative log-likelihood)",
    ]
    if not dynamics.noisy or mean(now.temperature) == 0:
        lines.append("intended law: none, this is optimisation: no noise is injected and T is ignored")
    else:
        lines += [_law(now, reweighting.weighting), *reweighting.explain(now)]
        lines += [dynamics.describe_noise(chain.state, now.lr, now.temperature / n)]
        if not (dynamics.full_batch or dynamics.variational):
            lines.append(_batch_noise(*heat))
    if dynamics.caveat:
        lines.append(f"caveat: {dynamics.caveat}")
    if replicas is not None:
        lines.append(replicas.describe())
    if potential.clip is not None:
        lines.append(f"gradient clipping: {potential.clip}; where it acts, the law is another one")
    return "\n".join([*lines, *notes])


def _law(now: StepSettings, weighting: Weighting) -> str:
    bayes = bool((torch.as_tensor(now.temperature) == 1).all())
    name = " (the Bayes posterior)" if bayes else ""
    return f"intended law: exp(-U/T), T = {mean(now.temperature):g}{name}{weighting.describe(now.zeta)}"


def _batch_noise(ratio: Tensor, t_eff: Tensor) -> str:
    if math.isnan(mean(ratio)):
        return "batch noise: not measured yet; unless subtracted, it heats the chain to T_eff = T (1 + noise_ratio)"
    return f"batch noise: noise_ratio {mean(ratio):.3g}, and T_eff is about {mean(t_eff):.3g}"
