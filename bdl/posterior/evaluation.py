"""Evaluation: how one sample, one chain's average and all chains' average predict labelled data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.likelihoods import Likelihood
from bdl.posterior.convergence import repeat_error
from bdl.posterior.metrics import classification_metrics
from bdl.posterior.prediction import log_probs
from bdl.posterior.weights import Weights

POINTS = 50  # items whose log-probability is recorded for R-hat and ESS


@dataclass
class Curve:
    """Scores of the averages after each round of one sample per chain: accuracy for classes, RMSE for numbers."""

    samples: list[int] = field(default_factory=list)  # networks in the average over all chains
    accuracy: list[float] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)  # nats
    chain_accuracy: list[float] = field(default_factory=list)
    chain_nll: list[float] = field(default_factory=list)  # nats
    rmse: list[float] = field(default_factory=list)  # in the units of y
    chain_rmse: list[float] = field(default_factory=list)


class PosteriorEvaluation(ABC):
    """Accumulates the predictions of n items, several networks at a time, and scores their averages.

    Args:
        likelihood: what the outputs mean.
        y: (n,) or (n, k) labels or targets.
        chains: number of chains.
        importance: weights of the samples, where there are any.
        elements: whether the n items are elements, such as tokens. Those that do not count, such as padding, are left
            out.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        y: Tensor,
        chains: int,
        importance: Weights | None = None,
        elements: bool = False,
    ):
        self._counted = likelihood.counted(y) if elements else None
        self.y = y if self._counted is None else y[self._counted]
        self.likelihood, self.chains, self.importance = likelihood, chains, importance
        self.curve = Curve()
        self._count = torch.zeros(chains, dtype=torch.int64)
        self._traces: list[list[np.ndarray]] = [[] for _ in range(chains)]

    @property
    def items(self) -> int:
        return len(self.y)

    def add(self, chains: Sequence[int], outputs: Tensor, weights: Tensor | None = None) -> None:
        """Add the outputs (s, n, K) of s networks, in the order in which they were sampled.

        chains: the chain of each network. weights: (s,) normalised importance weights, 0 for networks that have none.

        Raises ConfigError for targets outside the domain of the likelihood, or that do not fit the outputs.
        """
        if self._counted is not None:
            outputs = outputs[:, self._counted]
        if not int(self._count.sum()):
            self.likelihood.check(self.y, outputs.shape[-1])
        values = self._prepared(outputs)
        self._record(chains, values, weights)
        for chain, row in zip(chains, self._log_density(values).numpy(), strict=True):
            self._traces[chain].append(row)
        begin = 0
        for i, chain in enumerate(chains):
            self._count[chain] += 1
            if bool((self._count == self._count[0]).all()):  # a round is complete
                self._add_up(chains[begin : i + 1], values[begin : i + 1])
                self._extend_curve(int(self._count[0]))
                begin = i + 1
        self._add_up(chains[begin:], values[begin:])

    @property
    def log_probs(self) -> np.ndarray:
        """(chains, draws, points) log p(y|x) of up to 50 evenly spaced items, nats."""
        draws = min(len(t) for t in self._traces)
        return np.stack([np.stack(t[:draws]) for t in self._traces])

    @property
    @abstractmethod
    def quantities(self) -> np.ndarray:
        """(chains, draws, quantities) what R-hat and ESS compare: predictions of up to 50 items."""

    @abstractmethod
    def repeat_error(self) -> dict[str, float]:
        """How far the averages of another run would lie, see `bdl.posterior.convergence.repeat_error`."""

    @abstractmethod
    def constant_nll(self) -> float:
        """NLL of the best prediction that does not read the inputs, nats an item; it knows y."""

    def metrics(self) -> dict[str, float]:
        """Flat `one_sample/nll`, `chain_bma/...`, `bma/...`, and `bma_weighted/...` if samples have weights."""
        each = self.averages()
        return {f"{row}/{name}": value for row, parts in each.items() for name, value in self._mean(parts).items()}

    @abstractmethod
    def averages(self) -> dict[str, list[Any]]:
        """The predictions to score, by row: a list over chains for `one_sample` and `chain_bma`, otherwise one."""

    @abstractmethod
    def scores(self, prediction: Any) -> dict[str, float]:
        """The scores of one of the predictions of `averages`."""

    @abstractmethod
    def _prepared(self, outputs: Tensor) -> Tensor:
        """(s, ...) what is accumulated of the outputs (s, n, K)."""

    @abstractmethod
    def _log_density(self, values: Tensor) -> Tensor:
        """(s, points) log p(y|x) of the chosen items."""

    @abstractmethod
    def _record(self, chains: Sequence[int], values: Tensor, weights: Tensor | None) -> None:
        """Keep what belongs to single networks."""

    @abstractmethod
    def _add_up(self, chains: Sequence[int], values: Tensor) -> None:
        """Add to the sums of the chains."""

    @abstractmethod
    def _extend_curve(self, count: int) -> None:
        """Score the sums of `count` networks of each chain."""

    def _mean(self, predictions: Sequence[Any]) -> Mapping[str, float]:
        each = [self.scores(p) for p in predictions]
        return {name: float(np.mean([m[name] for m in each])) for name in each[0]}


class ClassEvaluation(PosteriorEvaluation):
    """Evaluation of class probabilities, and of labels, where the k labels of an item count as k items of two classes.

    It holds a few tensors (chains, K, n), however many samples there are. Sums run in double precision.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        y: Tensor,
        chains: int,
        importance: Weights | None = None,
        elements: bool = False,
    ):
        super().__init__(likelihood, y, chains, importance, elements)
        self.labels = self.y.flatten().long() if likelihood.outputs == "labels" else self.y
        self._last: list[Tensor | None] = [None] * chains  # (K, n) each
        self._sum: Tensor | None = None  # (chains, K, n) sum of probabilities
        self._weighted: Tensor | None = None  # (K, n) sum of weight x probabilities
        self._weight = 0.0
        self._points = torch.linspace(0, len(self.labels) - 1, min(POINTS, len(self.labels))).long()

    @property
    def one_sample(self) -> Tensor:
        """(chains, n, K) probabilities of each chain's last sample."""
        return torch.stack([p for p in self._last if p is not None]).mT

    @property
    def chain_bma(self) -> Tensor:
        """(chains, n, K) uniform average over the samples of each chain."""
        seen = self._count > 0
        return (self._sum[seen] / self._count[seen].view(-1, 1, 1)).float().mT  # type: ignore[index]

    @property
    def bma(self) -> Tensor:
        """(n, K) uniform average over all samples of all chains."""
        return (self._sum.sum(0) / self._count.sum()).float().mT  # type: ignore[union-attr]

    @property
    def bma_weighted(self) -> Tensor | None:
        """(n, K) importance-weighted average over all samples; None without such weights."""
        return (self._weighted / self._weight).float().mT if self._weighted is not None and self._weight else None

    @property
    def quantities(self) -> np.ndarray:
        return self.log_probs

    def repeat_error(self) -> dict[str, float]:
        errors = repeat_error(self.chain_bma.numpy(), 1.0, np.exp(self.log_probs))
        return {k: min(v, 0.5) for k, v in errors.items()}  # twice the number bounds the error, which is 1 at most

    def constant_nll(self) -> float:
        if self.likelihood.outputs == "labels":
            p = self.y.double().reshape(len(self.y), -1).mean(0)
            return float((torch.special.entr(p) + torch.special.entr(1 - p)).mean())
        _, counts = self.labels.unique(return_counts=True)
        return float(torch.special.entr(counts / counts.sum()).sum())

    def averages(self) -> dict[str, list[Any]]:
        weighted = self.bma_weighted
        rows: dict[str, list[Any]] = {
            "one_sample": list(self.one_sample), "chain_bma": list(self.chain_bma), "bma": [self.bma]
        }  # fmt: skip
        return rows if weighted is None else rows | {"bma_weighted": [weighted]}

    def scores(self, prediction: Tensor) -> dict[str, float]:
        return classification_metrics(prediction, self.labels)

    def _prepared(self, outputs: Tensor) -> Tensor:
        return log_probs(outputs, self.likelihood).exp()

    def _log_density(self, values: Tensor) -> Tensor:
        return values[:, self.labels[self._points], self._points].clamp_min(torch.finfo(values.dtype).tiny).log()

    def _record(self, chains: Sequence[int], values: Tensor, weights: Tensor | None) -> None:
        """Keep the last probabilities of each chain, and add to the weighted sums."""
        if self._sum is None:
            self._sum = torch.zeros(self.chains, *values.shape[1:], dtype=torch.float64)
            self._weighted = torch.zeros_like(self._sum[0]) if self.importance else None
        for i, chain in enumerate(chains):
            if chain not in chains[i + 1 :]:
                self._last[chain] = values[i].clone()  # a view would keep the other networks' values in memory
        if self._weighted is not None and weights is not None and bool(weights.any()):
            self._weighted += (values * weights.view(-1, 1, 1)).sum(0)
            self._weight += float(weights.sum())

    def _add_up(self, chains: Sequence[int], values: Tensor) -> None:
        for chain, p in zip(chains, values, strict=True):
            self._sum[chain] += p  # type: ignore[index]

    def _extend_curve(self, count: int) -> None:
        sums = self._sum
        assert sums is not None
        accuracy, nll = _accuracy_and_nll(sums.sum(0, keepdim=True), count * self.chains, self.labels)
        chain_accuracy, chain_nll = _accuracy_and_nll(sums, count, self.labels)
        self.curve.samples.append(count * self.chains)
        self.curve.accuracy.append(accuracy)
        self.curve.nll.append(nll)
        self.curve.chain_accuracy.append(chain_accuracy)
        self.curve.chain_nll.append(chain_nll)


def _accuracy_and_nll(sums: Tensor, count: int, labels: Tensor) -> tuple[float, float]:
    """Means over chains and items of sums (chains, K, n) of `count` probabilities.

    Only the curve's two metrics, because it is extended every round.
    """
    classes_last = sums.mT.contiguous()  # argmax takes ten times as long along an axis that is not the last in memory
    correct = (classes_last.argmax(-1) == labels).double().mean().item()
    p_of_label = sums[:, labels, torch.arange(len(labels))] / count
    return correct, -p_of_label.clamp_min_(torch.finfo(torch.float32).tiny).log_().mean().item()
