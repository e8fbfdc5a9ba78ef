"""StoredNetworks: the networks of one or several runs, with their records and their weights."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from bdl.batch import Reader
from bdl.display import Shown, count_of
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood, in_words
from bdl.posterior.export import recorded
from bdl.posterior.index import temperatures_of
from bdl.posterior.inputs import AsTensors, floating_dtype
from bdl.posterior.outputs import Batches, Data, LabelledOutputs, known_law, likelihood_for
from bdl.posterior.samples import Key, Sample, Samples
from bdl.posterior.stacking import Stacking, fit_stacking
from bdl.posterior.stacking_file import read_stacking
from bdl.posterior.store import Record, SampleStore
from bdl.posterior.weights import Keyed, Weights, sample_weights

WeightKind = Literal["uniform", "step_size", "importance", "stacking"]


class StoredNetworks(Shown):
    """The part of a `Posterior` that predicts nothing."""

    def __init__(
        self,
        stores: Sequence[SampleStore],
        net: nn.Module,
        *,
        skip_bad: bool = False,
        likelihood: Likelihood | None = None,
        read: Reader | None = None,
    ):
        self.stores, self.net, self.given_likelihood, self.read = list(stores), net, likelihood, read or Reader(net)
        self.stored = Samples(stores, net, skip_bad)
        self.target, self.diverged = self.stores[0].target(), self.stored.diverged  # chains left out: (number, step)
        self._stacking: Stacking | Literal["stored"] | None = "stored"  # read when asked for
        self.thinning: Shown | None = None
        self.thinned_from = 0  # networks

    def part(self, keys: Collection[Key], thinning: Shown) -> Self:
        """The posterior of these networks alone. thinning: how they were chosen."""
        part = copy.copy(self)
        part.stored, part.thinning, part._stacking = self.stored.part(set(keys)), thinning, None
        part.diverged, part.thinned_from = part.stored.diverged, self.samples
        return part

    def shown(self) -> tuple[str, Mapping[str, str]]:
        records, target, law = self.records, self.target, self.given_likelihood
        temperatures = temperatures_of(self.records) if self.kind == "uniform" else [self.target_temperature or 0.0]
        lines = {
            "runs": ", ".join(str(d) if (d := store.run_dir).exists() else "in memory" for store in self.stores),
            "network": f"{type(self.net).__name__} on {self.device}",
            "likelihood": in_words(target.get("loss") if law is None else law),
            "target": f"exp(-U/T), T = {', '.join(f'{t:g}' for t in temperatures)}, N = {target.get('num_data', 0):,}",
            "steps": f"{records[0].step:,} to {records[-1].step:,}",
        }
        left_out = ", ".join(f"chain {chain}" for chain, _ in self.diverged)
        title = f"Posterior of {count_of(self.samples, 'network')} from {count_of(self.chains, 'chain')}"
        if self.thinning is not None:
            title = f"Posterior of {count_of(self.samples, 'network')}, thinned from {self.thinned_from:,}"
        return title, {**lines, **({"left out": f"{left_out}, which diverged"} if left_out else {})}

    def cache(self) -> Self:
        """Read all samples now and keep them in memory: later calls read no file. Returns the posterior itself.

        It takes samples x parameters x 4 bytes, on the device of the network. Files that change later go unnoticed.
        """
        self.stored.cache()
        return self

    @property
    def device(self) -> torch.device:
        """The device of the network, on which predictions are computed."""
        return self.stored.device

    @property
    def chains(self) -> int:
        """Number of chains in all runs."""
        return self.stored.chains

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The tensors that all networks share, by name, to read only; {} where everything is sampled."""
        return self.stored.frozen

    @property
    def samples(self) -> int:
        """Number of networks in the posterior: files x chains."""
        return sum(len(r.chains) for r in self.records)

    @property
    def records(self) -> list[Record]:
        """The records of all files, sorted by step."""
        return [file.record for file in self.stored.files]

    @property
    def stacking(self) -> Stacking | None:
        """The weights of the chains that `stack` has fitted, or `bdl evaluate RUN weights=stacking` has stored."""
        if self._stacking == "stored":
            self._stacking = read_stacking(self.stored)
        return self._stacking

    @stacking.setter
    def stacking(self, stacking: Stacking | None) -> None:
        self._stacking = stacking

    def stack(self, data: Data, held_out: bool = True) -> Stacking:
        """Weight the chains by how well they predict labelled rows, for `predict(x, "stacking")` and `evaluate`.

        Chains that sit in different modes count alike in the uniform average. Predictive stacking (Yao, Vehtari and
        Gelman 2022) gives them the weights under which their average predicts best, pulled towards uniform ones. The
        stacked average is no estimate of the posterior's: it is a better prediction where chains do not meet.

        Args:
            data: a loader of (x, y) batches; about 1,000 rows are enough.
            held_out: whether the samples have not seen these rows. False for training rows: each density is then a
                leave-one-out estimate, by Pareto-smoothed importance sampling of a chain's own draws.

        Raises ConfigError for one chain, a thinned posterior, and training rows with fewer than 25 samples a chain.
        """
        if self.thinning is not None:
            raise ConfigError("the uniform average was thinned: stack the posterior before")
        self._stacking = fitted = fit_stacking(self._labelled(data), self.weights("uniform").by_key, held_out)
        return fitted

    @property
    def kind(self) -> WeightKind:
        """The weights of predictions for which no others are named: "importance" where they lead to another T."""
        alike = self.target_temperature is None or [self.target_temperature] == temperatures_of(self.records)
        return "uniform" if alike else "importance"

    @property
    def target_temperature(self) -> float | None:
        """T0 of a weighting with a target; None without."""
        return (self.target.get("weighting") or {}).get("target")

    def weights(self, kind: WeightKind | None = None) -> Weights:
        """Normalised weights of all samples, of the `kind` that holds where None is given.

        Raises ConfigError if importance weights are not valid, and for stacking weights that nobody has fitted.
        """
        kind = kind or self.kind
        if self.thinning is not None and kind != "uniform":
            raise ConfigError(f"the uniform average was thinned: take {kind} weights from the posterior before")
        if kind == "stacking":
            if self.stacking is None:
                raise ConfigError(
                    "there are no stacking weights: posterior.stack(loader) fits them, and bdl evaluate RUN "
                    "weights=stacking stores them with the run"
                )
            return self.stacking.of_networks(self.keyed())
        known, key = self.stored.weights_by_kind, (kind, len(self.stored.files))
        if key not in known:
            saved = [store.weighting(stack) for store, stack in self.stored.stacks()]
            energies = {one[1]["energy"] for one in saved if one}
            psi_of = self.stored.psi_of() if kind == "importance" else None
            known[key] = sample_weights(
                self.keyed(), self.chains, kind, energies == {"full"}, psi_of, self.target_temperature
            )
        return known[key]

    def read_record(self, record: Record) -> dict[str, Tensor]:
        """The tensors (k, ...) of the k networks of one of the `records`. Raises StoreError for a bad file."""
        file = next(file for file in self.stored.files if file.record is record)
        tensors = file.store.read(record)
        return tensors if file.rows is None else {name: values[file.rows] for name, values in tensors.items()}

    def keyed(self) -> list[Keyed]:
        """Every sample as (chain among all runs, record, chain within the record)."""
        return self.stored.keyed()

    def recorded(self, name: str) -> np.ndarray:
        """(chains, draws) of energy_batch, energy_full (nats) or log_weight as recorded, NaN where it is not known."""
        return recorded(self.keyed(), self.chains, name)

    def stream(self, kind: WeightKind | None = None) -> Iterator[Sample]:
        """Yields the networks of the posterior one by one; skips files whose weights are all 0."""
        return self.stored.stream(self.weights(kind))

    def likelihood(self, data: Data) -> Likelihood:
        """What the outputs mean, for a network that takes such data.

        Raises ConfigError in one line where neither the run nor the caller of `load` says so.
        """
        return self.weighted_likelihood(self.batches(data)).unweighted

    def batches(self, data: Data) -> Batches:
        """The data as batches of the types and on the device of the networks; `Batches` are returned as they are."""
        if isinstance(data, Batches):
            return data
        return Batches(AsTensors(self.net, self.stores)(data), self.device, self.read, floating_dtype(self.net))

    def _labelled(self, data: Data) -> LabelledOutputs:
        batches = self.batches(data)
        return LabelledOutputs(self.stored, batches, self.weighted_likelihood(batches))

    def weighted_likelihood(self, batches: Batches) -> Likelihood:
        """`likelihood` with the weights of rows that the run has sampled with, which its `split` takes from y."""
        return likelihood_for(self._law(), self.net, batches)

    def _law(self) -> Any:
        return known_law(self.given_likelihood or self.target.get("loss"))
