"""Running averages of predictions: of a fixed size however many networks there are, with scores at any time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from bdl.likelihoods import Likelihood, as_columns
from bdl.posterior.metrics import classification_metrics
from bdl.posterior.moments import WeightedMoments
from bdl.posterior.prediction import log_probs


class RunningAverage(ABC):
    """The average over the networks so far, scored against y (n,) or (n, k). `count` is their number."""

    def __init__(self, likelihood: Likelihood, y: Tensor):
        self.likelihood, self.y, self.count = likelihood, y, 0

    @abstractmethod
    def add(self, outputs: Tensor) -> None:
        """Add the outputs (s, n, K) of s networks."""

    @abstractmethod
    def scores(self) -> dict[str, float]:
        """Scores of the average."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ClassAverage(RunningAverage):
    """The mean of class probabilities: one tensor (n, K)."""

    def __init__(self, likelihood: Likelihood, y: Tensor):
        super().__init__(likelihood, y)
        self.total = torch.zeros(())  # (n, K) sum of probabilities; of labels, n k items of two classes

    def add(self, outputs: Tensor) -> None:
        of_classes = self.likelihood.outputs == "logits"
        probs = outputs.softmax(-1) if of_classes else log_probs(outputs, self.likelihood).exp().mT
        self.total = self.total + probs.sum(0)
        self.count += len(probs)

    def scores(self) -> dict[str, float]:
        labels, probs = self.y, self.total / self.count
        if self.likelihood.outputs == "labels":
            labels = self.y.flatten().long()
            labels, probs = labels[labels >= 0], probs[labels >= 0]  # those that are not missing
        return classification_metrics(probs, labels)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.total = state["count"], state["total"]


class ValueAverage(RunningAverage):
    """The mean, the variance and the density at y of a mixture: three tensors (n, k) and one (n,)."""

    def __init__(self, likelihood: Likelihood, y: Tensor):
        super().__init__(likelihood, y)
        self.means, self.variances = WeightedMoments(), WeightedMoments()
        self.log_sum = torch.full((len(y),), -math.inf, dtype=torch.float64)  # log of the sum of the densities at y

    def add(self, outputs: Tensor) -> None:
        outputs, ones = outputs.double(), torch.ones(len(outputs))
        mean = self.likelihood.mean(outputs)
        self.means.add(mean, ones)
        self.variances.add(self.likelihood.variance(outputs).expand_as(mean), ones)
        logs = -self.likelihood(outputs, as_columns(self.y.double(), mean.shape[1:]))
        self.log_sum = torch.logaddexp(self.log_sum, logs.logsumexp(0))
        self.count += len(outputs)

    def scores(self) -> dict[str, float]:
        mean, std = self.means.mean, (self.variances.mean + self.means.std.square()).sqrt()
        y = as_columns(self.y.double(), mean.shape)
        normal = torch.distributions.Normal(mean, std, validate_args=False)
        return {
            "rmse": (mean - y).square().nanmean().sqrt().item(),
            "nll": math.log(self.count) - self.log_sum.mean().item(),
            "nll_normal": -normal.log_prob(y).nansum(-1).mean().item(),
        }

    def state_dict(self) -> dict[str, Any]:
        moments = {"means": self.means.state_dict(), "variances": self.variances.state_dict()}
        return {"count": self.count, "log_sum": self.log_sum, **moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means.load_state_dict(state["means"])
        self.variances.load_state_dict(state["variances"])
        self.count, self.log_sum = state["count"], state["log_sum"]


def running_average(likelihood: Likelihood, y: Tensor) -> RunningAverage:
    """A running average of the kind that the likelihood's outputs call for."""
    return (ValueAverage if likelihood.outputs == "values" else ClassAverage)(likelihood, y)
