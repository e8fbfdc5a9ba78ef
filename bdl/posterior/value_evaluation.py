"""Evaluation of predictions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.likelihoods import Likelihood, as_columns
from bdl.posterior.convergence import repeat_error
from bdl.posterior.evaluation import POINTS, ClassEvaluation, PosteriorEvaluation
from bdl.posterior.mixture import PredictiveMixture, StoredOutputs
from bdl.posterior.prediction import ValuePrediction, of_mixture
from bdl.posterior.value_metrics import value_metrics
from bdl.posterior.weights import Weights


class ValueEvaluation(PosteriorEvaluation):
    """Evaluation of predictive laws of numbers; y in the units that the networks saw.

    It holds the outputs of all networks, see `bdl.posterior.mixture.StoredOutputs`, because their mixture has no short
    form.
    """

    def __init__(self, likelihood: Likelihood, y: Tensor, chains: int, importance: Weights | None = None):
        super().__init__(likelihood, y, chains, importance)
        self._outputs, self._chain_of = StoredOutputs(), []  # the chain of every network
        self._weights: list[Tensor] = []  # importance weights
        self._log: Tensor = torch.full((chains, len(y)), -math.inf, dtype=torch.float64)  # of sums of densities
        self._means: Tensor | None = None  # (chains, n, k) sums of means
        self._mean_rows: list[list[np.ndarray]] = [[] for _ in range(chains)]
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
        if not self._weights or not bool((weights := torch.cat(self._weights)).any()):
            return None
        return self._of(weights)

    @property
    def quantities(self) -> np.ndarray:
        """The log density at y and the mean: two means on either side of y may have the same density."""
        return np.concatenate([self.log_probs, self._means_of_draws()], -1)

    def repeat_error(self) -> dict[str, float]:
        """In standard deviations of the predictions."""
        std = self.bma.std.double().numpy()
        seen = self._count > 0
        averages = (self._means[seen] / self._count[seen].view(-1, 1, 1)).numpy()  # type: ignore[index]
        points = self._points.numpy()
        return repeat_error(averages, std, self._means_of_draws() / std[points, points % std.shape[1]])

    def constant_nll(self) -> float:
        y = self.y.double().reshape(len(self.y), -1)
        return float(-constant_law(y, self.likelihood.counts).log_prob(y).sum(-1).mean())

    def averages(self) -> dict[str, list[Any]]:
        weighted = self.bma_weighted
        rows: dict[str, list[Any]] = {"one_sample": self.one_sample, "chain_bma": self.chain_bma, "bma": [self.bma]}
        return rows if weighted is None else rows | {"bma_weighted": [weighted]}

    def scores(self, prediction: ValuePrediction) -> dict[str, float]:
        return value_metrics(prediction, self.y)

    def _of(self, weights: Tensor) -> ValuePrediction:
        return of_mixture(PredictiveMixture(self._outputs, self.likelihood, weights))

    def _means_of_draws(self) -> np.ndarray:
        """(chains, draws, points) means of single networks, of one target of each item in turn."""
        draws = min(len(rows) for rows in self._mean_rows)
        return np.stack([np.stack(rows[:draws]) for rows in self._mean_rows])

    def _prepared(self, outputs: Tensor) -> Tensor:
        return outputs

    def _log_density(self, values: Tensor) -> Tensor:
        return self._log_densities(values[:, self._points], self.y[self._points])

    def _log_densities(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(s, n) log densities of y under each of s networks."""
        columns = as_columns(y.double(), torch.Size((len(y), self.likelihood.num_targets(outputs.shape[-1]))))
        return self.likelihood.log_density(outputs.double(), columns).sum(-1)

    def _record(self, chains: Sequence[int], values: Tensor, weights: Tensor | None) -> None:
        self._outputs.add(values)
        self._chain_of += chains
        if self.importance is not None:
            self._weights.append(torch.zeros(len(chains), dtype=torch.float64) if weights is None else weights.double())

    def _add_up(self, chains: Sequence[int], values: Tensor) -> None:
        if not len(values):
            return
        means, logs = self.likelihood.mean(values.double()), self._log_densities(values, self.y)
        if self._means is None:
            self._means = torch.zeros(self.chains, *means.shape[1:], dtype=torch.float64)
        for chain, mean, log in zip(chains, means, logs, strict=True):
            self._means[chain] += mean
            self._mean_rows[chain].append(mean[self._points, self._points % mean.shape[1]].numpy())
            self._log[chain] = torch.logaddexp(self._log[chain], log)

    def _extend_curve(self, count: int) -> None:
        means, total = self._means, count * self.chains
        assert means is not None
        y = as_columns(self.y.double(), means.shape[1:])
        self.curve.samples.append(total)
        self.curve.nll.append(math.log(total) - self._log.logsumexp(0).mean().item())
        self.curve.chain_nll.append(math.log(count) - self._log.mean().item())
        self.curve.rmse.append((means.sum(0) / total - y).square().mean().sqrt().item())
        self.curve.chain_rmse.append((means / count - y).square().mean((1, 2)).sqrt().mean().item())


def constant_law(y: Tensor, counts: bool) -> torch.distributions.Distribution:
    """The law of targets (n, k) for all items alike: normal, or for counts negative binomial, of their moments."""
    mean, variance = y.mean(0), y.var(0, unbiased=False).clamp_min(torch.finfo(y.dtype).tiny)
    if not counts:
        return torch.distributions.Normal(mean, variance.sqrt())
    mean = mean.clamp_min(torch.finfo(y.dtype).tiny)
    excess = (variance - mean).clamp_min(1e-6 * mean)  # hardly more than none: Poisson
    return torch.distributions.NegativeBinomial(mean.square() / excess, probs=excess / (mean + excess))


def evaluation_of(
    likelihood: Likelihood, y: Tensor, chains: int, importance: Weights | None = None, elements: bool = False
) -> PosteriorEvaluation:
    """An evaluation of the kind that the likelihood's outputs call for. elements: see `PosteriorEvaluation`."""
    if likelihood.outputs == "values":
        return ValueEvaluation(likelihood, y, chains, importance)
    return ClassEvaluation(likelihood, y, chains, importance, elements)
