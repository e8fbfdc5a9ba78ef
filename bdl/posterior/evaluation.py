"""Evaluation: how one sample, one chain's average and all chains' average predict labelled data."""

from __future__ import annotations

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
    """Accumulates probabilities (n, K) sample by sample.

    It holds a few tensors (chains, n, K), however many samples there are.
    """

    def __init__(self, labels: Tensor, chains: int, importance: Weights | None = None):
        self.labels, self.chains, self.importance = labels, chains, importance
        self._count = torch.zeros(chains)
        self._last: list[Tensor | None] = [None] * chains
        self._sum: Tensor | None = None  # (chains, n, K) sum of probabilities
        self._weighted: Tensor | None = None  # (chains, n, K) sum of weight x probabilities
        self._weight = torch.zeros(chains)
        self.curve = Curve()
        self._traces: list[list[np.ndarray]] = [[] for _ in range(chains)]
        self._points = torch.linspace(0, len(labels) - 1, min(POINTS, len(labels))).long()

    def add(self, chain: int, probs: Tensor, weight: float = 0.0) -> None:
        """Add one network's probabilities (n, K); weight: its normalised importance weight, 0 if it has none."""
        if self._sum is None:
            self._sum = torch.zeros(self.chains, *probs.shape)
            self._weighted = torch.zeros_like(self._sum) if self.importance else None
        self._sum[chain] += probs
        if self._weighted is not None:
            self._weighted[chain] += weight * probs
            self._weight[chain] += weight
        self._count[chain] += 1
        self._last[chain] = probs
        log_p = probs[self._points, self.labels[self._points]].clamp_min(torch.finfo(probs.dtype).tiny).log()
        self._traces[chain].append(log_p.numpy())
        if bool((self._count == self._count[0]).all()):
            self._extend_curve()

    @property
    def one_sample(self) -> Tensor:
        """(chains, n, K) probabilities of each chain's last sample."""
        return torch.stack([p for p in self._last if p is not None])

    @property
    def chain_bma(self) -> Tensor:
        """(chains, n, K) uniform average over the samples of each chain."""
        seen = self._count > 0
        return self._sum[seen] / self._count[seen].view(-1, 1, 1)  # type: ignore[index]

    @property
    def bma(self) -> Tensor:
        """(n, K) uniform average over all samples of all chains."""
        return self._sum.sum(0) / self._count.sum()  # type: ignore[union-attr]

    @property
    def bma_weighted(self) -> Tensor | None:
        """(n, K) average over chains of each chain's importance-weighted average; None without such weights."""
        if self._weighted is None or not bool((self._weight > 0).any()):
            return None
        seen = self._weight > 0
        return (self._weighted[seen] / self._weight[seen].view(-1, 1, 1)).mean(0)

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

    def _extend_curve(self) -> None:
        accuracy, nll = _accuracy_and_nll(self.bma, self.labels)
        chain_accuracy, chain_nll = _accuracy_and_nll(self.chain_bma, self.labels)
        self.curve.samples.append(int(self._count.sum()))
        self.curve.accuracy.append(accuracy)
        self.curve.nll.append(nll)
        self.curve.chain_accuracy.append(chain_accuracy)
        self.curve.chain_nll.append(chain_nll)


def _accuracy_and_nll(probs: Tensor, labels: Tensor) -> tuple[float, float]:
    """Means over all leading axes of probs (..., n, K). Only the curve's two metrics: it is extended every round."""
    correct = (probs.argmax(-1) == labels).float().mean().item()
    p_of_label = probs.gather(-1, labels.expand(probs.shape[:-1]).unsqueeze(-1))
    return correct, -p_of_label.clamp_min(torch.finfo(probs.dtype).tiny).log().mean().item()


def _mean_metrics(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean over chains of the metrics of each chain's probs (chains, n, K)."""
    each = [classification_metrics(p, labels) for p in probs]
    return {name: float(np.mean([m[name] for m in each])) for name in each[0]}


def _named(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
