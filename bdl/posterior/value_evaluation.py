"""Evaluation of predictions of numbers, and what a report shows of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bdl.likelihoods import Likelihood, as_columns
from bdl.posterior.diagnostics import Draws, draw_errors, most_and_worst, repeat_errors, spaced
from bdl.posterior.evaluation import RECORDED_ITEMS, ROWS, NetworkRecords, PosteriorEvaluation
from bdl.posterior.metrics import (
    constant_value_losses,
    scores_of_means,
    value_means,
    value_metrics,
)
from bdl.posterior.mixture import Answers, PredictiveMixture
from bdl.posterior.prediction import ValuePrediction, ends_of, of_mixture
from bdl.posterior.stored_outputs import NetworkOutputs, StoredOutputs

LEVEL = 0.9  # probability of the intervals that a report shows
STACKED = "bma_stacked"
PRIOR_RESIDUALS = 10  # residuals as large as they should be


class ValueEvaluation(PosteriorEvaluation):
    """Evaluation of laws of numbers, y as the networks saw it. It holds all outputs, which their mixture needs.

    It may evaluate a slice of `total` items, whose first has the place `first`. `settled` is what to keep of a slice,
    and `join_slices` makes one evaluation of all slices.
    """

    def __init__(self, likelihood: Likelihood, y: Tensor, chains: int, first: int = 0, total: int | None = None):
        super().__init__(likelihood, y, chains, first, total)
        self._stored = StoredOutputs()
        self._outputs: NetworkOutputs = self._stored
        self._settled: SettledSlice | None = None  # what slices were joined to
        self._chain_of: list[int] = []  # every network
        self._weights: list[Tensor] = []  # importance weights
        self._log = torch.full((chains, len(y)), -math.inf, dtype=torch.float64)  # log of sums of densities
        self._means = torch.zeros(())  # (chains, n, k) sums of means, from the first network on
        self._mean_p = Draws(chains)  # means at the points, for one target of each item in turn
        self._points = spaced(RECORDED_ITEMS, self._total, first, len(y))  # numbers among all items
        self._known: dict[str, list[dict[str, Tensor]]] = {}  # of the networks so far, see `means_of_rows`
        self._rounds: list[Tensor] = []  # after each round: means over items, see `_scores_of_sums`

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
        return self._of(torch.ones(len(self._chain_of)), None if self._settled is None else self._settled.answers)

    @property
    def bma_weighted(self) -> ValuePrediction | None:
        """The importance-weighted mixture of all samples; None without such weights."""
        weights = torch.cat(self._weights)
        return self._of(weights) if bool(weights.any()) else None

    @property
    def bma_stacked(self) -> ValuePrediction | None:
        """The mixture of the chains' own mixtures by weights of the chains; None without such weights."""
        return None if self.stacking is None else self._of(self._shares(self.stacking)[torch.tensor(self._chain_of)])

    @property
    def quantities(self) -> np.ndarray:
        """The log density at y and the mean: two means on either side of y may have the same density."""
        return np.concatenate([self.log_probs, self._mean_p.array()], -1)

    def repeat_error(self) -> dict[str, float]:
        """In standard deviations of the predictions, or in residuals where these are smaller on average.

        `mcse/unit` is the residuals over the standard deviations, 1 at most. Ten residuals of that size are assumed
        beside the known residuals, because a few may be small by chance.
        """
        bma = self.bma
        std = bma.std.double()
        squares = ((as_columns(self.y.double(), std.shape) - bma.mean.double()) / std).square()
        known = squares[~squares.isnan()]
        unit = math.sqrt(min((float(known.sum()) + PRIOR_RESIDUALS) / (known.numel() + PRIOR_RESIDUALS), 1.0))
        scale, seen = unit * std.numpy(), self._networks.count > 0
        if int(seen.sum()) == 1:
            points = self._points.numpy()
            errors = draw_errors(self._mean_p.array() / scale[points, points % scale.shape[1]])
        else:
            errors = repeat_errors(self._averages(), scale) if self._settled is None else self._settled.errors / unit
        return most_and_worst(errors) | {"mcse/unit": unit}

    def losses(self) -> Tensor:
        return math.log(int(self._networks.count.sum())) - self._log.logsumexp(0)

    def stacked_losses(self) -> Tensor:
        assert self.stacking is not None
        return -(self._log + self._shares(self.stacking).log().unsqueeze(1)).logsumexp(0)

    def constant_losses(self, seen: Tensor | None = None) -> Tensor:
        return constant_value_losses(self.y, self.likelihood, seen)

    def constant_score(self, seen: Tensor | None = None) -> dict[str, float]:
        y = self.y.double().reshape(len(self.y), -1)
        known = y if seen is None else seen.double().reshape(len(seen), -1)
        return {"rmse": math.sqrt((y - known.nanmean(0)).square().nanmean())}

    def entropy(self, seen: Tensor | None = None) -> float:
        if bool(self.likelihood.has_density(self.y).any()):
            return math.nan
        return float(constant_value_losses(self.y, self.likelihood, self.y if seen is None else seen).mean())

    def claim(self) -> float:
        bma = self.bma
        variance = bma.std.double().square()
        of_all = variance.mean(0) + bma.mean.double().var(0, unbiased=False)
        return float((of_all.log() - variance.log().mean(0)).sum() / 2)

    def scores(self, prediction: ValuePrediction) -> dict[str, float]:
        return value_metrics(prediction, self.y)

    def scores_of_rows(self, rows: Sequence[str] = ROWS) -> dict[str, list[dict[str, float]]]:
        return {row: [scores_of_means(means) for means in each] for row, each in self.means_of_rows(rows).items()}

    def means_of_rows(self, rows: Sequence[str] = ROWS) -> dict[str, list[dict[str, Tensor]]]:
        """`value_means` of every prediction in these rows of the metrics."""
        known = self._known if self._settled is None else self._settled.means
        left = [row for row in rows if row not in known and (self._settled is None or row == STACKED)]
        found = {row: [value_means(p, self.y) for p in each] for row, each in self.rows(left).items()}
        self._known |= {row: means for row, means in found.items() if row != STACKED}  # whose weights may change
        return {row: means for row in rows if (means := known.get(row) or found.get(row))}

    def means_of(self, row: Literal["one_sample", "bma"]) -> dict[str, Tensor]:
        """`value_means` of the first chain's last sample, or of the average over all networks."""
        return self.means_of_rows([row])[row][0]

    def settled(self) -> SettledSlice:
        """What scores and reports need of each item, or of all. It holds no outputs."""
        mixture = self.bma.mixture
        answers = Answers(mixture.moments(), {q: mixture.quantile(q) for q in ends_of(LEVEL)})
        means = self.means_of_rows()
        std = (answers.moments[1] + answers.moments[2]).sqrt().float().double().numpy()
        several = int((self._networks.count > 0).sum()) > 1
        errors = repeat_errors(self._averages(), std) if several else np.zeros(0)
        return SettledSlice(
            self.y, self._networks, self._mean_p, self._chain_of, self._weights, self._log,
            self._rounds, self.curve.samples, answers, means, errors,
        )  # fmt: skip

    def take(self, settled: SettledSlice, outputs: NetworkOutputs) -> None:
        """Hold what was kept of all items, and their outputs for questions that `settled` does not answer."""
        self._settled, self._outputs = settled, outputs
        self._networks, self._mean_p = settled.networks, settled.mean_p
        self._chain_of, self._weights, self._log = settled.chain_of, settled.weights, settled.log
        for samples, means in zip(settled.samples, settled.rounds, strict=True):
            self.curve.add(samples, *_scores(means))

    def _averages(self) -> np.ndarray:
        """(chains, n, k) the means of each chain's own average."""
        seen = self._networks.count > 0
        return (self._means[seen] / self._networks.count[seen].view(-1, 1, 1)).numpy()

    def _of(self, weights: Tensor, answers: Answers | None = None) -> ValuePrediction:
        return of_mixture(PredictiveMixture(self._outputs, self.likelihood, weights, answers))

    def _record(
        self, chains: Sequence[int], outputs: Tensor, weights: Tensor | None
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """The means (n, k) and the log densities (n,) of y of every network."""
        self._known = {}
        self._stored.add(outputs)
        self._weights.append(torch.zeros(len(chains), dtype=torch.float64) if weights is None else weights.double())
        outputs = outputs.double()
        means = self.likelihood.mean(outputs)
        logs = -self.likelihood(outputs, as_columns(self.y.double(), means.shape[1:]))
        if not self._chain_of:
            self._means = torch.zeros(self.chains, *means.shape[1:], dtype=torch.float64)
        self._chain_of += chains
        here = self._points - self._first
        self._networks.log_p.add(chains, logs[:, here].numpy())
        self._mean_p.add(chains, means[:, here, self._points % means.shape[2]].numpy())
        return zip(means, logs, strict=True)

    def _add_up(self, chain: int, values: tuple[Tensor, Tensor]) -> None:
        mean, log = values
        self._means[chain] += mean
        self._log[chain] = torch.logaddexp(self._log[chain], log)

    def _means_of_one(self, values: tuple[Tensor, Tensor]) -> Tensor:
        mean, log = values
        y = as_columns(self.y.double(), mean.shape)
        return torch.stack(((mean - y).square().nanmean(), -log.mean()))

    def _scores_of_sums(self, count: int) -> tuple[float, float, float, float]:
        means, total = self._means, count * self.chains
        y = as_columns(self.y.double(), means.shape[1:])
        each = (
            (means.sum(0) / total - y).square().nanmean()[None],
            math.log(total) - self._log.logsumexp(0).mean()[None],
            math.log(count) - self._log.mean()[None],
            (means / count - y).square().nanmean((1, 2)),
        )
        self._rounds.append(torch.cat(each))
        return _scores(self._rounds[-1])


@dataclass(frozen=True)
class SettledSlice:
    """What is kept of a slice of n items when the outputs for them are dropped."""

    y: Tensor
    networks: NetworkRecords
    mean_p: Draws  # means at the points
    chain_of: list[int]  # of every network
    weights: list[Tensor]  # importance weights
    log: Tensor  # (chains, n) logs of the sums of densities
    rounds: list[Tensor]  # after each round: means over items, see `ValueEvaluation._scores_of_sums`
    samples: list[int]  # after each round: networks in the average
    answers: Answers  # of the average over all networks
    means: Mapping[str, list[dict[str, Tensor]]]  # row of the metrics -> its predictions -> see `value_means`
    errors: np.ndarray  # (n,) see `repeat_errors`, in standard deviations of the predictions; empty for one chain

    @classmethod
    def joined(cls, slices: Sequence[SettledSlice]) -> SettledSlice:
        """All items, from the slices in order."""
        first, share = slices[0], torch.tensor([len(part.y) for part in slices], dtype=torch.float64)
        seen = torch.tensor([int((~part.y.isnan()).sum()) for part in slices], dtype=torch.float64)
        share, seen = share / share.sum(), seen / seen.sum()  # of the items, and of the targets that are not missing
        moments = zip(*(part.answers.moments for part in slices), strict=True)
        mean, aleatoric, epistemic = (torch.cat(each) for each in moments)
        quantiles = {q: torch.cat([part.answers.quantiles[q] for part in slices]) for q in first.answers.quantiles}
        means: dict[str, list[dict[str, Tensor]]] = {}
        for row in first.means:
            of_row = zip(*(part.means[row] for part in slices), strict=True)
            means[row] = [{k: torch.stack([m[k] for m in each], -1) @ share for k in each[0]} for each in of_row]
        return replace(
            first,
            y=torch.cat([part.y for part in slices]),
            networks=NetworkRecords.joined([part.networks for part in slices], torch.stack((seen, share))),
            mean_p=Draws.beside([part.mean_p for part in slices]),
            log=torch.cat([part.log for part in slices], 1),
            rounds=[
                _joined_round(torch.stack(each), seen, share) for each in zip(*(p.rounds for p in slices), strict=True)
            ],
            answers=Answers((mean, aleatoric, epistemic), quantiles),
            means=means,
            errors=np.concatenate([part.errors for part in slices]),
        )


def join_slices(likelihood: Likelihood, slices: Sequence[SettledSlice], outputs: NetworkOutputs) -> ValueEvaluation:
    """The evaluation of all items, from the slices in order. outputs: of all items, computed when asked for."""
    settled = SettledSlice.joined(slices)
    whole = ValueEvaluation(likelihood, settled.y, len(settled.networks.last))
    whole.take(settled, outputs)
    return whole


def _scores(means: Tensor) -> tuple[float, float, float, float]:
    """A point of the curve from means over items: MSE and NLL of all, NLL of a chain, and the MSE of each chain."""
    mse, nll, chain_nll = means[:3].tolist()
    return math.sqrt(mse), nll, means[3:].sqrt().mean().item(), chain_nll


def _joined_round(means: Tensor, seen: Tensor, share: Tensor) -> Tensor:
    """Means over all items from those (slices, 3 + chains) over slices: NLL are of items, and MSE of targets."""
    whole = seen @ means
    whole[1:3] = share @ means[:, 1:3]
    return whole
