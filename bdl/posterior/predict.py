"""Posterior: predictive averages over the samples on disk. Each pass reads a sample file once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from bdl.batch import Reader
from bdl.display import Progress
from bdl.engine.forward import Method
from bdl.errors import ConfigError
from bdl.likelihoods import BernoulliNLL, CategoricalNLL, Likelihood, ValueNLL
from bdl.parts import PartMethod
from bdl.posterior.doubt import tell_doubt
from bdl.posterior.evaluation import PosteriorEvaluation
from bdl.posterior.export import PosteriorModule, gathered_networks, thinned, tree
from bdl.posterior.moments import WeightedMoments
from bdl.posterior.networks import StoredNetworks, WeightKind
from bdl.posterior.outputs import Batches, Data, ItemOutputs
from bdl.posterior.passes import evaluations_of
from bdl.posterior.prediction import (
    AnyPrediction,
    LabelPrediction,
    Prediction,
    ValuePrediction,
    prediction_of,
    with_elements,
)
from bdl.posterior.recorded import tell_differences
from bdl.posterior.samples import stores_of
from bdl.posterior.seen_inputs import tell_far
from bdl.posterior.tensors import sampled_part

INTERNAL = {
    "batches", "diverged", "frozen", "given_likelihood", "keyed", "opened", "part", "predicted", "read",
    "read_record", "recorded", "records", "shown", "stored", "stores", "thinned_from",
    "weighted_likelihood",
}  # fmt: skip
RunDirs = str | Path | Sequence[str | Path]
P = TypeVar("P", bound=AnyPrediction, covariant=True)  # what `predict` returns, where `load` is given a likelihood


class Posterior(StoredNetworks, Generic[P]):
    """The samples of one or several runs, and predictive averages over them.

    A pass reads each file once, uses its networks together on all the data, and drops them. Memory does not depend
    on the number of samples, unless `cache` keeps them. Checksums are verified at the first reading of a file, and
    again only if it has been written since.
    """

    distil = PartMethod()
    draws = PartMethod()
    function = PartMethod()
    influence = PartMethod()
    outputs = PartMethod()
    thin = PartMethod()
    save = PartMethod()

    @overload
    @classmethod
    def load(
        cls, run_dirs: RunDirs, net: nn.Module, *, skip_bad: bool = False, likelihood: CategoricalNLL
    ) -> Posterior[Prediction]: ...
    @overload
    @classmethod
    def load(
        cls, run_dirs: RunDirs, net: nn.Module, *, skip_bad: bool = False, likelihood: BernoulliNLL
    ) -> Posterior[LabelPrediction]: ...
    @overload
    @classmethod
    def load(
        cls, run_dirs: RunDirs, net: nn.Module, *, skip_bad: bool = False, likelihood: ValueNLL
    ) -> Posterior[ValuePrediction]: ...
    @overload
    @classmethod
    def load(
        cls, run_dirs: RunDirs, net: nn.Module, *, skip_bad: bool = False, likelihood: Likelihood | None = None
    ) -> Posterior[Any]: ...
    @classmethod
    def load(
        cls, run_dirs: RunDirs, net: nn.Module, *, skip_bad: bool = False, likelihood: Likelihood | None = None
    ) -> Posterior[Any]:
        """The posterior of one run directory, or of several whose stacks are merged.

        Args:
            run_dirs: one directory or several.
            net: the network that was sampled, all of it or a part, or a module that holds it, such as the
                LightningModule. Its values are neither used nor changed: the values of a frozen part come from the run.
                Its methods `inputs(batch)` and `targets(batch)`, if it has them, read the batches.
            skip_bad: leave out samples whose file, or line in the index, is missing, cut short or altered, each with a
                warning.
            likelihood: what the outputs mean; None for the likelihood that the run was sampled with. Runs with a loss
                that bdl does not know need it for predictions.

        Warns with a VerdictWarning where a run has recorded a verdict other than "trust", and with a BdlWarning where
        layers of the network, or the likelihood, are not those that the run recorded.

        Raises StoreError without samples, if a run is given twice, or for runs of different targets (N, T, data, ...).
        """
        posterior = cls.opened(run_dirs, net, skip_bad=skip_bad, likelihood=likelihood)
        tell_differences(posterior.target, posterior.net, net, likelihood)
        tell_doubt([store.run_dir for store in posterior.stores])
        return posterior

    @classmethod
    def opened(
        cls, run_dirs: RunDirs, net: nn.Module, *, skip_bad: bool = False, likelihood: Likelihood | None = None
    ) -> Posterior[Any]:
        """`load` without a word on the verdict, for those who say it themselves."""
        stores = stores_of(run_dirs, skip_bad)
        part = sampled_part(net, stores[0].target())
        return cls(stores, part, skip_bad=skip_bad, likelihood=likelihood, read=Reader(net, part))

    def __dir__(self) -> list[str]:
        """The names for users; names that reports and baselines need are left out."""
        return [name for name in super().__dir__() if not name.startswith("_") and name not in INTERNAL]

    @torch.no_grad()
    def moments(
        self, data: Data, function: Callable[[Tensor], Tensor] = lambda outputs: outputs, kind: WeightKind | None = None
    ) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation (n, ...) of a function of the outputs (n, ...), for regression.

        Sums run in double precision, and no squares of the mean enter them: the standard deviation is right however
        small it is beside the mean.
        """
        moments = WeightedMoments()
        for outputs, weights in ItemOutputs(self.stored, self.batches(data)).weighted(self.weights(kind)):
            moments.add(torch.stack([function(one.contiguous()) for one in outputs]), weights)
        return moments.mean.float(), moments.std.float()

    @torch.no_grad()
    def predict(self, data: Data, kind: WeightKind | None = None) -> P:
        """Predictive distribution for x (n, ...), or for a loader of batches.

        x is a tensor, a NumPy array, a list of rows or a pandas table of numbers, in any floating point dtype.

        It is a `Prediction` of classes, a `LabelPrediction` or a `ValuePrediction`, as the likelihood says. Several
        inputs are a tuple in order, or a dict by name. Where an item has several elements, such as tokens or pixels,
        the tensors of the prediction have their axes behind the first, unless the batches differ in them: then the
        elements stand one after the other.

        kind: weights of the samples, "uniform", "step_size" (proportional to lr), "importance" (which turns samples
            of a weighted distribution into samples of exp(-U/T)), or "stacking" (weights of chains by how well they
            predict, see `stack`).

        Warns with a BdlWarning of inputs that are far from all training items, where the run has seen these.

        Raises ConfigError if neither the run nor `load` says what the outputs mean, if the outputs do not fit the
        likelihood, if importance weights are not valid, or if there are no stacking weights.
        """
        batches = self.batches(data)
        tell_far(self.stores, batches)
        return self.predicted(batches, kind)

    def evaluate(self, loader: Iterable[Any]) -> PosteriorEvaluation:
        """Compares one sample, one chain's average and all chains' average with the labels of (x, y) batches.

        With stacking weights, see `stack`, also the stacked average.
        """
        return self.evaluate_all({"": loader})[""]

    @torch.no_grad()
    def evaluate_all(
        self, loaders: Mapping[str, Iterable[Any]], progress: Progress | None = None, parts: bool = False
    ) -> dict[str, PosteriorEvaluation]:
        """`evaluate` on several loaders by name. Every sample is read once for all of them, or see `evaluations_of`.

        progress: called with the work that is done and with all the work, in predictions of one network for one item.
        parts: keep the parts of the uncertainty of each item of classes, `uncertainty` and `strangeness`.
        """
        try:
            importance = self.weights("importance")
        except ConfigError:
            importance = None
        labelled = {name: self._labelled(loader) for name, loader in loaders.items()}
        evaluations = evaluations_of(labelled, self.stored, self.weights("uniform"), importance, progress, parts)
        for evaluation in evaluations.values():
            evaluation.stacking = self.stacking
        return evaluations

    def as_module(
        self, kind: WeightKind | None = None, samples: int | None = None, method: Method = "auto"
    ) -> PosteriorModule:
        """A module that maps x to mean probabilities (n, K), or to means of numbers, and holds its samples itself.

        Args:
            kind: weights of the samples, see `predict`.
            samples: how many networks it holds, evenly spaced along every chain; None for all.
            method: how the networks run together, see `Forward`; "vmap" is one pass for any network.

        Raises ConfigError unless 1 <= samples <= their number.
        """
        weights = thinned(self.weights(kind).by_key, samples)
        frozen = {name: t.clone() for name, t in self.stored.frozen.items()}  # some lie in the network's memory
        return PosteriorModule(
            self.net, *gathered_networks(self.stored.groups(weights), weights), self._law(), method, frozen
        )

    @torch.no_grad()
    def to_arviz(
        self,
        data: Data | None = None,
        *,
        parameters: str | Sequence[str] | None = None,
        projections: int = 10,
        seed: int = 0,
        log_likelihood: bool | int = True,
        posterior_predictive: bool | int = True,
    ) -> Any:
        """An ArviZ DataTree with axes (chain, draw), for `arviz_stats` (summary, rhat, ess, loo) and `arviz_plots`.

        Its groups are `posterior` (parameters, or projections of all of them), `sample_stats` (energy, lr, temperature,
        weight), and for labelled batches `log_likelihood`, `posterior_predictive` (one draw of y from each network) and
        `observed_data`. Chains are cut to the length of the shortest one. If only batch energies are known, the energy
        of a run's last state is not, and that draw is left out of all groups.

        Args:
            data: a loader of labelled batches.
            parameters: names of parameters, or patterns such as "*.bias"; None for projections.
            projections: number of random directions, the same for every run of a network.
            seed: names the random stream of the draws of y.
            log_likelihood, posterior_predictive: whether the group is there, or for how many draws of each chain,
                evenly spaced: each draw holds a number of every item.

        Raises ConfigError for a pattern that matches no parameter, and for a number of draws below 1.
        """
        labelled = None if data is None else self._labelled(data)
        each = {"log_likelihood": log_likelihood, "posterior_predictive": posterior_predictive}
        return tree(self.stored, self.weights().by_key, parameters, projections, labelled, seed, each)

    def predicted(self, batches: Batches, kind: WeightKind | None = None) -> P:
        """`predict` of batches in the form that the networks take."""
        likelihood = self.likelihood(batches)
        stream = ItemOutputs(self.stored, batches, likelihood).weighted(self.weights(kind))
        return cast(P, with_elements(prediction_of(stream, likelihood), batches.elements))
