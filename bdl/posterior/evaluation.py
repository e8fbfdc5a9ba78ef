"""Evaluation: how one sample, one chain's average and all chains' average predict labelled data."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.display import Shown, count_of, figures
from bdl.likelihoods import Likelihood, MultiCategoricalNLL
from bdl.posterior.diagnostics import Draws, spaced
from bdl.posterior.stacking import Stacking

RECORDED_ITEMS = 50  # items whose log-probability is recorded for R-hat and ESS
FEATURES = 200  # outputs that are recorded for drifts and slow directions
LAST = 10  # samples of each chain that `last_ten` scores
WITH_ERROR = ("accuracy", "rmse", "nll")  # scores of the chains' averages that have a standard error
ROWS = ("one_sample", "chain_bma", "bma", "bma_weighted", "bma_stacked")  # predictions that are scored


@dataclass
class Curve:
    """Scores of the averages after each round of one sample per chain: accuracy for classes, RMSE for numbers."""

    samples: list[int] = field(default_factory=list)  # networks in the average over all chains
    score: list[float] = field(default_factory=list)  # accuracy, or RMSE in the units of y
    nll: list[float] = field(default_factory=list)  # nats
    chain_score: list[float] = field(default_factory=list)  # a chain's own average, as a mean over chains
    chain_nll: list[float] = field(default_factory=list)
    of_numbers: bool = False  # the score is an RMSE

    def add(self, *point: float) -> None:
        """Add one point: its samples, score, nll, chain_score and chain_nll."""
        columns = (self.samples, self.score, self.nll, self.chain_score, self.chain_nll)
        for column, value in zip(columns, point, strict=True):
            column.append(value)  # type: ignore[arg-type]


class NetworkRecords:
    """What an evaluation keeps of single networks, chain by chain."""

    def __init__(self, chains: int):
        self.count = torch.zeros(chains, dtype=torch.int64)  # networks of each chain
        self.last: list[deque[Tensor]] = [deque(maxlen=LAST) for _ in range(chains)]  # (2,) each, see `_means_of_one`
        self.log_p, self.features = Draws(chains), Draws(chains)  # log probabilities at the points, `features`

    @classmethod
    def joined(cls, slices: Sequence[NetworkRecords], share: Tensor) -> NetworkRecords:
        """The records of all items from the records of slices, whose means count by these shares (2, slices)."""
        whole = cls(0)
        whole.count = slices[0].count
        of_chains = zip(*(part.last for part in slices), strict=True)
        whole.last = [
            deque(((torch.stack(means, 1) * share).sum(1) for means in zip(*of_chain, strict=True)), LAST)
            for of_chain in of_chains
        ]
        whole.log_p = Draws.beside([part.log_p for part in slices])
        whole.features = Draws.beside([part.features for part in slices])
        return whole


class PosteriorEvaluation(Shown):
    """Accumulates the predictions of n items with labels y (n,) or (n, k), and scores the averages over networks.

    Printed, it shows the first of these scores, which it then computes.
    """

    # Predictions: of each chain's last sample, of each chain's average, of the average of all, and of the average by
    # importance weights and by weights of the chains, None without such weights
    one_sample: Any
    chain_bma: Any
    bma: Any
    bma_weighted: Any
    bma_stacked: Any

    def __init__(self, likelihood: Likelihood, y: Tensor, chains: int, first: int = 0, total: int | None = None):
        self.likelihood, self.y, self.chains = likelihood, y, chains
        self._first, self._total = first, len(y) if total is None else total  # place of the first item among all
        self.curve = Curve(of_numbers=likelihood.outputs == "values")
        self._networks = NetworkRecords(chains)
        self.row_weights: Tensor | None = None  # (n,) of the items; None for 1 each
        self.stacking: Stacking | None = None  # weights of the chains in `bma_stacked`, which is None without them
        self._chosen: tuple[Tensor, Tensor] | None = None  # items and columns of `features`, from the first network on

    def shown(self) -> tuple[str, Mapping[str, str]]:
        title = f"{type(self).__name__} of {count_of(self.items, 'item')} by {count_of(self.chains, 'chain')}"
        if not int(self._networks.count.sum()):
            return title, {}
        names, rows = ("rmse" if self.curve.of_numbers else "accuracy", "nll"), self.scores_of_rows()
        scores = {row: {name: float(np.mean([m[name] for m in each])) for name in names} for row, each in rows.items()}
        constant = self.against_constant()
        scores["constant"] = {name: constant[f"constant/{name}"] for name in names}
        lines = {row: ", ".join(f"{name} {figures(v)}" for name, v in each.items()) for row, each in scores.items()}
        return title, {**lines, "all scores": "metrics()"}

    @property
    def items(self) -> int:
        return len(self.y)

    def add(self, chains: Sequence[int], outputs: Tensor, weights: Tensor | None = None) -> None:
        """Add the outputs (s, n, K) of s networks, in the order in which they were sampled.

        chains: the chain of each network. weights: (s,) normalised importance weights, 0 for networks without a weight.

        Raises ConfigError for targets outside the domain of the likelihood, or that do not fit the outputs.
        """
        count = self._networks.count
        if not int(count.sum()):
            self.likelihood.check(self.y, outputs.shape[-1])
        recorded = self._record(chains, outputs, weights)
        self._networks.features.add(chains, self._linear(outputs).numpy())
        for chain, values in zip(chains, recorded, strict=True):
            self._add_up(chain, values)
            self._networks.last[chain].append(self._means_of_one(values))
            count[chain] += 1
            if bool((count == count[0]).all()):  # a round is complete
                rounds = int(count[0])
                self.curve.add(rounds * self.chains, *self._scores_of_sums(rounds))

    @property
    def log_probs(self) -> np.ndarray:
        """(chains, draws, points) log p(y|x) of up to 50 evenly spaced items, nats."""
        return self._networks.log_p.array()

    @property
    def features(self) -> np.ndarray:
        """(chains, draws, features) up to 200 evenly spaced outputs of all items; of logits, less the mean of an item.

        They are linear in what the last layer puts out, so a slow direction stays a direction.
        """
        return self._networks.features.array()

    @property
    def quantities(self) -> np.ndarray:
        """(chains, draws, quantities) what R-hat and ESS compare: predictions of up to 50 items."""
        return self.log_probs

    @abstractmethod
    def repeat_error(self) -> dict[str, float]:
        """How far the averages of another run would lie, see `bdl.posterior.diagnostics.repeat_error`."""

    @abstractmethod
    def losses(self) -> Tensor:
        """(n,) -log p(y|x) of the average over all networks, nats."""

    @abstractmethod
    def stacked_losses(self) -> Tensor:
        """(n,) -log p(y|x) of `bma_stacked`, nats."""

    @abstractmethod
    def constant_losses(self, seen: Tensor | None = None) -> Tensor:
        """(n,) the losses of a constant prediction that has seen these targets, see `.metrics`."""

    @abstractmethod
    def constant_score(self, seen: Tensor | None = None) -> dict[str, float]:
        """The accuracy of the class that is most frequent among the targets `seen`, or the RMSE of their mean."""

    @abstractmethod
    def entropy(self, seen: Tensor | None = None) -> float:
        """What a constant leaves open, nats an item, by the shares of the targets `seen`; NaN for densities."""

    @abstractmethod
    def claim(self) -> float:
        """How much the inputs say of y, nats an item, if the average over all networks is right."""

    def against_constant(self, seen: Tensor | None = None) -> dict[str, float]:
        """The NLL of constant predictions: `constant/nll` is fair, `constant/least` has seen the y that it predicts.

        `constant/accuracy` or `constant/rmse` is the error of one, and `constant/entropy` how much there is to say of
        an item, the scale of all of them. `constant/gain_se` is the standard error of the difference between the first
        and the average's NLL, and `constant/claim` what that difference would be if the average were right about
        itself.
        """
        losses, least = self.constant_losses(seen), self.constant_losses(self.y)
        gain = losses - self.losses()
        error = float(gain.std() / math.sqrt(len(gain))) if len(gain) > 1 else math.nan
        scores = {"nll": float(losses.mean()), "least": float(least.mean()), "gain_se": error, "claim": self.claim()}
        scores["entropy"] = self.entropy(seen)
        return {f"constant/{name}": value for name, value in (scores | self.constant_score(seen)).items()}

    def against_uniform(self) -> dict[str, float]:
        """By how much `bma_stacked` is ahead of `bma`, nats an item, and the standard error; {} without weights."""
        if self.stacking is None:
            return {}
        gain = self.losses() - self.stacked_losses()
        error = float(gain.std() / math.sqrt(len(gain))) if len(gain) > 1 else math.nan
        return {"stacking/gain": float(gain.mean()), "stacking/gain_se": error}

    def metrics(self, rows: Sequence[str] = ROWS) -> dict[str, float]:
        """Flat `one_sample/nll`, `chain_bma/...`, `bma/...`, and `bma_weighted/...` if samples have importance weights,
        `bma_stacked/...` if chains have weights.

        `last_ten/nll` and `last_ten/accuracy` or `last_ten/rmse` are means over the last ten samples of each chain,
        each scored by itself, because one sample of a chain with a large step says little. Where there are several
        chains, `chain_bma/accuracy_se` and others of that ending are standard errors over them. Each item counts once,
        but in `bma/weighted_nll`, in which items with weights count by these.

        rows: the predictions that are scored, of ROWS.
        """
        each = self.scores_of_rows(rows)
        means = {
            f"{row}/{n}": float(np.mean([m[n] for m in scores])) for row, scores in each.items() for n in scores[0]
        }
        chains = each.get("chain_bma", ())
        if len(chains) > 1:
            errors = {n: float(np.std([m[n] for m in chains], ddof=1)) for n in WITH_ERROR if n in chains[0]}
            means |= {f"chain_bma/{n}_se": error / math.sqrt(len(chains)) for n, error in errors.items()}
        return means | {f"last_ten/{name}": value for name, value in self.last_ten().items()} | self.by_weights()

    def by_weights(self) -> dict[str, float]:
        """Scores under weights: of the chains, see `against_uniform`, and of the items."""
        if (w := self.row_weights) is None:
            return self.against_uniform()
        losses = self.losses()
        w = w.double().repeat_interleave(len(losses) // len(w))  # several labels of an item have its weight
        return self.against_uniform() | {"bma/weighted_nll": float((w * losses).sum() / w.sum())}

    def last_ten(self) -> dict[str, float]:
        """The accuracy or the RMSE, and the NLL, of single samples: means over each chain's last ten, then over chains.

        The empty dictionary before the first network.
        """
        chains = [torch.stack(list(of_chain)) for of_chain in self._networks.last if of_chain]  # (samples, 2) each
        if not chains:
            return {}
        if self.curve.of_numbers:
            chains = [torch.stack((one[:, 0].sqrt(), one[:, 1]), 1) for one in chains]
        means, name = torch.stack([one.mean(0) for one in chains]), "rmse" if self.curve.of_numbers else "accuracy"
        found: dict[str, float] = dict(zip((name, "nll"), means.mean(0).tolist(), strict=True))
        if len(means) > 1:
            found[f"{name}_se"] = float(means[:, 0].std()) / math.sqrt(len(means))
        return found

    def scores_of_rows(self, rows: Sequence[str] = ROWS) -> dict[str, list[dict[str, float]]]:
        """The scores of every prediction in these rows of the metrics."""
        return {row: [self.scores(p) for p in predictions] for row, predictions in self.rows(rows).items()}

    def rows(self, names: Sequence[str] = ROWS) -> dict[str, list[Any]]:
        """The predictions in these rows of the metrics, without those that are None."""
        found = {name: getattr(self, name) for name in names}
        several = ("one_sample", "chain_bma")
        return {name: list(p) if name in several else [p] for name, p in found.items() if p is not None}

    @abstractmethod
    def scores(self, prediction: Any) -> dict[str, float]:
        """The scores of one prediction, such as `bma`."""

    def _shares(self, stacking: Stacking) -> Tensor:
        """(chains,) the weight of each network of a chain; they sum to 1 over all networks."""
        return torch.tensor(stacking.weights, dtype=torch.float64) / self._networks.count.clamp_min(1)

    def _linear(self, outputs: Tensor) -> Tensor:
        """(s, features) see `features`."""
        size = outputs.shape[-1]
        if self._chosen is None:
            chosen = spaced(FEATURES, self._total * size, self._first * size, len(self.y) * size)
            self._chosen = chosen // size - self._first, chosen % size
        items, columns = self._chosen
        values = outputs[:, items, columns]
        if self.likelihood.outputs == "logits":
            return values - outputs[:, items].mean(-1)
        if isinstance(self.likelihood, MultiCategoricalNLL):
            means = [p.mean(-1, keepdim=True).expand_as(p) for p in outputs.split(self.likelihood.classes, -1)]
            return values - torch.cat(means, -1)[:, items, columns]
        return values

    @abstractmethod
    def _record(self, chains: Sequence[int], outputs: Tensor, weights: Tensor | None) -> Iterable[Any]:
        """Keep what belongs to single networks; returns what `_add_up` takes, for each network."""

    @abstractmethod
    def _add_up(self, chain: int, values: Any) -> None:
        """Add a network to the sums of its chain."""

    @abstractmethod
    def _means_of_one(self, values: Any) -> Tensor:
        """(2,) means over items, of one network: of 1 where its label is right, or of squared errors; and the NLL."""

    @abstractmethod
    def _scores_of_sums(self, count: int) -> tuple[float, float, float, float]:
        """(score, NLL) of the sums of `count` networks of each chain together, then of each chain's, the means."""
