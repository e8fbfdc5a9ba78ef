"""Posterior: predictive averages over the samples on disk. Each pass reads a sample file once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from bdl.batch import Reader
from bdl.engine.forward import Method
from bdl.errors import ConfigError
from bdl.likelihoods import BernoulliNLL, CategoricalNLL, Likelihood, ValueNLL
from bdl.posterior.distil import Distillation, Distilled, distilled
from bdl.posterior.evaluation import PosteriorEvaluation
from bdl.posterior.export import PosteriorModule, gathered, thinned, tree
from bdl.posterior.moments import WeightedMoments
from bdl.posterior.networks import Kind, StoredNetworks
from bdl.posterior.outputs import Batches, Data, ItemOutputs, LabelledOutputs
from bdl.posterior.passes import Progress, evaluations_of
from bdl.posterior.prediction import (
    AnyPrediction,
    LabelPrediction,
    Prediction,
    ValuePrediction,
    prediction_of,
    with_elements,
)
from bdl.posterior.samples import Key, stores_of
from bdl.posterior.tensors import sampled_part
from bdl.posterior.thin import By, Densities, densities_of_average, densities_of_labels, thin_out

INTERNAL = {
    "diverged", "frozen", "given_likelihood", "keyed", "read", "read_record", "recorded", "records", "shown", "stores",
    "thinned",
}  # fmt: skip
RunDirs = str | Path | Sequence[str | Path]
P = TypeVar("P", bound=AnyPrediction, covariant=True)  # what `predict` returns, where `load` is given a likelihood


class Posterior(StoredNetworks, Generic[P]):
    """The samples of one or several runs, and predictive averages over them.

    A pass reads each file once, uses its networks together on all the data, and drops them. Memory does not depend
    on the number of samples, unless `cache` keeps them. Checksums are verified at the first reading of a file, and
    again only if it has been written since.
    """

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
                LightningModule. Its values are neither used nor changed: those of a frozen part come from the run. Its
                methods `inputs(batch)` and `targets(batch)`, if it has them, read the batches.
            skip_bad: leave out samples whose file, or line in the index, is missing, cut short or altered, each with a
                warning.
            likelihood: what the outputs mean; None for the one that the run was sampled with. Runs whose loss is none
                that bdl knows need it for predictions.

        Raises StoreError without samples, if a run is given twice, or for runs of different targets (N, T, data, ...).
        """
        stores = stores_of(run_dirs, skip_bad)
        part = sampled_part(net, stores[0].target())
        return cls(stores, part, skip_bad=skip_bad, likelihood=likelihood, read=Reader(net, part))

    def __dir__(self) -> list[str]:
        """The names for users; those that reports and baselines need are left out."""
        return [name for name in super().__dir__() if not name.startswith("_") and name not in INTERNAL]

    @torch.no_grad()
    def moments(
        self, data: Data, function: Callable[[Tensor], Tensor] = lambda outputs: outputs, kind: Kind = "uniform"
    ) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation (n, ...) of a function of the outputs (n, ...), for regression.

        Sums run in double precision, and no squares of the mean enter them: the standard deviation is right however
        small it is beside the mean.
        """
        moments = WeightedMoments()
        for outputs, weights in ItemOutputs(self._samples, self._batches(data)).weighted(self.weights(kind)):
            moments.add(torch.stack([function(one.contiguous()) for one in outputs]), weights)
        return moments.mean.float(), moments.std.float()

    @torch.no_grad()
    def predict(self, data: Data, kind: Kind = "uniform") -> P:
        """Predictive distribution for x (n, ...), or for a loader of batches.

        x is a tensor, a NumPy array, a list of rows or a pandas table of numbers, in any floating point dtype.

        It is a `Prediction` of classes, a `LabelPrediction` or a `ValuePrediction`, as the likelihood says. Several
        inputs are a tuple in order, or a dict by name. Where an item has several elements, such as tokens or pixels,
        the tensors of the prediction have their axes behind the first, unless the batches differ in them: then the
        elements stand one after the other.

        kind: weights of the samples, "uniform", "step_size" (proportional to lr), or "importance" (which turns samples
        of a weighted distribution into samples of exp(-U/T)).

        Raises ConfigError if neither the run nor `load` says what the outputs mean, if the outputs do not fit the
        likelihood, or if importance weights are not valid.
        """
        return self._predicted(self._batches(data), kind)

    def evaluate(self, loader: Iterable[Any]) -> PosteriorEvaluation:
        """Compares one sample, one chain's average and all chains' average with the labels of (x, y) batches."""
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
        return evaluations_of(labelled, self._samples, self.weights(), importance, progress, parts)

    def as_module(self, kind: Kind = "uniform", samples: int | None = None, method: Method = "auto") -> PosteriorModule:
        """A module that maps x to mean probabilities (n, K), or to means of numbers, and holds its samples itself.

        Args:
            kind: weights of the samples, see `predict`.
            samples: how many networks it holds, evenly spaced along every chain; None for all.
            method: how the networks run together, see `Forward`; "vmap" is one pass for any network.

        Raises ConfigError unless 1 <= samples <= their number.
        """
        weights = thinned(self.weights(kind).by_key, samples)
        frozen = {name: t.clone() for name, t in self._samples.frozen.items()}  # some lie in the network's memory
        return PosteriorModule(self.net, *gathered(self._samples.groups(weights), weights), self._law(), method, frozen)

    def distil(
        self, net: nn.Module, data: Data, *, test: Iterable[Any] | None = None, settings: Distillation | None = None
    ) -> Distilled:
        """One network that is trained on the predictions of the average over all samples, and what it loses.

        The number of its outputs says what it keeps. For K classes there are K logits, for k labels k logits, for k
        numbers k means and k log variances. One more output for classes, or k more, are logits of the share of the
        uncertainty that is epistemic; the student then splits the uncertainty as the average does.

        The student is right where `data` are and between them, so add inputs without labels if there are any. All
        inputs are in memory together.

        Args:
            net: the student's architecture and the weights at which it begins. It is copied, and may be smaller.
            data: x (n, ...), or a loader. Labels are not used.
            test: a loader of (x, y) batches, on which average and student are compared.
            settings: of the training.

        Raises ConfigError for a number of outputs that does not fit, and for counts, whose average has no simple law.
        """
        batches, student = self._batches(data), copy.deepcopy(net).to(self.device)
        likelihood, settings = self._likelihood(batches), settings or Distillation()
        found = distilled(student, self.net, self._predicted, likelihood, batches, settings, self.samples)
        if test is None:
            return found
        batches = self._batches(test)
        return found.compared(self._predicted(batches), likelihood, batches)

    @torch.no_grad()
    def thin(self, k: int, data: Data, *, by: By = "divergence", test: Iterable[Any] | None = None) -> Posterior[P]:
        """The k networks whose average is nearest to that of all: a posterior that predicts in k / n of the time.

        They are chosen one after the other, each as the one that brings the average nearest. Where as many networks
        evenly spaced along the chains are nearer, it is these. `thinning` of the result has the scores of both; `save`
        writes the result as a run directory. Each network is a chain of its own in it, so that R-hat and ESS cannot be
        asked of it. Networks count alike.

        Args:
            k: how many networks.
            data: x (n, ...), or a loader of items like those that will be predicted.
            by: "divergence" from the average of all, which needs no labels; or "nll", mean -log p(y) of labelled
                items that were not trained on. Few items lead the latter astray: thousands of sets are tried on them.
            test: a loader of other (x, y) batches, on which the sets are compared.

        Raises ConfigError unless 1 <= k <= their number, and for "nll" without labels.
        """
        used = self.weights().by_key
        if not 1 <= k <= len(used):
            raise ConfigError(f"k must be between 1 and the {len(used)} networks, got {k}")
        spaced = list(thinned(used, k))
        thinning = thin_out(k, spaced, by, *self._densities(by, self._batches(data), used))
        if test is not None:
            batches = self._batches(test)
            ways: tuple[By, ...] = ("nll", "divergence")
            for way in ways:
                thinning = thinning.compared(way, spaced, *self._densities(way, batches, used))
        return self.thinned(thinning)

    def _densities(self, by: By, batches: Batches, used: Mapping[Key, float]) -> tuple[list[Key], Densities]:
        likelihood = self._likelihood(batches)
        if by == "nll":
            return densities_of_labels(LabelledOutputs(self._samples, batches, likelihood), used)
        return densities_of_average(ItemOutputs(self._samples, batches, likelihood), used, self._predicted(batches))

    @torch.no_grad()
    def to_arviz(
        self,
        data: Data | None = None,
        *,
        parameters: str | Sequence[str] | None = None,
        projections: int = 10,
        seed: int = 0,
    ) -> Any:
        """An ArviZ DataTree with axes (chain, draw), for `arviz_stats` (summary, rhat, ess, loo) and `arviz_plots`.

        Its groups are `posterior` (parameters, or projections of all of them), `sample_stats` (energy, lr, temperature,
        weight), and for labelled batches `log_likelihood`, `posterior_predictive` (one draw of y from each network) and
        `observed_data`. Chains are cut to the length of the shortest one. If only batch energies are known, the energy
        of a run's last state is not, and that draw is left out of all groups.

        Args:
            data: a loader of labelled batches.
            parameters: names of parameters, or patterns such as "*.bias"; None for projections.
            projections: number of random directions, the same ones for every run of a network.
            seed: names the random stream of the draws of y.

        Raises ConfigError for a pattern that matches no parameter.
        """
        labelled = None if data is None else self._labelled(data)
        return tree(self._samples, self.weights().by_key, parameters, projections, labelled, seed)

    def _predicted(self, batches: Batches, kind: Kind = "uniform") -> P:
        likelihood = self._likelihood(batches)
        stream = ItemOutputs(self._samples, batches, likelihood).weighted(self.weights(kind))
        return cast(P, with_elements(prediction_of(stream, likelihood), batches.elements))
