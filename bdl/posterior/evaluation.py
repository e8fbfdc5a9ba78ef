"""Evaluation: how one sample, one chain's average and all chains' average predict labelled data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bdl.posterior.metrics import classification_metrics
from bdl.posterior.weights import Weights

POINTS = 50  # items whose log-probability is recorded for R-hat and ESS


@dataclass
class Curve:
    """Metrics of the averages after each round of one sample per chain."""

    samples: list[int] = field(default_factory=list)  # networks in the average over all chains
    accuracy: list[float] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)  # nats
    chain_accuracy: list[float] = field(default_factory=list)
    chain_nll: list[float] = field(default_factory=list)  # nats


class Evaluation:
    """Accumulates the class probabilities of n items, several networks at a time.

    It holds a few tensors (chains, K, n), however many samples there are. Sums run in double precision.
    """

    def __init__(self, labels: Tensor, chains: int, importance: Weights | None = None):
        self.labels, self.chains, self.importance = labels, chains, importance
        self._count = torch.zeros(chains, dtype=torch.int64)
        self._last: list[Tensor | None] = [None] * chains  # (K, n) each
        self._sum: Tensor | None = None  # (chains, K, n) sum of probabilities
        self._weighted: Tensor | None = None  # (chains, K, n) sum of weight x probabilities
        self._weight = torch.zeros(chains, dtype=torch.float64)
        self.curve = Curve()
        self._traces: list[list[np.ndarray]] = [[] for _ in range(chains)]
        self._points = torch.linspace(0, len(labels) - 1, min(POINTS, len(labels))).long()

    def add(self, chains: Sequence[int], probs: Tensor, weights: Tensor | None = None) -> None:
        """Add the probabilities (k, K, n) of k networks, in the order in which they were sampled.

        chains: the chain of each network. weights: (k,) normalised importance weights, 0 for networks that have none.
        """
        if self._sum is None:
            self._sum = torch.zeros(self.chains, *probs.shape[1:], dtype=torch.float64)
            self._weighted = torch.zeros_like(self._sum) if self.importance else None
        self._record(chains, probs)
        if self._weighted is not None and weights is not None and bool(weights.any()):
            which = torch.tensor(chains)
            self._weighted.index_add_(0, which, probs * weights.view(-1, 1, 1))
            self._weight.index_add_(0, which, weights.double())
        begin = 0
        for i, chain in enumerate(chains):
            self._count[chain] += 1
            if bool((self._count == self._count[0]).all()):  # a round is complete
                self._add_up(chains[begin : i + 1], probs[begin : i + 1])
                self._extend_curve()
                begin = i + 1
        self._add_up(chains[begin:], probs[begin:])

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
        """(n, K) average over chains of each chain's importance-weighted average; None without such weights."""
        if self._weighted is None or not bool((self._weight > 0).any()):
            return None
        seen = self._weight > 0
        return (self._weighted[seen] / self._weight[seen].view(-1, 1, 1)).mean(0).float().mT

    @property
    def log_probs(self) -> np.ndarray:
        """(chains, draws, points) log p(y|x) of up to 50 evenly spaced items, nats."""
        draws = min(len(t) for t in self._traces)
        return np.stack([np.stack(t[:draws]) for t in self._traces])

    def metrics(self) -> dict[str, float]:
        """Flat `one_sample/accuracy`, `chain_bma/...`, `bma/...`, and `bma_weighted/...` if samples have weights."""
        metrics = {
            **_named("one_sample", _mean_metrics(self.one_sample, self.labels)),
            **_named("chain_bma", _mean_metrics(self.chain_bma, self.labels)),
            **_named("bma", classification_metrics(self.bma, self.labels)),
        }
        weighted = self.bma_weighted
        if weighted is not None:
            metrics |= _named("bma_weighted", classification_metrics(weighted, self.labels))
        return metrics

    def _record(self, chains: Sequence[int], probs: Tensor) -> None:
        """Keep the last probabilities of each chain, and the log-probabilities of the chosen items."""
        log_p = probs[:, self.labels[self._points], self._points].clamp_min(torch.finfo(probs.dtype).tiny).log()
        for i, (chain, row) in enumerate(zip(chains, log_p.numpy(), strict=True)):
            self._traces[chain].append(row)
            if chain not in chains[i + 1 :]:
                self._last[chain] = probs[i].clone()  # a view would keep the other networks' probabilities in memory

    def _add_up(self, chains: Sequence[int], probs: Tensor) -> None:
        for chain, p in zip(chains, probs, strict=True):
            self._sum[chain] += p  # type: ignore[index]

    def _extend_curve(self) -> None:
        sums = self._sum
        assert sums is not None
        count = int(self._count[0])  # all chains have as many
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


def _mean_metrics(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean over chains of the metrics of each chain's probs (chains, n, K)."""
    each = [classification_metrics(p, labels) for p in probs]
    return {name: float(np.mean([m[name] for m in each])) for name in each[0]}


def _named(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
