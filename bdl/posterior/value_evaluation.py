"""Evaluation of predictions of numbers, and what a report shows of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bdl.likelihoods import Likelihood, as_columns
from bdl.posterior.diagnostics import Draws, repeat_error
from bdl.posterior.evaluation import POINTS, ClassEvaluation, PosteriorEvaluation
from bdl.posterior.metrics import QUANTILES, constant_value_losses, shares_below, value_metrics
from bdl.posterior.mixture import PredictiveMixture, StoredOutputs
from bdl.posterior.outputs import LabelledOutputs
from bdl.posterior.prediction import ValuePrediction, of_mixture
from bdl.posterior.samples import Samples
from bdl.posterior.weights import Weights

Progress = Callable[[int, int], None]  # called with the work that is done, and with all of it

PRIOR = 10  # residuals as large as they should be


class ValueEvaluation(PosteriorEvaluation):
    """Evaluation of laws of numbers, y as the networks saw it. It holds all outputs, which their mixture needs."""

    def __init__(self, likelihood: Likelihood, y: Tensor, chains: int):
        super().__init__(likelihood, y, chains)
        self._outputs = StoredOutputs()
        self._chain_of: list[int] = []  # every network
        self._weights: list[Tensor] = []  # importance weights
        self._log = torch.full((chains, len(y)), -math.inf, dtype=torch.float64)  # log of sums of densities
        self._means = torch.zeros(())  # (chains, n, k) sums of means, from the first network on
        self._mean_p = Draws(chains)  # means at the points, for one target of each item in turn
        self._points = torch.linspace(0, len(y) - 1, min(POINTS, len(y))).long()

    @property
    def one_sample(self) -> list[ValuePrediction]:
        """The prediction of each chain's last sample."""
        last = {chain: i for i, chain in enumerate(self._chain_of)}
        return [self._of(torch.arange(len(self._chain_of)) == last[c]) for c in sorted(last)]

    @property
    def chain_bma(self) -> list[ValuePrediction]:
        """The uniform mixture over the samples of each chain."""
        chain_of = torch.tensor(self._chain_of)
        return [self._of(chain_of == c) for c in sorted(set(self._chain_of))]

    @property
    def bma(self) -> ValuePrediction:
        """The uniform mixture over all samples of all chains."""
        return self._of(torch.ones(len(self._chain_of)))

    @property
    def bma_weighted(self) -> ValuePrediction | None:
        """The importance-weighted mixture of all samples; None without such weights."""
        weights = torch.cat(self._weights)
        return self._of(weights) if bool(weights.any()) else None

    @property
    def quantities(self) -> np.ndarray:
        """The log density at y and the mean: two means on either side of y may have the same density."""
        return np.concatenate([self.log_probs, self._mean_p.array()], -1)

    def repeat_error(self) -> dict[str, float]:
        """In standard deviations of the predictions, or in residuals where these are smaller on average.

        `mcse/unit` is the residuals over the standard deviations, 1 at most. Ten residuals of that size are assumed
        beside those that are known, because a few may be small by chance.
        """
        bma = self.bma
        std = bma.std.double()
        squares = ((as_columns(self.y.double(), std.shape) - bma.mean.double()) / std).square()
        unit = math.sqrt(min((float(squares.sum()) + PRIOR) / (squares.numel() + PRIOR), 1.0))
        scale = unit * std.numpy()
        seen = self._count > 0
        averages = (self._means[seen] / self._count[seen].view(-1, 1, 1)).numpy()
        points = self._points.numpy()
        draws = self._mean_p.array() / scale[points, points % scale.shape[1]]
        return repeat_error(averages, scale, draws) | {"mcse/unit": unit}

    def losses(self) -> Tensor:
        return math.log(int(self._count.sum())) - self._log.logsumexp(0)

    def constant_losses(self, seen: Tensor | None = None) -> Tensor:
        return constant_value_losses(self.y, self.likelihood.counts, seen)

    def claim(self) -> float:
        bma = self.bma
        variance = bma.std.double().square()
        of_all = variance.mean(0) + bma.mean.double().var(0, unbiased=False)
        return float((of_all.log() - variance.log().mean(0)).sum() / 2)

    def scores(self, prediction: ValuePrediction) -> dict[str, float]:
        return value_metrics(prediction, self.y)

    def _of(self, weights: Tensor) -> ValuePrediction:
        return of_mixture(PredictiveMixture(self._outputs, self.likelihood, weights))

    def _record(
        self, chains: Sequence[int], outputs: Tensor, weights: Tensor | None
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """The means (n, k) and the log densities (n,) of y of every network."""
        self._outputs.add(outputs)
        self._weights.append(torch.zeros(len(chains), dtype=torch.float64) if weights is None else weights.double())
        outputs = outputs.double()
        means = self.likelihood.mean(outputs)
        logs = self.likelihood.log_density(outputs, as_columns(self.y.double(), means.shape[1:])).sum(-1)
        if not self._chain_of:
            self._means = torch.zeros(self.chains, *means.shape[1:], dtype=torch.float64)
        self._chain_of += chains
        self._log_p.add(chains, logs[:, self._points].numpy())
        self._mean_p.add(chains, means[:, self._points, self._points % means.shape[2]].numpy())
        return zip(means, logs, strict=True)

    def _add_up(self, chain: int, values: tuple[Tensor, Tensor]) -> None:
        mean, log = values
        self._means[chain] += mean
        self._log[chain] = torch.logaddexp(self._log[chain], log)

    def _scores_of_sums(self, count: int) -> tuple[float, float, float, float]:
        means, total = self._means, count * self.chains
        y = as_columns(self.y.double(), means.shape[1:])
        return (
            (means.sum(0) / total - y).square().mean().sqrt().item(),
            math.log(total) - self._log.logsumexp(0).mean().item(),
            (means / count - y).square().mean((1, 2)).sqrt().mean().item(),
            math.log(count) - self._log.mean().item(),
        )


def evaluation_of(
    likelihood: Likelihood, y: Tensor, chains: int, tokens: bool = False, parts: bool = False, pixels: bool = False
) -> PosteriorEvaluation:
    """An evaluation of the kind that the likelihood's outputs call for; the rest: see `ClassEvaluation`."""
    if likelihood.outputs == "values":
        return ValueEvaluation(likelihood, y, chains)
    return ClassEvaluation(likelihood, y, chains, tokens, parts, pixels)


def evaluations_of(
    labelled: Mapping[str, LabelledOutputs],
    samples: Samples,
    weights: Weights,
    importance: Weights | None,
    progress: Progress | None,
    parts: bool = False,
) -> dict[str, PosteriorEvaluation]:
    """The evaluations by name, in one pass over the samples that have a weight; see `Posterior.evaluate_all`."""
    evaluations = {
        name: evaluation_of(one.likelihood, one.y, samples.chains, one.tokens, parts, one.pixels)
        for name, one in labelled.items()
    }
    done, total = 0, len(samples.keyed()) * sum(e.items for e in evaluations.values())
    for group in samples.groups(weights.by_key):
        for name, evaluation in evaluations.items():
            for block, outputs in labelled[name].blocks(group):
                evaluation.add(block.chains, outputs, None if importance is None else importance.of(block.keys))
                done += len(block) * evaluation.items
                if progress is not None:
                    progress(done, total)
    return evaluations


@dataclass(frozen=True)
class Units:
    """The name and the units of a target: shift + scale x what the network sees."""

    name: str = "target"
    shift: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class Values:
    """The first target of n items in its units, and the calibration of all targets."""

    units: Units
    y: np.ndarray  # (n,)
    mean: np.ndarray  # (n,)
    std: np.ndarray  # (n,)
    low: np.ndarray  # (n,) lower end of the central 90 % interval
    high: np.ndarray  # (n,)
    shares: Mapping[str, tuple[np.ndarray, np.ndarray]]  # name -> (q, share of y below the predicted q-quantile)
    targets: int = 1  # targets of an item

    @classmethod
    def of(cls, evaluation: ValueEvaluation, units: Units | None = None) -> Values:
        """From the average over all chains, and the quantiles of one sample beside it."""
        prediction, y = evaluation.bma, evaluation.y.reshape(len(evaluation.y), -1)
        low, high = prediction.interval(0.9)
        parts = (y, prediction.mean, low, high, prediction.std)
        *places, std = (part[:, 0].double().numpy() for part in parts)
        units, q = units or Units(), torch.tensor(QUANTILES, dtype=torch.float64)
        data, mean, low, high = (units.shift + units.scale * part for part in places)
        named = {"one sample": evaluation.one_sample[0], "average of all chains": prediction}
        shares = {name: (q.numpy(), shares_below(p, y, q).numpy()) for name, p in named.items()}
        return cls(units, data, mean, units.scale * std, low, high, shares, y.shape[1])
