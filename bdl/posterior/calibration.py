"""Calibration on a validation split: temperature scaling, and split-conformal sets and intervals.

Each is fitted on predictions of items that were neither trained on nor will be judged, and then applied to others:

    scaling = TemperatureScaling.fit(posterior.predict(x_val), y_val)
    probs = scaling(posterior.predict(x_test))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdl.display import count_of
from bdl.errors import ConfigError
from bdl.likelihoods import BernoulliNLL, CategoricalNLL, as_columns
from bdl.posterior.prediction import LabelPrediction, Prediction, ValuePrediction

SET_ROUNDING = 1e-9  # (n + 1) level may come out above a whole number
RANGE = (-4.0, 4.0)  # bounds of the log of a fitted temperature: beyond, probabilities are 0 and 1, or all equal


@dataclass(frozen=True)
class TemperatureScaling:
    """softmax(log p / T): one number that makes averaged probabilities less sure (T > 1) or surer (Guo et al. 2017).

    >>> sure = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]])
    >>> prediction = Prediction(sure, *torch.zeros(3, 4), torch.zeros(4, 2))
    >>> scaling = TemperatureScaling.fit(prediction, torch.tensor([0, 0, 1, 1]))  # 3 of 4 are right
    >>> scaling(prediction)[0]
    tensor([0.7500, 0.2500])
    """

    temperature: float

    @classmethod
    def fit(cls, prediction: Prediction | LabelPrediction, y: Tensor) -> TemperatureScaling:
        """The T of the smallest negative log-likelihood on labels y (n,) or (n, k).

        Raises ConfigError if y does not fit the prediction.
        """
        from scipy.optimize import minimize_scalar

        _check_labels(prediction, y)
        log_p, labels = _log_probs(prediction), y.flatten().long()

        def nll(log_t: float) -> float:
            scaled = (log_p * math.exp(-log_t)).log_softmax(-1)
            return torch.nn.functional.nll_loss(scaled, labels).item()

        best: Any = minimize_scalar(nll, bounds=RANGE, method="bounded")
        return cls(math.exp(best.x))

    def __call__(self, prediction: Prediction | LabelPrediction) -> Tensor:
        """The probabilities (n, K) of classes, or (n, k) of labels."""
        scaled = (_log_probs(prediction) / self.temperature).softmax(-1).to(prediction.probs)
        return scaled[:, 1].view_as(prediction.probs) if isinstance(prediction, LabelPrediction) else scaled


@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes that hold the true one with probability >= level, whatever the network is worth.

    A class belongs to the set if 1 - p(class) is at most the threshold (Sadinle, Lei & Wasserman 2019). The guarantee
    holds on average over new items that are exchangeable with the items of the fit. A rare class may be missing in all
    sets then; with a threshold for each class it holds for the items of each class by themselves (Vovk 2012).
    """

    threshold: float | tuple[float, ...]  # of all classes, or of each
    level: float

    @classmethod
    def fit(
        cls,
        prediction: Prediction,
        y: Tensor,
        level: float = 0.9,
        groups: Tensor | None = None,
        by_class: bool = False,
    ) -> ConformalSets:
        """The threshold: the ceil((n + 1) level)-th smallest of the n values 1 - p(y).

        groups: (n,) whose items depend on each other, see `conformal_threshold`. The guarantee then holds for items of
            new groups.
        by_class: a threshold for each class, from its items. A class with too few items for the level belongs to all
            sets.

        Raises ConfigError if y does not fit the prediction, or for too few items or groups for the level.
        """
        _check_labels(prediction, y)
        scores = 1 - prediction.probs.double().gather(1, y.long()[:, None])
        if not by_class:
            return cls(float(conformal_threshold(scores, level, groups)), level)
        thresholds = []
        for k in range(prediction.probs.shape[1]):
            of_class = y == k
            some = None if groups is None else groups[of_class.cpu()]
            enough = len(y[of_class] if some is None else some.unique()) >= conformal_least(level)
            thresholds.append(float(conformal_threshold(scores[of_class], level, some)) if enough else 1.0)
        return cls(tuple(thresholds), level)

    def __call__(self, prediction: Prediction) -> Tensor:
        """(n, K) whether a class belongs to the set of an item."""
        probs = prediction.probs.double()
        return 1 - probs <= probs.new_tensor(self.threshold)


@dataclass(frozen=True)
class ConformalIntervals:
    """Intervals that hold y with probability >= level, whatever the posterior is worth.

    The posterior's own intervals are widened, or narrowed, by one margin for each target (conformalised quantile
    regression, Romano, Patterson & Candès 2019). The guarantee holds on average over new items that are exchangeable
    with the items of the fit, for each target by itself. No interval goes beyond the values that y can have.
    """

    margin: Tensor  # (k,) the margin, in the units of y
    level: float

    @classmethod
    def fit(
        cls, prediction: ValuePrediction, y: Tensor, level: float = 0.9, groups: Tensor | None = None
    ) -> ConformalIntervals:
        """The margin: the ceil((n + 1) level)-th smallest of the n distances of y (n,) or (n, k) from its interval.

        groups: (n,) whose items depend on each other, see `conformal_threshold`. The guarantee then holds for items of
            new groups. A target that is missing, NaN, does not count.

        Raises ConfigError if y does not fit the prediction, or for too few items or groups for the level.
        """
        low, high = prediction.interval(level)
        y = as_columns(y.double(), low.shape)
        margins = []
        for far in torch.maximum(low - y, y - high).T:  # (n,) of one target
            seen = ~far.isnan()
            margins.append(conformal_threshold(far[seen], level, None if groups is None else groups[seen.cpu()]))
        return cls(torch.stack(margins), level)

    def __call__(self, prediction: ValuePrediction) -> tuple[Tensor, Tensor]:
        """(low, high), each (n, k)."""
        (low, high), (least, most) = prediction.interval(self.level), prediction.bounds
        return (low - self.margin).clamp_min(least).to(low), (high + self.margin).clamp_max(most).to(high)


def conformal_threshold(scores: Tensor, level: float, groups: Tensor | None = None) -> Tensor:
    """() or (k,) the ceil((n + 1) level)-th smallest of scores (n,) or (n, k); the same quantile over groups of items.

    Items of a group depend on each other, and n of them are no n exchangeable items: where groups differ, new groups
    lie outside more often than the level allows. Groups are exchangeable with each other, and the items within one.
    Then the distribution that draws one of K + 1 groups, the new one among them, and one of its items, draws the new
    item as well as any other (hierarchical conformal prediction, Lee, Barber & Willett 2023):

        the smallest s with sum_i 1{score_i <= s} / N_g(i) >= (K + 1) level

    N_g = items of group g; the new group's scores are unknown and count as infinite. Each item a group of its own gives
    the first rule. The guarantee holds on average over new groups, each with the same weight.

    Args:
        groups: (n,) equal for items of one group; None means n groups of one item.

    Raises ConfigError for a level out of range, and for too few groups for it.
    """
    least = conformal_least(level)
    codes = torch.arange(len(scores)) if groups is None else groups.unique(return_inverse=True)[1].cpu()
    count = len(codes.unique())
    if count < least:
        units = "items" if groups is None else "groups of items"
        raise ConfigError(f"{count} validation {units} are too few for level {level}: at least {least} are needed")
    weights = (1 / codes.bincount().double())[codes].to(scores.device)
    ordered, order = scores.sort(0)
    reached = weights[order].cumsum(0) >= (count + 1) * level - SET_ROUNDING
    return ordered.gather(0, reached.int().argmax(0, keepdim=True))[0]


def conformal_least(level: float) -> int:
    """The fewest items, or groups of items, on which a level can be promised: K >= level (K + 1).

    Raises ConfigError for a level out of range.
    """
    if not 0 < level < 1:
        raise ConfigError(f"the level of a conformal set is a probability between 0 and 1, got {level}")
    return math.ceil(level / (1 - level) - SET_ROUNDING)


def _log_probs(prediction: Prediction | LabelPrediction) -> Tensor:
    """(n, K) of classes, or (n k, 2) of labels, each of which has two classes."""
    p = prediction.probs.double()
    if isinstance(prediction, LabelPrediction):
        p = torch.stack([1 - p.flatten(), p.flatten()], -1)
    return p.clamp_min(torch.finfo(torch.float32).tiny).log()


def _check_labels(prediction: Prediction | LabelPrediction, y: Tensor) -> None:
    """Raise ConfigError unless y holds a class, or k labels, for each item of the prediction."""
    items, outputs = prediction.probs.shape
    if y.shape[:1] != (items,):
        raise ConfigError(
            f"y of shape {tuple(y.shape)} does not fit a prediction of {count_of(items, 'item')}: give y and the "
            "prediction the same items"
        )
    likelihood = BernoulliNLL() if isinstance(prediction, LabelPrediction) else CategoricalNLL()
    likelihood.check(y, outputs)
