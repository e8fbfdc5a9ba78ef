"""What a store of samples reads of a sampler: plain values, so that neither knows the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bdl.devices import widest
from bdl.forward_code import described
from bdl.identity import identity
from bdl.likelihoods import outputs_of


@dataclass(frozen=True)
class Snapshot:
    """A sampler between two steps. Lists have one entry for each of `rows`, energies are in nats."""

    step: int
    stack: int
    rows: list[int]  # the chains (of C) with the target distribution, whose samples count
    chains: list[int]  # their numbers, counted through all stacks
    lr: float | list[float]  # lr, temperature and zeta are those of the last step
    temperature: float | list[float]
    zeta: float
    energy_full: list[float] | None  # U over all the data
    log_weight: list[float] | None  # importance weight at that energy, where psi reads such energies
    psi_frozen: bool
    precision: list[list[float]] | None = None  # what the prior has learned: one for each tensor

    def fields(self, cycle: int = 0) -> dict[str, Any]:
        """The fields of `bdl.posterior.index.Record` that the present state decides."""
        fields = vars(self) | {"cycle": cycle}
        return {name: value for name, value in fields.items() if name not in ("rows", "log_weight")}


class Sampled(Protocol):
    """A `bdl.Sampler`, as a store sees it."""

    chains: int | None  # C if the tensors carry a leading axis of chains, None for a single chain
    sampled: list[Tensor]

    @property
    def noise_ratio(self) -> Tensor: ...

    def snapshot(self, full_energy: bool = True, freeze_weighting: bool = True) -> Snapshot: ...

    def law(self) -> dict[str, Any]: ...

    def psi(self) -> tuple[dict[str, Tensor], dict[str, str]] | None: ...

    def excluded(self) -> dict[int, int]: ...


NETWORK = "network"  # a key of target.json that need not be equal: what `described` says of the network


def describe_target(
    sampler: Sampled, loss: Any, tensors: Mapping[str, Tensor], net: nn.Module | None = None
) -> dict[str, Any]:
    """What must be equal for runs to be merged into one posterior, as JSON values, and how to read the outputs.

    tensors: the stacked tensors (C, ...) of a sample. net: the network, or a stack of it, of which NETWORK tells.
    """
    shapes = {name: list(tensor.shape[1:]) for name, tensor in tensors.items()}
    network = {} if net is None else {NETWORK: described(getattr(net, "net", net) if sampler.chains else net)}
    return sampler.law() | {"loss": identity(loss), "outputs": outputs_of(loss), "shapes": shapes} | network


def per_chain(value: float | Tensor, chains: int | None) -> list[float]:
    """One number per chain, from a float, a () tensor or a (C,) tensor."""
    count = chains or 1
    if not isinstance(value, Tensor):
        return [float(value)] * count
    numbers = value.detach().cpu().double().reshape(-1).tolist()
    return numbers * count if len(numbers) == 1 else numbers


def numbers(values: Mapping[str, Tensor | None], chains: int | None) -> dict[str, list[float]]:
    """`per_chain` of several tensors on one device, which is read once; NaN for None."""
    count, known = chains or 1, {name: value for name, value in values.items() if value is not None}
    columns = [value.detach().reshape(-1).to(widest(value.device)).expand(count) for value in known.values()]
    rows = torch.stack(columns).tolist() if columns else []
    return {name: [float("nan")] * count for name in values} | dict(zip(known, rows, strict=True))


def of_rows(value: Tensor | None, chains: int | None, rows: list[int]) -> list[float] | None:
    """The numbers of the chains `rows`."""
    if value is None:
        return None
    each = per_chain(value, chains)
    return [each[c] for c in rows]
