"""The posterior as an ArviZ DataTree: parameters or projections, log-likelihoods, predictions, energies, settings."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.frozen import matching
from bdl.posterior.diagnostics import Draws
from bdl.posterior.outputs import LabelledOutputs
from bdl.posterior.samples import Key, Samples
from bdl.posterior.weights import Keyed
from bdl.seeding import derive_seed, generator


def recorded(samples: Sequence[Keyed], chains: int, name: str) -> np.ndarray:
    """(chains, draws) of an energy or the log weight of the records, NaN where unknown, cut to the shortest chain."""
    draws = Draws(chains)
    for chain, record, c in samples:
        value = getattr(record, name)
        draws.add([chain], [value[c] if isinstance(value, list) else math.nan if value is None else value])
    return draws.array()


def sample_stats(samples: Sequence[Keyed], chains: int, weights: Mapping[Key, float]) -> dict[str, np.ndarray]:
    """(chains, draws) energy (nats), lr, temperature and weight of every draw.

    The energy is that of all the data where every draw has one, otherwise the estimate of a batch. The last state of a
    run has no such estimate; it is then NaN. Without any energy there is no such column.
    """
    full, batch = recorded(samples, chains, "energy_full"), recorded(samples, chains, "energy_batch")
    energy, weight = full if np.isfinite(full).all() else batch, Draws(chains)
    weight.add(
        [chain for chain, _, _ in samples], [weights.get((chain, record.step), 0.0) for chain, record, _ in samples]
    )
    stats = {name: recorded(samples, chains, name) for name in ("lr", "temperature")} | {"weight": weight.array()}
    return stats | ({"energy": energy} if np.isfinite(energy).any() else {})


def tree(
    samples: Samples,
    weights: Mapping[Key, float],
    parameters: str | Sequence[str] | None,
    projections: int,
    labelled: LabelledOutputs | None,
    seed: int,
) -> Any:
    """The DataTree of `Posterior.to_arviz`."""
    from arviz_base import from_dict

    values: dict[str, dict[str, Draws]] = defaultdict(lambda: defaultdict(lambda: Draws(samples.chains)))

    def add(part: str, chains: Sequence[int], named: Mapping[str, Tensor]) -> None:
        for name, tensor in named.items():
            values[part][name].add(chains, tensor.cpu().numpy())

    names = samples.parameters()
    chosen = None if parameters is None else matching(names, parameters, "parameters")
    for number, group in enumerate(samples.groups(weights)):
        of_group = {name: group.tensors[name] for name in names if chosen is None or name in chosen}
        add("posterior", group.chains, projected(of_group, projections) if chosen is None else of_group)
        if labelled is None:
            continue
        for block, outputs in labelled.blocks(group):
            chains, likelihood, outputs = block.chains, labelled.likelihood.of_rows(), outputs.double()
            add("log_likelihood", chains, {"y": -torch.stack([likelihood(one, labelled.y) for one in outputs])})
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_seed("y", seed, number, chains[0], len(chains)))
                add("posterior_predictive", chains, {"y": likelihood.distribution(outputs).sample()})
    stats = sample_stats(samples.keyed(), samples.chains, weights)
    # Draws at the end whose energy is not known are left out
    known = np.flatnonzero(np.isfinite(stats.get("energy", stats["lr"])).all(0))
    length = int(known[-1]) + 1 if len(known) else stats["lr"].shape[1]
    tables = {part: {name: draws.array(length) for name, draws in named.items()} for part, named in values.items()}
    tables["sample_stats"] = {name: column[:, :length] for name, column in stats.items()}
    tables |= {} if labelled is None else {"observed_data": {"y": labelled.y.numpy()}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found chain dimension to be longer")  # an ensemble has few draws
        return from_dict(tables)


def projected(tensors: Mapping[str, Tensor], directions: int) -> dict[str, Tensor]:
    """`projection`: (k, directions) projections of all tensors (k, ...) of k networks on random directions.

    A direction has a standard normal entry for every weight, divided by the root of their number, so that a projection
    of independent weights of variance 1 has variance 1.
    """
    total, size = torch.zeros((), dtype=torch.float64), 0
    for name, tensor in tensors.items():
        values = tensor.cpu().double().flatten(1)  # (k, d)
        random = generator("cpu", "projection", name)
        total = total + values @ torch.randn(values.shape[1], directions, generator=random, dtype=torch.float64)
        size += values.shape[1]
    return {"projection": total / size**0.5}
