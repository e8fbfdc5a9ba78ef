"""Tests of every score of `bdl.posterior.metrics` and `bdl.metrics` at its edges, against formulas written out here.

Probabilities of exactly 0 and 1, on the borders of bins, ties, a class that is absent, one item, none.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import mixture_of
from sklearn.metrics import average_precision_score, roc_auc_score
from test_metrics import draw
from torch import Tensor

import bdl
import bdl.metrics
from bdl.errors import ConfigError
from bdl.posterior.class_scores import ClassScores
from bdl.posterior.metrics import classification_metrics, reliability_bins, shares_below, value_metrics
from bdl.posterior.ood import detection
from bdl.posterior.prediction import ValuePrediction, of_mixture

TINY = float(np.finfo(np.float32).tiny)


def two(*confidences: float) -> Tensor:
    """(n, 2) probabilities whose first class has these."""
    p = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([p, 1 - p], 1)


SURE = two(*[1.0] * 6, *[0.97] * 4)
CASES = {
    "certain and right": (two(1.0, 1.0, 0.0), [0, 0, 1]),
    "certain and wrong": (two(1.0, 0.0), [1, 0]),
    "certain and wrong in single precision": (torch.eye(3), [1, 2, 0]),
    "confidence 1 beside 0.97": (SURE, [0] * 5 + [1] + [0] * 4),
    "one item": (two(0.7), [1]),
    "one item of confidence 1": (two(1.0), [0]),
    "all ties": (two(*[0.5] * 7), [0, 1, 0, 0, 1, 1, 1]),
    "ties at two levels": (two(0.8, 0.8, 0.8, 0.3, 0.3), [0, 1, 0, 1, 0]),
    "a class without items": (torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.9, 0.0], [0.6, 0.4, 0.0]]).double(), [0, 1, 1]),
    "borders of bins": (torch.tensor([[k / 15, 1 - k / 15] for k in range(16)]).double(), [0, 1] * 8),
    "borders of bins in single precision": (torch.tensor([[k / 15, 1 - k / 15] for k in range(16)]), [1, 0] * 8),
    "a uniform distribution": (torch.full((9, 3), 1 / 3).double(), [0, 1, 2] * 3),
    "many items of two classes": draw(300, 2),
    "many items of six classes": draw(203, 6),
    "many classes": draw(60, 100),
}  # fmt: skip


def by_definition(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Each score by loops over items, bins and thresholds."""
    n, classes = probs.shape
    confidence, chosen = probs.max(1), np.array([int(np.argmax(row)) for row in probs])
    right = (chosen == y).astype(float)
    places = [next(b for b in range(14, -1, -1) if c >= b / 15 - 1e-7 or b == 0) for c in confidence]
    bins = [[i for i in range(n) if places[i] == b] for b in range(15)]
    ece = sum(abs(sum(right[i] - confidence[i] for i in members)) for members in bins) / n
    order = sorted(range(n), key=lambda i: confidence[i])
    parts = np.array_split(np.array(order), 15)
    adaptive = sum(abs(sum(right[i] - confidence[i] for i in part)) for part in parts) / n
    risks = []  # the expected error of the k most confident items, over all orders of ties
    for k in range(1, n + 1):
        threshold = sorted(confidence, reverse=True)[k - 1]
        above = [i for i in range(n) if confidence[i] > threshold]
        tied = [i for i in range(n) if confidence[i] == threshold]
        mean = np.mean([1 - right[i] for i in tied])
        risks.append((sum(1 - right[i] for i in above) + (k - len(above)) * mean) / k)
    recall = [np.mean(chosen[y == k] == k) if (y == k).any() else math.nan for k in range(classes)]
    return {
        "accuracy": float(right.mean()),
        "nll": -float(np.mean([math.log(max(probs[i, y[i]], TINY)) for i in range(n)])),
        "ece": ece,
        "ece_adaptive": adaptive,
        "brier": float(np.mean([sum((probs[i, k] - (k == y[i])) ** 2 for k in range(classes)) for i in range(n)])),
        "aurc": float(np.mean(risks)),
        "coverage_at_5_risk": max((k for k, r in enumerate(risks, 1) if r <= 0.05 + 1e-12), default=0) / n,
        "balanced_accuracy": float(np.nanmean(recall)),
    }  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_score_of_classes_is_its_definition(name):
    probs, labels = CASES[name][0], torch.as_tensor(CASES[name][1])
    expected = by_definition(probs.double().numpy(), labels.numpy())
    found = classification_metrics(probs, labels)
    of_classes = ClassScores.of(probs, labels)
    found |= of_classes.means()
    close = {key: pytest.approx(value, abs=1e-7, nan_ok=True) for key, value in expected.items()}
    assert {key: found[key] for key in close} == close
    assert found["brier_reliability"] - found["brier_resolution"] + found["brier_uncertainty"] == pytest.approx(
        found["brier"]
    )
    confidence, accuracy, count = reliability_bins(probs, labels)
    assert float(((accuracy - confidence).abs() * count).nansum()) / len(probs) == pytest.approx(found["ece"])
    for k in range(probs.shape[1]):
        score, positive = probs[:, k].double().numpy(), labels.numpy() == k
        ap = average_precision_score(positive, score) if positive.any() else math.nan
        auc = math.nan if positive.all() else roc_auc_score(positive, score) if positive.any() else math.nan
        assert (float(of_classes.auc[k]), float(of_classes.ap[k])) == pytest.approx((auc, ap), nan_ok=True)
    modules = {
        "nll": bdl.metrics.PredictiveNLL(), "brier": bdl.metrics.BrierScore(), "aurc": bdl.metrics.AURC(),
        "ece_adaptive": bdl.metrics.AdaptiveECE(), "coverage_at_5_risk": bdl.metrics.CoverageAtRisk(),
    }  # fmt: skip
    for key, metric in modules.items():
        for i in range(len(probs)):  # batches of one item
            metric.update(probs[i : i + 1], labels[i : i + 1])
        assert float(metric.compute()) == close[key], key


@pytest.mark.parametrize(
    ("inside", "outside"),
    [([0.0, 1.0], [1.0, 2.0]), ([1.0], [1.0]), ([0.5] * 5, [0.5] * 3), ([3.0], [2.0]),
     ([0.0, 0.0, 9.0], [0.0, 9.0, 9.0])],
)  # fmt: skip
def test_detection_is_its_definition_with_ties_and_single_items(inside, outside):
    score, strange = np.array(inside + outside), np.arange(len(inside) + len(outside)) >= len(inside)
    rates = [((score >= t)[~strange].mean(), (score >= t)[strange].mean()) for t in sorted(set(score), reverse=True)]
    expected = {
        "auroc": roc_auc_score(strange, score), "aupr": average_precision_score(strange, score),
        "fpr95": min(alarms for alarms, found in rates if found >= 0.95),
    }  # fmt: skip
    assert detection(torch.tensor(inside), torch.tensor(outside)) == pytest.approx(expected)


def of_draws(means: list[list[float]], std: float) -> ValuePrediction:
    """An equal mixture of normal laws: (networks, n) means, and one standard deviation."""
    return of_mixture(mixture_of(torch.tensor(means, dtype=torch.float64)[..., None], bdl.GaussianNLL(std)))


def normal_cdf(z: Any) -> Any:
    return 0.5 * (1 + torch.erf(torch.as_tensor(z, dtype=torch.float64) / math.sqrt(2))).numpy()


VALUES = {
    "one item": ([[0.3]], 1.0, [0.5]),
    "one item, exactly at its mean": ([[0.3]], 0.2, [0.3]),
    "far outside": ([[0.0, 0.0]], 0.1, [50.0, -50.0]),
    "two networks far apart": ([[-5.0, 1.0], [5.0, 1.0]], 0.5, [0.0, 1.0]),
    "a tiny noise": ([[0.0, 1.0], [0.0, 1.0]], 1e-3, [0.001, 0.999]),
    "one of three targets is missing": ([[0.0, 1.0, 2.0]], 1.0, [0.1, math.nan, 2.5]),
}


@pytest.mark.parametrize("name", VALUES)
def test_each_score_of_numbers_is_its_definition(name):
    """CRPS as the integral of (F - 1{y <= x})² over x, intervals by the inverse of the distribution function."""
    means, std, y = VALUES[name]
    prediction, targets = of_draws(means, std), torch.tensor(y, dtype=torch.float64)
    found = value_metrics(prediction, targets)
    seen, items = [i for i in range(len(y)) if not math.isnan(y[i])], {}
    for i in seen:
        centres = np.array([row[i] for row in means])
        low, high = min(centres.min(), y[i]) - 9 * std, max(centres.max(), y[i]) + 9 * std
        x = np.linspace(low, high, 400_001)
        cdf = np.mean([normal_cdf((x - c) / std) for c in centres], 0)
        quantile = lambda q, x=x, cdf=cdf: float(x[np.searchsorted(cdf, q)])  # noqa: E731
        density = np.mean([math.exp(-0.5 * ((y[i] - c) / std) ** 2) for c in centres]) / (std * math.sqrt(2 * math.pi))
        own = float(np.mean(normal_cdf((y[i] - centres) / std)))
        items[i] = {
            "crps": float(np.trapezoid((cdf - (x >= y[i])) ** 2, x)),
            "square": (centres.mean() - y[i]) ** 2,
            "nll": -math.log(density) if density > 1e-300 else math.nan,
            **{f"coverage_{level}": float(abs(own - 0.5) <= level / 200) for level in (50, 90)},
            **{f"width_{p}": quantile(0.5 + p / 200) - quantile(0.5 - p / 200) for p in (50, 90)},
            "below": np.array([own <= q / 20 for q in range(1, 20)], float),
        }  # fmt: skip
    mean = {key: np.mean([item[key] for item in items.values()], 0) for key in items[seen[0]]}
    step = (9 * std + 100) / 400_000
    expected = {
        "rmse": math.sqrt(mean["square"]), "crps": mean["crps"], "coverage_50": mean["coverage_50"],
        "coverage_90": mean["coverage_90"], "width_50": mean["width_50"], "width_90": mean["width_90"],
        "quantile_error": float(np.mean(np.abs(mean["below"] - np.arange(1, 20) / 20))),
    }  # fmt: skip
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=5 * step, rel=1e-3)
    if len(seen) == len(y) and not math.isnan(mean["nll"]):
        assert found["nll"] == pytest.approx(mean["nll"])
        nll = bdl.metrics.PredictiveNLL()
        nll.update(prediction, targets)
        assert float(nll.compute()) == pytest.approx(mean["nll"])
    q = torch.arange(1, 20).double() / 20
    np.testing.assert_allclose(shares_below(prediction, targets, q).numpy(), mean["below"])
    for level in (0.5, 0.9):
        coverage = bdl.metrics.IntervalCoverage(level)
        coverage.update(prediction, targets)
        assert float(coverage.compute()) == pytest.approx(expected[f"coverage_{100 * level:.0f}"])
    crps = bdl.metrics.CRPS()
    crps.update(prediction, targets)
    assert float(crps.compute()) == pytest.approx(expected["crps"], abs=5 * step, rel=1e-3)


def test_no_item_has_no_score():
    """One line, or NaN, and never a number."""
    nothing, labels = torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)
    for score in (classification_metrics, reliability_bins):
        with pytest.raises(ConfigError, match="n > 0"):
            score(nothing, labels)
    for inside, outside in ((nothing, labels + 1.0), (labels + 1.0, nothing)):
        with pytest.raises(ConfigError, match="items of both kinds"):
            detection(inside, outside)
    for metric in (bdl.metrics.AURC(), bdl.metrics.AdaptiveECE(), bdl.metrics.CoverageAtRisk(), bdl.metrics.CRPS(),
                   bdl.metrics.BrierScore(), bdl.metrics.PredictiveNLL(), bdl.metrics.OODDetection()):  # fmt: skip
        with pytest.raises(ConfigError, match="seen no item"):
            metric.compute()
