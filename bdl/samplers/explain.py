"""What a Sampler is set to sample, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from bdl.samplers.sampler import Sampler


def explain(sampler: Sampler) -> str:
    group = sampler.param_groups[0]
    lr, temperature, zeta = (_mean(group[k]) for k in ("lr", "temperature", "zeta"))
    n, dynamics, weighting = sampler.num_data, sampler.dynamics, sampler.weighting
    chains = f"{sampler.chains} chains" if sampler.chains else "1 chain"
    lines = [
        f"{dynamics} on {sampler._flat.theta.shape[-1]:,} parameters, {chains}, "
        f"N = {n:,}, lr = {lr:g}, T = {temperature:g}",
        f"prior: {sampler.prior}; U = N x mean batch loss - log prior, in nats "
        "(the loss must be a mean negative log-likelihood)",
    ]
    if not getattr(dynamics, "noisy", True) or temperature == 0:
        lines.append("law meant: none, this is optimisation: no noise is injected and T is ignored")
    else:
        bayes = bool((torch.as_tensor(group["temperature"]) == 1).all())
        name = " (the Bayes posterior)" if bayes else ""
        lines.append(f"law meant: exp(-U/T), T = {temperature:g}{name}" + _weighted(weighting, zeta))
        scale = math.sqrt(2 * getattr(dynamics, "friction", 1.0) * lr * temperature / n)
        factor = "" if getattr(dynamics, "preconditioner", None) is None else ", times the root of the preconditioner"
        lines.append(f"injected noise: std {scale:.3g} per step and coordinate{factor}")
        ratio = _mean(sampler.noise_ratio)
        lines.append(
            "batch noise: not measured yet, it heats the chain by T_eff = T (1 + noise_ratio)"
            if math.isnan(ratio)
            else f"batch noise: noise_ratio {ratio:.3g}, so T_eff is about {temperature * (1 + ratio):.3g}"
        )
    if sampler.clip is not None:
        lines.append(f"gradient clipping: {sampler.clip}; where it acts, the law is another one")
    return "\n".join([*lines, *sampler.notes])


def _weighted(weighting: object, zeta: float) -> str:
    if not getattr(weighting, "needs_energy", False):
        return ""
    return f", weighted to exp(-U/T) / psi(U)^{zeta:g} by {type(weighting).__name__} on {weighting.energy} energies"  # type: ignore


def _mean(value: float | Tensor) -> float:
    return float(value.double().mean()) if isinstance(value, Tensor) else float(value)
