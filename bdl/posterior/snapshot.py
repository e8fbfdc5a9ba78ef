"""What the store writes of a sampler: the state that it has reached, and the law that it samples."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bdl.engine.stack import ChainStack
from bdl.identity import identity
from bdl.likelihoods import outputs_of


class SamplerState(Protocol):
    """What is read of a `bdl.Sampler`. The store knows no more of samplers."""

    steps: Any
    stack: Any
    chains: int | None
    num_data: int
    dynamics: Any
    weighting: Any
    clip: Any
    used: Any
    full_loss: Any
    prior_identity: Any
    reweighting: Any
    sampled: Any
    survivors: Any
    param_groups: list[dict[str, Any]]

    @property
    def target_chains(self) -> list[int]: ...

    def check(self) -> None: ...

    def freeze_weighting(self) -> bool: ...

    def full_energy(self) -> Tensor: ...

    def log_weight_at(self, energy: Tensor) -> Tensor: ...


def describe_state(sampler: SamplerState, cycle: int, full_energy: bool, freeze_weighting: bool) -> dict[str, Any]:
    """The fields of a record that the present state decides, see `bdl.posterior.store.Record`.

    Raises DivergedError if the state is not finite.
    """
    sampler.check()
    frozen = sampler.freeze_weighting() if freeze_weighting else False
    used, target = sampler.used, sampler.target_chains
    full = sampler.full_energy() if full_energy and sampler.full_loss is not None else None
    return {
        "step": sampler.steps,
        "stack": sampler.stack,
        "chains": [sampler.survivors.number(c) for c in target],
        "cycle": cycle,
        "lr": _number(used.lr, target),
        "temperature": _number(used.temperature, target),
        "zeta": float(used.zeta),
        "energy_full": of_target(sampler, full),
        "psi_frozen": frozen,
    }


def full_log_weight(
    sampler: SamplerState, energy_full: list[float] | None, rows: list[int] | None = None
) -> Tensor | None:
    """(C,) log weights at the full-data energies of `rows`, where psi reads these; None for other energies.

    rows: the chains of these energies; None for those that sample the intended law. The weights of others mean nothing.
    """
    if sampler.weighting.energy != "full" or energy_full is None:
        return None
    each = torch.full((sampler.chains or 1,), energy_full[0], dtype=torch.float64)
    each[sampler.target_chains if rows is None else rows] = torch.tensor(energy_full, dtype=torch.float64)
    return sampler.log_weight_at(each)


def describe_target(sampler: SamplerState, loss: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What must be equal for runs to be merged into one posterior, as JSON values, and how to read the outputs.

    tensors: the stacked tensors (C, ...) of a sample. A weighting's identity is its type and zeta.
    """
    return {
        "num_data": sampler.num_data,
        "prior": sampler.prior_identity,
        "loss": identity(loss),
        "outputs": outputs_of(loss),
        "clip": identity(sampler.clip),
        "weighting": sampler.weighting.identity(),
        "injects_noise": sampler.dynamics.noisy,
        "caveat": sampler.dynamics.caveat,
        "shapes": {k: list(v.shape[1:]) for k, v in tensors.items()},
    }


def describe_weighting(sampler: SamplerState) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """psi and how it was fitted, see `SampleStore.write_weighting`; None without a weighting."""
    group = sampler.param_groups[0]
    return sampler.reweighting.describe(float(group["zeta"]), group["temperature"])


def stacked_tensors(net: nn.Module, chains: int | None, frozen: Container[str] = ()) -> dict[str, Tensor]:
    """Views of all parameters and buffers (C, ...), by the names that the plain network gives them; C = 1 for a chain.

    Args:
        chains: C if the tensors carry a leading axis of chains, None if they belong to a single chain.
        frozen: names that are left out, besides those that the chains of a stack share.
    """
    inner = net.net if isinstance(net, ChainStack) else net
    tensors: dict[str, Any] = {**dict(inner.named_parameters()), **dict(inner.named_buffers())}
    shared = net.frozen_names if isinstance(net, ChainStack) else ()
    kept = {k: v.detach() for k, v in tensors.items() if k not in frozen and k not in shared}
    return {k: v if chains is not None else v.unsqueeze(0) for k, v in kept.items()}


def copies_of_target(
    sampler: SamplerState, tensors: dict[str, Tensor], rows: list[int] | None = None
) -> dict[str, Tensor]:
    """Copies on the CPU of the tensors of the chains `rows`; None for those that sample the intended law."""
    rows = sampler.target_chains if rows is None else rows
    which = slice(None) if len(rows) == (sampler.chains or 1) else rows
    return {k: v[which].to("cpu", copy=True) for k, v in tensors.items()}


def of_target(sampler: SamplerState, value: Tensor | None, rows: list[int] | None = None) -> list[float] | None:
    """The numbers of the chains `rows`; None for those that sample the intended law."""
    if value is None:
        return None
    each = per_chain(value, sampler.chains)
    return [each[c] for c in (sampler.target_chains if rows is None else rows)]


def per_chain(value: Any, chains: int | None) -> list[float]:
    """One number per chain, from a float, a () tensor or a (C,) tensor."""
    count = chains or 1
    if not isinstance(value, Tensor):
        return [float(value)] * count
    numbers = value.detach().double().reshape(-1).tolist()
    return numbers * count if len(numbers) == 1 else numbers


def _number(value: Any, chains: list[int]) -> float | list[float]:
    """One number for all chains, or one for each of `chains`."""
    if not isinstance(value, Tensor):
        return float(value)
    return [float(value[c]) for c in chains] if value.ndim else float(value)
