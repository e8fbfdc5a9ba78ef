"""Posterior: predictive averages over the samples on disk. Each pass reads a sample file once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bdl.errors import ConfigError, StoreError
from bdl.functional import evaluating
from bdl.likelihoods import Likelihood, likelihood_of
from bdl.posterior.batches import Batches
from bdl.posterior.evaluation import Evaluation
from bdl.posterior.forward import Forward
from bdl.posterior.moments import Moments
from bdl.posterior.prediction import AnyPrediction, ValuePrediction, predict
from bdl.posterior.samples import Group, Samples
from bdl.posterior.store import Record, SampleStore, brief, refuse_other_target
from bdl.posterior.value_evaluation import evaluation_of
from bdl.posterior.weights import Keyed, Weights, sample_weights

Kind = Literal["uniform", "step_size", "importance"]
Progress = Callable[[int, int], None]  # called with the networks that are done, and with their number


@dataclass(frozen=True)
class Sample:
    """One network of the posterior."""

    chain: int  # index among all chains of all runs
    record: Record
    weight: float
    tensors: dict[str, Tensor]  # parameters and buffers by name


class Posterior:
    """The samples of one or several runs, and predictive averages over them.

    Every pass reads each file once, uses its networks together on all the data, and drops them. Memory does not depend
    on the number of samples, unless `cache` keeps them. Checksums are verified at the first reading of a file, and
    again only if it has been written since.
    """

    def __init__(
        self,
        stores: Sequence[SampleStore],
        net: nn.Module,
        *,
        skip_bad: bool = False,
        likelihood: Likelihood | None = None,
    ):
        self.stores, self.net, self._likelihood = list(stores), net, likelihood
        self.target = self.stores[0].target()
        self._samples = Samples(stores, net, skip_bad)
        self._weights: dict[tuple[str, int], Weights] = {}  # by kind and number of files, which bad files lower

    @classmethod
    def load(
        cls,
        run_dirs: str | Path | Sequence[str | Path],
        net: nn.Module,
        *,
        skip_bad: bool = False,
        likelihood: Likelihood | None = None,
    ) -> Posterior:
        """The posterior of one run directory, or of several whose stacks are merged.

        Args:
            run_dirs: one directory or several.
            net: the network whose parameters and buffers were sampled. Its values are neither used nor changed.
            skip_bad: leave out sample files that are missing, cut short or altered, each with a warning.
            likelihood: what the outputs mean; None for the one that the run was sampled with. Runs whose loss is none
                that bdl knows need it for predictions.

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
        return cls(stores, net, skip_bad=skip_bad, likelihood=likelihood)

    def cache(self) -> Posterior:
        """Read all samples now and keep them in memory: later calls read no file. Returns the posterior itself.

        It takes samples x parameters x 4 bytes, on the device of the network. Files that change later go unnoticed.
        """
        self._samples.cache()
        return self

    @property
    def device(self) -> torch.device:
        """The device of the network, on which predictions are computed."""
        return self._samples.device

    @property
    def chains(self) -> int:
        """Number of chains in all runs."""
        return self._samples.chains

    @property
    def samples(self) -> int:
        """Number of networks in the posterior: files x chains."""
        return sum(len(r.chains) for r in self.records)

    @property
    def records(self) -> list[Record]:
        """The records of all files, sorted by step."""
        return [r for _, r in self._samples.files]

    def weights(self, kind: Kind = "uniform") -> Weights:
        """Normalised weights of all samples. Raises ConfigError if importance weights are not valid."""
        files = self._samples.files
        if (kind, len(files)) not in self._weights:
            stacks = {id(s): (s, {r.stack for of, r in files if of is s}) for s, _ in files}.values()
            kinds = {s.about_weighting(i)["energy"] for s, each in stacks for i in each if s.weighting(i) is not None}
            psi_of = self._samples.psi_of() if kind == "importance" else None
            weights = sample_weights(self.keyed(), self.chains, kind, kinds == {"full"}, psi_of)
            self._weights[kind, len(files)] = weights
        return self._weights[kind, len(files)]

    def keyed(self) -> list[Keyed]:
        """Every sample as (chain among all runs, record, chain within the record)."""
        return self._samples.keyed()

    @torch.no_grad()
    def moments(
        self,
        data: Tensor | Iterable[Any],
        function: Callable[[Tensor], Tensor] = lambda outputs: outputs,
        kind: Kind = "uniform",
    ) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation (n, ...) of a function of the outputs (n, ...), for regression.

        Sums run in double precision, and no squares of the mean enter them: the standard deviation is right however
        small it is beside the mean.
        """
        batches, moments = Batches(data, self.device), Moments()
        for outputs, weights in self._outputs(batches, kind):
            moments.add(torch.stack([function(one.contiguous()) for one in outputs]), weights)
        return moments.mean.float(), moments.std.float()

    @torch.no_grad()
    def predict(self, data: Tensor | Iterable[Any], kind: Kind = "uniform") -> AnyPrediction:
        """Predictive distribution for x (n, ...), or for a loader of x or (x, y) batches.

        It is a `Prediction` of classes, a `LabelPrediction` or a `ValuePrediction`, as the likelihood says.

        kind: weights of the samples, "uniform", "step_size" (proportional to lr), or "importance" (which turns samples
        of a weighted law into samples of exp(-U/T)).

        Raises ConfigError if neither the run nor `load` says what the outputs mean, if the outputs do not fit the
        likelihood, or if importance weights are not valid.
        """
        batches = Batches(data, self.device)
        return predict(self._outputs(batches, kind), self.likelihood(data))

    def likelihood(self, data: Tensor | Iterable[Any]) -> Likelihood:
        """What the outputs mean, for a network that takes such data.

        Raises ConfigError in one line where neither the run nor the caller of `load` says so.
        """
        if self._likelihood is None:
            loss = self.target.get("loss")
            self._likelihood = likelihood_of(loss, 1)
            if self._likelihood != likelihood_of(loss, 2):  # a mean squared error averages over the outputs
                self._likelihood = likelihood_of(loss, self._num_outputs(Batches(data, self.device)))
            if self._likelihood is None:
                raise ConfigError(
                    f"the run does not say what its outputs mean (its loss is {brief(loss)}): pass the law to "
                    "Posterior.load, such as likelihood=bdl.CategoricalNLL() for classes, bdl.BernoulliNLL() for "
                    "labels or bdl.HeteroscedasticNLL() for numbers; posterior.moments(x) needs none"
                )
        return self._likelihood

    def evaluate(self, loader: Iterable[Any]) -> Evaluation:
        """Compares one sample, one chain's average and all chains' average with the labels of (x, y) batches."""
        return self.evaluate_all({"": loader})[""]

    @torch.no_grad()
    def evaluate_all(
        self, loaders: Mapping[str, Iterable[Any]], progress: Progress | None = None
    ) -> dict[str, Evaluation]:
        """`evaluate` on several loaders by name. Every sample is read once.

        progress: called with the work that is done and with all the work, in predictions of one network for one item.
        """
        try:
            importance = self.weights("importance")
        except ConfigError:
            importance = None
        batches = {name: Batches(loader, self.device) for name, loader in loaders.items()}
        evaluations = {
            name: evaluation_of(self.likelihood(loaders[name]), b.labels(), self.chains, importance)
            for name, b in batches.items()
        }
        forward, done = Forward(self.net), 0
        sizes = {name: forward.together(*b.sizes()) for name, b in batches.items()}
        total = self.samples * sum(e.items for e in evaluations.values())
        for group in self._samples.groups(self.weights().by_key):
            for name, evaluation in evaluations.items():
                for block in group.blocks(sizes[name]):
                    outputs = batches[name].outputs(forward, block.tensors)
                    weights = None if importance is None else _weights_of(block, importance)
                    evaluation.add(block.chains, outputs, weights)
                    done += len(block) * evaluation.items
                    if progress is not None:
                        progress(done, total)
        return evaluations

    def as_module(self, kind: Kind = "uniform") -> nn.Module:
        """A module that maps x to mean probabilities (n, K), or to means of numbers. A call reads every sample once."""
        return _PosteriorModule(self, kind)

    def to_arviz(self) -> Any:
        """An ArviZ DataTree of energies and log weights, (chain, draw)."""
        from arviz_base import from_dict

        names = ("energy_batch", "energy_full", "log_weight")
        draws: dict[str, list[list[float]]] = {n: [[] for _ in range(self.chains)] for n in names}
        for chain, r, c in self.keyed():
            for name in names:
                values = getattr(r, name)
                draws[name][chain].append(math.nan if values is None else values[c])
        length = min(len(chain) for chain in draws["energy_batch"])
        data = {n: np.array([chain[:length] for chain in chains]) for n, chains in draws.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Found chain dimension to be longer")  # an ensemble has few draws
            return from_dict({"posterior": data})

    def stream(self, kind: Kind = "uniform") -> Iterator[Sample]:
        """Yields the networks of the posterior one by one; skips files whose weights are all 0."""
        weights = self.weights(kind).by_key
        for group in self._samples.groups(_positive(weights)):
            for i, (chain, record) in enumerate(zip(group.chains, group.records, strict=True)):
                tensors = {name: values[i] for name, values in group.tensors.items()}
                yield Sample(chain, record, weights.get((chain, record.step), 0.0), tensors)

    @torch.no_grad()
    def _num_outputs(self, batches: Batches) -> int:
        x, _ = next(iter(batches))
        with evaluating(self.net):
            return self.net(x[:1].to(self.device)).shape[-1]

    def _outputs(self, batches: Batches, kind: Kind) -> Iterator[tuple[Tensor, Tensor]]:
        """The outputs (k, n, ...) of k networks for all items, and the weights (k,) of these networks."""
        weights, forward = self.weights(kind), Forward(self.net)
        size = forward.together(*batches.sizes())
        for group in self._samples.groups(_positive(weights.by_key)):
            for block in group.blocks(size):
                yield batches.outputs(forward, block.tensors), _weights_of(block, weights)


def _positive(weights: Mapping[tuple[int, int], float]) -> Container[tuple[int, int]]:
    return {key for key, weight in weights.items() if weight}


def _weights_of(group: Group, weights: Weights) -> Tensor:
    """(k,) weights of the networks; 0 for those that have none."""
    return torch.tensor([weights.by_key.get(key, 0.0) for key in group.keys], dtype=torch.float64)


class _PosteriorModule(nn.Module):
    def __init__(self, posterior: Posterior, kind: Kind):
        super().__init__()
        self.posterior = posterior
        self.kind: Kind = kind

    def forward(self, x: Tensor) -> Tensor:
        prediction = self.posterior.predict(x, self.kind)
        return prediction.mean if isinstance(prediction, ValuePrediction) else prediction.probs
