"""Posterior: predictive averages over the samples on disk. Each sample file is read once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from bdl.errors import BdlWarning, ConfigError, StoreError
from bdl.functional import call, evaluating
from bdl.posterior.evaluation import Evaluation
from bdl.posterior.metrics import uncertainty
from bdl.posterior.store import Record, SampleStore, brief, refuse_other_target
from bdl.posterior.weights import Keyed, Weights, sample_weights

Kind = Literal["uniform", "step_size", "importance"]


@dataclass(frozen=True)
class Prediction:
    """Predictive distribution of n items over K classes, averaged over the posterior. Entropies in nats."""

    probs: Tensor  # (n, K) mean probabilities
    entropy: Tensor  # (n,) entropy of the mean: total uncertainty
    aleatoric: Tensor  # (n,) mean entropy of the samples
    epistemic: Tensor  # (n,) entropy - aleatoric, the mutual information between y and θ
    std: Tensor  # (n, K) standard deviation of the probabilities over the posterior


@dataclass(frozen=True)
class Sample:
    """One network of the posterior."""

    chain: int  # index among all chains of all runs
    record: Record
    weight: float
    tensors: dict[str, Tensor]  # parameters and buffers by name


class Posterior:
    """The samples of one or several runs, and predictive averages over them.

    Memory does not depend on the number of samples: each file is read once, used on all the data, and dropped.
    """

    def __init__(self, stores: Sequence[SampleStore], net: nn.Module, *, skip_bad: bool = False):
        self.stores, self.net, self.skip_bad = list(stores), net, skip_bad
        self.target = self.stores[0].target()
        self._records = [(s, r) for s in self.stores for r in s.records()]
        self._records.sort(key=lambda pair: pair[1].step)
        keys = sorted({(self.stores.index(s), r.stack, c) for s, r in self._records for c in range(len(r.chains))})
        self._chain_of = {key: i for i, key in enumerate(keys)}

    @classmethod
    def load(cls, run_dirs: str | Path | Sequence[str | Path], net: nn.Module, *, skip_bad: bool = False) -> Posterior:
        """The posterior of one run directory, or of several whose stacks are merged.

        Args:
            run_dirs: one directory or several.
            net: the network whose parameters and buffers were sampled. Its values are neither used nor changed.
            skip_bad: leave out sample files that are missing, cut short or altered, each with a warning.

        Raises StoreError if there are no samples, if a run is given twice, or if the runs have different targets (N,
        T, prior, data, model).
        """
        dirs = [run_dirs] if isinstance(run_dirs, str | Path) else list(run_dirs)
        stores = [SampleStore(d) for d in dirs]
        first = [s.records()[0].sha256 for s in stores]
        if len(set(first)) < len(first):
            raise StoreError(f"the same run is given twice among {', '.join(str(d) for d in dirs)}: name each run once")
        for store in stores[1:]:
            refuse_other_target(stores[0], store)
        return cls(stores, net, skip_bad=skip_bad)

    @property
    def device(self) -> torch.device:
        """The device of the network, on which predictions are computed."""
        return next((p.device for p in self.net.parameters()), torch.device("cpu"))

    @property
    def chains(self) -> int:
        """Number of chains in all runs."""
        return len(self._chain_of)

    @property
    def samples(self) -> int:
        """Number of networks in the posterior: files x chains."""
        return sum(len(r.chains) for _, r in self._records)

    @property
    def records(self) -> list[Record]:
        """The records of all files, sorted by step."""
        return [r for _, r in self._records]

    def weights(self, kind: Kind = "uniform") -> Weights:
        """Normalised weights of all samples. Raises ConfigError if importance weights are not valid."""
        stacks = {(s, r.stack) for s, r in self._records}
        kinds = {s.about_weighting(stack)["energy"] for s, stack in stacks if s.weighting(stack) is not None}
        return sample_weights(self.keyed(), self.chains, kind, full_data=kinds == {"full"})

    def keyed(self) -> list[Keyed]:
        """Every sample as (chain among all runs, record, chain within the record)."""
        return [(self._chain(s, r, c), r, c) for s, r in self._records for c in range(len(r.chains))]

    @torch.no_grad()
    def moments(
        self,
        data: Tensor | Iterable[Any],
        function: Callable[[Tensor], Tensor] = lambda outputs: outputs,
        kind: Kind = "uniform",
    ) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation (n, ...) of a function of the outputs (n, ...), for regression."""
        batches, total = Batches(data, self.device), 0.0
        mean = square = torch.zeros(())
        for sample in self.stream(kind):
            value = function(self._outputs(sample.tensors, batches))
            mean, square = mean + sample.weight * value, square + sample.weight * value.square()
            total += sample.weight
        mean = mean / total
        return mean, (square / total - mean.square()).clamp_min(0).sqrt()

    @torch.no_grad()
    def predict(self, data: Tensor | Iterable[Any], kind: Kind = "uniform") -> Prediction:
        """Predictive distribution for x (n, ...), or for a loader of x or (x, y) batches.

        kind: weights of the samples, "uniform", "step_size" (proportional to lr), or "importance" (which turns samples
        of a weighted law into samples of exp(-U/T)).

        Raises ConfigError if the outputs are not logits, or importance weights are not valid.
        """
        batches, total = Batches(data, self.device), 0.0
        mean = square = entropy = torch.zeros(())
        for sample in self.stream(kind):
            p = self._probs(sample.tensors, batches)
            mean, square = mean + sample.weight * p, square + sample.weight * p.square()
            entropy = entropy + sample.weight * torch.special.entr(p).sum(-1)
            total += sample.weight
        mean, square, entropy = mean / total, square / total, entropy / total
        parts = uncertainty(mean, entropy)
        std = (square - mean.square()).clamp_min(0).sqrt()
        return Prediction(mean, parts["total"], parts["aleatoric"], parts["epistemic"], std)

    def evaluate(self, loader: Iterable[Any]) -> Evaluation:
        """Compares one sample, one chain's average and all chains' average with the labels of (x, y) batches."""
        return self.evaluate_all({"": loader})[""]

    @torch.no_grad()
    def evaluate_all(self, loaders: Mapping[str, Iterable[Any]]) -> dict[str, Evaluation]:
        """`evaluate` on several loaders by name. Every sample is read once."""
        try:
            importance = self.weights("importance")
        except ConfigError:
            importance = None
        batches = {name: Batches(loader, self.device) for name, loader in loaders.items()}
        evaluations = {name: Evaluation(b.labels(), self.chains, importance) for name, b in batches.items()}
        for sample in self.stream():
            weight = 0.0 if importance is None else importance.by_key.get((sample.chain, sample.record.step), 0.0)
            for name, evaluation in evaluations.items():
                evaluation.add(sample.chain, self._probs(sample.tensors, batches[name]), weight)
        return evaluations

    def as_module(self, kind: Kind = "uniform") -> nn.Module:
        """A module that maps x to the mean probabilities (n, K). Each call reads every sample once."""
        return _PosteriorModule(self, kind)

    def to_arviz(self) -> Any:
        """An ArviZ DataTree of energies and log weights, (chain, draw)."""
        from arviz_base import from_dict

        names = ("energy_batch", "energy_full", "log_weight")
        draws: dict[str, list[list[float]]] = {n: [[] for _ in range(self.chains)] for n in names}
        for s, r in self._records:
            for c in range(len(r.chains)):
                for name in names:
                    values = getattr(r, name)
                    draws[name][self._chain(s, r, c)].append(math.nan if values is None else values[c])
        length = min(len(chain) for chain in draws["energy_batch"])
        data = {n: np.array([chain[:length] for chain in chains]) for n, chains in draws.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Found chain dimension to be longer")  # an ensemble has few draws
            return from_dict({"posterior": data})

    def stream(self, kind: Kind = "uniform") -> Iterator[Sample]:
        """Yields the networks of the posterior, one file in memory at a time; skips files whose weights are all 0."""
        weights = self.weights(kind).by_key
        used, bad = 0, []
        for store, record in self._records:
            keys = [(self._chain(store, record, c), record.step) for c in range(len(record.chains))]
            if not any(weights.get(key) for key in keys):
                continue
            try:
                stacked = store.read(record)
            except StoreError as error:
                if not self.skip_bad:
                    raise
                warnings.warn(f"left out: {error}", BdlWarning, stacklevel=2)
                bad.append(record)
                continue
            self._check_fits(stacked, store.folder / record.file)
            for c, key in enumerate(keys):
                used += 1
                yield Sample(key[0], record, weights.get(key, 0.0), {k: v[c] for k, v in stacked.items()})
        self._records = [(s, r) for s, r in self._records if r not in bad]
        if used == 0:
            raise StoreError(f"no usable sample in {', '.join(str(s.folder) for s in self.stores)}")

    def _chain(self, store: SampleStore, record: Record, c: int) -> int:
        return self._chain_of[self.stores.index(store), record.stack, c]

    def _outputs(self, tensors: dict[str, Tensor], batches: Batches) -> Tensor:
        """(n, ...) outputs of one network in eval mode, on the CPU; net keeps its mode and values."""
        tensors = {k: v.to(self.device) for k, v in tensors.items()}
        with evaluating(self.net):
            outputs = [call(self.net, tensors, x.to(self.device)) for x, _ in batches]
        return torch.cat(outputs).float().cpu()

    def _probs(self, tensors: dict[str, Tensor], batches: Batches) -> Tensor:
        """(n, K) probabilities of one network."""
        outputs = self._outputs(tensors, batches)
        if self.target.get("outputs") == "values" or outputs.ndim != 2 or outputs.shape[-1] == 1:
            raise ConfigError(
                f"outputs of shape {tuple(outputs.shape)} under the loss {brief(self.target.get('loss'))} are not "
                "class probabilities: use posterior.moments(x)"
            )
        return outputs.softmax(-1)

    def _check_fits(self, stacked: dict[str, Tensor], path: Path) -> None:
        tensors = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        wrong = [
            k
            for k in tensors.keys() | stacked.keys()
            if k not in tensors or k not in stacked or stacked[k].shape[1:] != tensors[k].shape
        ]
        if wrong:
            raise StoreError(
                f"{path} holds samples of another network: {min(wrong)} does not fit; pass the net of the run"
            )


class Batches:
    """Batches (x, y or None) that every pass gives in the same order; a shuffling loader is read once and kept.

    Tensors, and loaders over tensors (`bdl.data.TensorSlices`), are moved to the device once, not for every sample.
    """

    def __init__(self, data: Tensor | Iterable[Any], device: torch.device):
        if hasattr(data, "to"):
            data = data.to(device)  # type: ignore[union-attr]
        fixed = isinstance(data, Tensor) or getattr(data, "shuffles", True) is False
        fixed = fixed or (isinstance(data, DataLoader) and isinstance(data.sampler, SequentialSampler))
        self._data: Any = [data] if isinstance(data, Tensor) else data if fixed else list(data)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for batch in self._data:
            parts = [batch] if isinstance(batch, Tensor) else batch
            yield parts[0], parts[1] if len(parts) > 1 else None

    def labels(self) -> Tensor:
        """(n,) labels of all batches, on the CPU. Raises ConfigError if a batch has none."""
        labels = [y for _, y in self]
        if not labels or any(y is None for y in labels):
            raise ConfigError("evaluation needs a loader of (x, y) batches")
        return torch.cat([y for y in labels if y is not None]).cpu()


class _PosteriorModule(nn.Module):
    def __init__(self, posterior: Posterior, kind: Kind):
        super().__init__()
        self.posterior = posterior
        self.kind: Kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return self.posterior.predict(x, self.kind).probs
