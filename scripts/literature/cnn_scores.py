"""Scores of the states of one run and of their averages, and differences between two sets of predictions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bdl.posterior.metrics import classification_metrics
from bdl.posterior.store import Record

SCORES = ("accuracy", "nll", "ece")
Scores = dict[str, list[float]]  # scores by the names in SCORES; accuracy and ECE in %, NLL in nats


def no_scores() -> Scores:
    return {name: [] for name in SCORES}


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one predictive distribution says of each of n items: (n,) whether its class is right, log p(y) in nats."""

    correct: Tensor
    log_p: Tensor

    @classmethod
    def of(cls, probs: Tensor, labels: Tensor) -> Outcome:
        p = probs.gather(1, labels[:, None])[:, 0].double()
        return cls((probs.argmax(1) == labels).double(), p.clamp_min(torch.finfo(torch.float32).tiny).log())


@dataclass
class History:
    """Scores along a run, on the test images.

    states: of each kept state alone. averages: of the average of the probabilities of all states so far.
    cycle_averages: of the states of each cycle, averaged. last, average: the final state and the final average.
    """

    steps: list[int] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)  # the cycle of each state
    states: Scores = field(default_factory=no_scores)
    averages: Scores = field(default_factory=no_scores)
    cycle_averages: Scores = field(default_factory=no_scores)
    last: Outcome | None = None
    average: Outcome | None = None


@dataclass(frozen=True, eq=False)
class Run:
    epochs: int
    seed: int
    device: str
    steps_per_epoch: float
    history: History
    config: dict[str, Any]


Cells = dict[str, list[Run]]  # runs of each experiment, one per seed


def follow(predictions: Iterable[tuple[Record, Tensor]], labels: Tensor) -> History:
    """The history of the states whose records and probabilities (n, K) are given in the order of their steps."""
    history = History()
    total, of_cycle, since = torch.zeros(()), torch.zeros(()), 0
    for count, (record, probs) in enumerate(predictions, 1):
        if history.cycles and record.cycle != history.cycles[-1]:
            _append(history.cycle_averages, of_cycle / since, labels)
            of_cycle, since = torch.zeros(()), 0
        total, of_cycle, since = total + probs.double(), of_cycle + probs.double(), since + 1
        history.steps.append(record.step)
        history.cycles.append(record.cycle)
        _append(history.states, probs, labels)
        _append(history.averages, total / count, labels)
        history.last, history.average = Outcome.of(probs, labels), Outcome.of(total / count, labels)
    _append(history.cycle_averages, of_cycle / since, labels)
    return history


def _append(scores: Scores, probs: Tensor, labels: Tensor) -> None:
    measured = classification_metrics(probs.float(), labels)
    for name in SCORES:
        scores[name].append(measured[name] if name == "nll" else 100 * measured[name])


def difference(pairs: list[tuple[Outcome, Outcome]]) -> dict[str, tuple[float, float]]:
    """Accuracy (points) and NLL (nats) of the first minus those of the second of each pair, and the standard error.

    Both predict the same items, so the error is that of the mean of n differences, which are averaged over the pairs.
    """
    correct = torch.stack([100 * (a.correct - b.correct) for a, b in pairs]).mean(0)
    nll = torch.stack([b.log_p - a.log_p for a, b in pairs]).mean(0)
    return {name: (d.mean().item(), (d.std() / len(d) ** 0.5).item()) for name, d in
            (("accuracy", correct), ("nll", nll))}  # fmt: skip
