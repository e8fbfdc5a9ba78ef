"""What a Sampler is set to sample, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bdl.samplers.dynamics.langevin import BAOAB, SGHMC, SGLD, SGNHT

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
        lines += _exactly(sampler) if sampler.is_kernel else _noise(sampler, lr, temperature)
    if getattr(dynamics, "caveat", None):
        lines.append(f"caveat: {dynamics.caveat}")
    if sampler.exchange is not None:
        lines.append(_replicas(sampler))
    if sampler.clip is not None:
        lines.append(f"gradient clipping: {sampler.clip}; where it acts, the law is another one")
    return "\n".join([*lines, *sampler.notes])


def _noise(sampler: Sampler, lr: float, temperature: float) -> list[str]:
    """What is injected, and what the batches add."""
    dynamics, n = sampler.dynamics, sampler.num_data
    if hasattr(dynamics, "entropy"):
        return ["noise: every state is a fresh draw from the approximation"]
    scale = math.sqrt(2 * getattr(dynamics, "friction", 1.0) * lr * temperature / n)
    plain = isinstance(dynamics, SGLD | SGHMC | SGNHT | BAOAB) and getattr(dynamics, "preconditioner", None) is None
    factor = "" if plain else ", times the root of the preconditioner"
    ratio, t_eff = (_of_target(sampler, v) for v in (sampler.noise_ratio, sampler.t_eff))
    heat = (
        "not measured yet; unless subtracted it heats the chain by T_eff = T (1 + noise_ratio)"
        if math.isnan(ratio)
        else f"noise_ratio {ratio:.3g}, and T_eff is about {t_eff:.3g}"
    )
    return [f"injected noise: std {scale:.3g} per step and coordinate{factor}", f"batch noise: {heat}"]


def _of_target(sampler: Sampler, value: Tensor) -> float:
    """Mean over the chains that sample the law meant."""
    return _mean(value[sampler.target_chains] if value.ndim else value)


def _exactly(sampler: Sampler) -> list[str]:
    rate = _mean(sampler.acceptance) if sampler.acceptance is not None else math.nan
    known = "not measured yet" if math.isnan(rate) else f"{rate:.2f}"
    lr = _mean(torch.as_tensor(sampler.param_groups[0]["lr"]) * sampler._state.log_factor.exp())
    return [f"accept/reject on all the data: exact at any lr; lr adapted to {lr:.3g}, acceptance {known}"]


def _replicas(sampler: Sampler) -> str:
    ladder = ", ".join(f"{f:g}" for f in sampler.exchange.ladder)  # type: ignore[union-attr]
    rates = sampler.swap_rates
    known = [] if rates is None else [f"{r:.2f}" for r in rates.tolist() if r == r]
    swaps = ", ".join(known) or "unknown yet"
    return f"replica exchange: T times {ladder}, of which the first is kept; swap rates {swaps}"


def _weighted(weighting: object, zeta: float) -> str:
    if not getattr(weighting, "needs_energy", False):
        return ""
    return f", weighted to exp(-U/T) / psi(U)^{zeta:g} by {type(weighting).__name__} on {weighting.energy} energies"  # type: ignore


def _mean(value: float | Tensor) -> float:
    return float(value.double().mean()) if isinstance(value, Tensor) else float(value)
