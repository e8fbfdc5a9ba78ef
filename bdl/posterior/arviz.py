"""The posterior as an ArviZ DataTree: parameters or projections, log-likelihoods, predictions, energies, settings."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.engine.forward import Forward
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.posterior.batches import Batches
from bdl.posterior.samples import Group, Key
from bdl.posterior.store import Record
from bdl.posterior.weights import Keyed
from bdl.seeding import derive_seed, generator


def recorded(samples: Sequence[Keyed], chains: int, name: str) -> np.ndarray:
    """(chains, draws) of one of the energies or log weights of the records, NaN where it is not known.

    Chains are cut to the length of the shortest one.
    """

    def value(record: Record, c: int) -> float:
        values = getattr(record, name)
        if isinstance(values, list):
            return values[c]
        return float("nan") if values is None else values

    draws: list[list[float]] = [[] for _ in range(chains)]
    for chain, record, c in samples:
        draws[chain].append(value(record, c))
    length = min(len(chain) for chain in draws)
    return np.array([chain[:length] for chain in draws])


def sample_stats(samples: Sequence[Keyed], chains: int, weights: Mapping[Key, float]) -> dict[str, np.ndarray]:
    """(chains, draws) energy (nats), lr, temperature and weight of every draw.

    The energy is that of all the data where every draw has one, otherwise the estimate of a batch. The last state of a
    run has no such estimate; it is then NaN. Without any energy there is no such column.
    """
    stats = {name: recorded(samples, chains, name) for name in ("lr", "temperature")}
    full, batch = recorded(samples, chains, "energy_full"), recorded(samples, chains, "energy_batch")
    energy = full if np.isfinite(full).all() else batch
    if np.isfinite(energy).any():
        stats["energy"] = energy
    each: list[list[float]] = [[] for _ in range(chains)]
    for chain, record, _ in samples:
        each[chain].append(weights.get((chain, record.step), 0.0))
    length = stats["lr"].shape[1]
    return stats | {"weight": np.array([chain[:length] for chain in each])}


def known_draws(stats: dict[str, np.ndarray]) -> int:
    """How many draws every chain has, without those at the end whose energy is not known."""
    length = stats["lr"].shape[1]
    if "energy" not in stats:
        return length
    known = np.flatnonzero(np.isfinite(stats["energy"]).all(0))
    return int(known[-1]) + 1 if len(known) else length


class Chosen:
    """Chosen parameters, or projections of all of them on random directions, of networks that arrive in groups.

    Args:
        names: of the parameters.
        patterns: of names, such as "*.bias"; None for projections.
        projections: number of directions. Each has a standard normal entry for every weight, divided by the root of
            their number, so that a projection of independent weights of variance 1 has variance 1.

    Raises ConfigError for a pattern that no name matches.
    """

    def __init__(self, names: Sequence[str], patterns: str | Sequence[str] | None, projections: int):
        self._patterns = [patterns] if isinstance(patterns, str) else patterns
        for pattern in self._patterns or ():
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(f"parameters={pattern!r} matches none of {', '.join(names)}: correct the pattern")
        self._names = [n for n in names if any(fnmatchcase(n, p) for p in self._patterns or ("*",))]
        self._projections = projections

    def of(self, group: Group) -> dict[str, Tensor]:
        """(k, ...) values by name of the k networks of a group."""
        if self._patterns is not None:
            return {name: group.tensors[name].cpu() for name in self._names}
        total, size = torch.zeros(len(group), self._projections, dtype=torch.float64), 0
        for name in self._names:
            values = group.tensors[name].cpu().double().flatten(1)  # (k, d)
            random = generator("cpu", "projection", name)
            total += values @ torch.randn(values.shape[1], self._projections, generator=random, dtype=torch.float64)
            size += values.shape[1]
        return {"projection": total / size**0.5}


class Draws:
    """Values (chains, draws, ...) by name of networks that arrive in any order of the chains."""

    def __init__(self, chains: int):
        self._values: dict[str, list[list[np.ndarray]]] = {}
        self._chains = chains

    def add(self, chains: Sequence[int], named: dict[str, Tensor]) -> None:
        """Add values (k, ...) of k networks."""
        for name, values in named.items():
            rows = self._values.setdefault(name, [[] for _ in range(self._chains)])
            for chain, row in zip(chains, values.numpy(), strict=True):
                rows[chain].append(row)

    def stacked(self, length: int) -> dict[str, np.ndarray]:
        """The first `length` draws of every chain."""
        return {n: np.stack([np.stack(chain[:length]) for chain in rows]) for n, rows in self._values.items()}


class Labelled:
    """Labelled batches, and the outputs of networks for them.

    axes: of the outputs (n, ..., K) of a network; elements that do not count, such as padding, are left out.
    """

    def __init__(self, batches: Batches, forward: Forward, likelihood: Likelihood, axes: int):
        self.batches, self.forward, self.arranged, self.likelihood = batches, forward, likelihood, likelihood.of_rows()
        y = batches.labels(axes)
        self._counted = likelihood.counted(y) if axes > 2 else None
        self.y = y if self._counted is None else y[self._counted]
        self._together = forward.together(*batches.sizes())

    def blocks(self, group: Group) -> Iterator[tuple[list[int], Tensor]]:
        """(chains, outputs (k, n, K) in double precision) of the networks of a group, up to k of them together."""
        for block in group.blocks(self._together):
            outputs = self.batches.rows(self.forward, block.tensors, self.arranged).double()
            yield block.chains, outputs if self._counted is None else outputs[:, self._counted]

    def log_likelihood(self, outputs: Tensor) -> Tensor:
        """(k, n) log p(y|x), nats."""
        return -torch.stack([self.likelihood(one, self.y) for one in outputs])

    def draw(self, outputs: Tensor, seed: int) -> Tensor:
        """(k, n, ...) one draw of y from the law of each network. torch's random stream stays as it is."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.likelihood.distribution(outputs).sample()


def tree(
    groups: Iterable[Group],
    samples: Sequence[Keyed],
    chains: int,
    weights: Mapping[Key, float],
    chosen: Chosen,
    labelled: Labelled | None,
    seed: int,
) -> Any:
    """The DataTree of `Posterior.to_arviz`, of the networks in `groups`, whose records are `samples`."""
    from arviz_base import from_dict

    theta, log_p, drawn = Draws(chains), Draws(chains), Draws(chains)
    for number, group in enumerate(groups):
        theta.add(group.chains, chosen.of(group))
        if labelled is None:
            continue
        for which, outputs in labelled.blocks(group):
            log_p.add(which, {"y": labelled.log_likelihood(outputs)})
            drawn.add(which, {"y": labelled.draw(outputs, derive_seed("y", seed, number, which[0], len(which)))})
    stats = sample_stats(samples, chains, weights)
    length = known_draws(stats)
    parts = {"posterior": theta, "log_likelihood": log_p, "posterior_predictive": drawn}
    tables = {name: draws.stacked(length) for name, draws in parts.items()}
    tables["sample_stats"] = {name: values[:, :length] for name, values in stats.items()}
    tables["observed_data"] = {"y": labelled.y.numpy()} if labelled else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found chain dimension to be longer")  # an ensemble has few draws
        return from_dict({name: variables for name, variables in tables.items() if variables})
