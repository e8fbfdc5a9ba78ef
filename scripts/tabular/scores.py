"""Proper scores of what methods predict for test rows: of numbers, a law or its quantiles; of classes, probabilities.

Numbers are scored in standard deviations of the training targets, so that tables compare.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

LEVELS = np.arange(1, 20) / 20  # of the quantiles: 0.05 ... 0.95
LEAST_P = 1e-12  # a probability that a method says is 0


@dataclass(frozen=True)
class Law:
    """What a method says of n test rows.

    mean (n,); quantiles (19, n) at `LEVELS`; log_density (n,) of the targets in nats, or None where a method has no
    density.
    """

    mean: np.ndarray
    quantiles: np.ndarray
    log_density: np.ndarray | None = None


def mixture(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> Law:
    """The mixture of normal laws with means and stds (S, n), of equal weight."""
    density: Any = logsumexp(norm.logpdf(y, mean, std), axis=0)
    density = density - math.log(len(mean))
    if len(mean) == 1:
        return Law(mean[0], norm.ppf(LEVELS[:, None], mean, std), density)
    return Law(mean.mean(0), mixture_quantiles(mean, std), density)


def mixture_quantiles(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """(19, n) by bisection between the smallest and the largest quantile of a component."""
    levels = LEVELS[:, None]
    low, high = np.full((2, len(LEVELS), mean.shape[1]), [[[np.inf]], [[-np.inf]]])
    for m, s in zip(mean, std, strict=True):
        ends = norm.ppf(levels, m, s)
        low, high = np.minimum(low, ends), np.maximum(high, ends)
    for _ in range(40):  # 1e-12 of the width
        middle = (low + high) / 2
        is_left = sum(norm.cdf(middle, m, s) for m, s in zip(mean, std, strict=True)) < len(mean) * levels
        low, high = np.where(is_left, middle, low), np.where(is_left, high, middle)
    return (low + high) / 2


def of_prediction(prediction: Any, y: np.ndarray) -> Law:
    """The law of a `bdl.ValuePrediction`, which has no density where it gives single values a probability."""
    import torch

    truth = torch.as_tensor(y)[:, None]
    quantiles = prediction.quantile(LEVELS.tolist()).squeeze(-1).double().numpy()
    seen = (truth.double() - prediction.shift) / prediction.scale
    dense = bool(prediction.mixture.has_density(seen).all())
    return Law(
        prediction.mean.squeeze(-1).double().numpy(), quantiles,
        prediction.log_density(truth).double().numpy() if dense else None,
    )  # fmt: skip


def interval_score(low: np.ndarray, high: np.ndarray, y: np.ndarray, level: float) -> np.ndarray:
    """(n,) of a central interval (Gneiting and Raftery 2007, eq. 43): width + 2 / (1 - level) x what y is outside."""
    return high - low + 2 / (1 - level) * (np.maximum(low - y, 0) + np.maximum(y - high, 0))


def crps(quantiles: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n,) CRPS = 2 ∫ pinball loss of the quantile at q dq, by the trapezoid rule over `LEVELS`; at 0 and 1 it is 0.

    All methods are scored by the same 19 quantiles, because some have no others.
    """
    error = y - quantiles  # (19, n)
    return 2 * np.maximum(LEVELS[:, None] * error, (LEVELS[:, None] - 1) * error).sum(0) / (len(LEVELS) + 1)


def scores_of_numbers(law: Law, y: np.ndarray, std: float) -> dict[str, float]:
    """std: of the training targets, in which the scores are."""
    quantiles = np.sort(law.quantiles, 0)  # those that were fitted one by one may cross
    low, high = quantiles[0], quantiles[-1]
    found = {
        "rmse": float(np.sqrt(np.mean((law.mean - y) ** 2))) / std,
        **with_error("crps", crps(quantiles, y) / std),
        "interval_90": float(interval_score(low, high, y, 0.9).mean()) / std,
        "coverage_90": float(((low <= y) & (y <= high)).mean()),
    }
    if law.log_density is not None:
        found |= with_error("nll", -law.log_density - math.log(std))
    return found


def scores_of_classes(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Of probabilities (n, K) and codes y (n,). Brier is the sum over classes, in [0, 2]; ECE has 15 equal bins."""
    import torch

    from bdl.posterior.metrics import classification_metrics

    probs = np.maximum(probs, LEAST_P)
    probs = probs / probs.sum(1, keepdims=True)
    metrics = classification_metrics(torch.tensor(probs), torch.tensor(y).long())
    found = {name: metrics[name] for name in ("brier", "ece", "accuracy")}
    return found | with_error("nll", -np.log(probs[np.arange(len(y)), y]))


def with_error(name: str, each: np.ndarray) -> dict[str, float]:
    """The mean over rows, and its standard error."""
    return {name: float(each.mean()), f"{name}_se": float(each.std(ddof=1) / math.sqrt(len(each)))}
