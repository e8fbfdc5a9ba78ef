"""Scores of predicted probabilities and of predictive laws of numbers, against the data, a constant or a reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood, as_columns
from bdl.posterior.prediction import ValuePrediction

SMALLEST = torch.finfo(torch.float32).tiny  # probability of a label that a network holds to be impossible
BINS = 15  # equal bins of confidence, Guo et al. 2017
RISK = 0.05  # error that is tolerated where the network may abstain
INTERVAL_LEVELS = (0.5, 0.9)  # levels of the central intervals whose coverage and width are scored
QUANTILE_GRID = tuple(q / 20 for q in range(1, 20))  # 0.05 ... 0.95
GRID = torch.tensor(QUANTILE_GRID, dtype=torch.float64)


def classification_metrics(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Scores of probabilities (n, K) against labels (n,). nll is in nats; the others have no unit.

        accuracy = share of items whose most probable class is y
        nll      = mean -log p(y), p at least the smallest normal number of float32
        ece      = Σ_b n_b / n |accuracy_b - confidence_b|, top-label, 15 equal bins (Guo et al. 2017)
        brier    = mean Σ_k (p_k - 1{k = y})², in [0, 2]
                 = brier_reliability - brier_resolution + brier_uncertainty, see `brier_parts`
        ece_adaptive       = ece with 15 bins of equally many items
        aurc               = area under the curve of error against coverage, see `risk_coverage`
        coverage_at_5_risk = largest share of items, the most confident first, that has an error of at most 5 %

    Raises ConfigError when shapes do not match, or labels or probabilities are out of range.
    """
    probs, labels = checked_classes(probs, labels)
    p_of_label = probs.gather(1, labels[:, None]).double().clamp_min(SMALLEST)  # (n, 1)
    error = probs - torch.nn.functional.one_hot(labels, probs.shape[1])  # (n, K)
    risk = risk_coverage(probs, labels)
    allowed = (risk <= RISK).nonzero()
    confidence, accuracy, count = reliability_bins(probs, labels)
    return {
        "accuracy": (probs.argmax(1) == labels).double().mean().item(),
        "nll": -p_of_label.log().mean().item(),
        "ece": ((accuracy - confidence).abs() * count).nansum().item() / len(probs),
        "brier": error.square().sum(1).double().mean().item(),
        "ece_adaptive": adaptive_ece(probs, labels),
        **{f"brier_{name}": part for name, part in brier_parts(probs, labels).items()},
        "aurc": risk.mean().item(),
        f"coverage_at_{100 * RISK:.0f}_risk": (int(allowed[-1]) + 1) / len(risk) if len(allowed) else 0.0,
    }


def adaptive_ece(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Σ_b n_b / n |accuracy_b - confidence_b| over bins of equally many items, top label (Nixon et al. 2019).

    Equal bins of confidence leave most bins of an accurate network empty. probs: (n, K). labels: (n,).
    """
    return adaptive_gap(*confidence_and_errors(probs, labels), bins)


def confidence_and_errors(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) the probability of the most probable class, and whether it is the wrong one, in double precision."""
    confidence, predicted = probs.double().max(1)
    return confidence, (predicted != labels).double()


def adaptive_gap(confidence: Tensor, errors: Tensor, bins: int) -> float:
    """`adaptive_ece` of confidences (n,) and errors (n,), 0 or 1."""
    order = confidence.argsort(stable=True)
    gap = (1 - errors - confidence)[order]
    return sum(abs(part.sum().item()) for part in gap.tensor_split(bins)) / len(confidence)


def brier_parts(probs: Tensor, labels: Tensor, bins: int = BINS) -> dict[str, float]:
    """Parts of the Brier score, which is reliability - resolution + uncertainty (Murphy 1973), summed over classes.

        reliability = Σ_k Σ_b n_b / n (mean p_k - share of k)² over equal bins b of p_k: miscalibration, 0 is best
        uncertainty = Σ_k share of k (1 - share of k): of the labels themselves, nobody can change it
        resolution  = reliability + uncertainty - brier: how far predictions tell items apart

    This resolution is the generalised one of Stephenson, Coelho & Jolliffe (2008, eq. 9): with it the parts add up for
    binned probabilities too. probs: (n, K). labels: (n,).
    """
    p = probs.double()
    is_class = torch.nn.functional.one_hot(labels.long(), p.shape[1]).double()
    index = (p * bins).long().clamp_(max=bins - 1)  # (n, K)
    zeros = p.new_zeros(bins, p.shape[1])
    count, predicted, seen = (zeros.scatter_add(0, index, v) for v in (torch.ones_like(p), p, is_class))
    reliability = ((predicted - seen).square() / count.clamp_min(1)).sum().item() / len(p)
    share = is_class.mean(0)
    uncertain = (share * (1 - share)).sum().item()
    brier = (p - is_class).square().sum(1).mean().item()
    resolution = reliability + uncertain - brier
    return {"reliability": reliability, "resolution": resolution, "uncertainty": uncertain}


def risk_coverage(probs: Tensor, labels: Tensor) -> Tensor:
    """(n,) error among the 1, 2, ... n most confident items (El-Yaniv & Wiener 2010).

    Items of the same confidence share their errors, so that the order of the data does not matter. Confidence is the
    probability of the most probable class. probs: (n, K). labels: (n,).
    """
    return risk_of(*confidence_and_errors(probs, labels))


def risk_of(confidence: Tensor, errors: Tensor) -> Tensor:
    """`risk_coverage` of confidences (n,) and errors (n,), 0 or 1."""
    values, inverse, count = (-confidence).unique(return_inverse=True, return_counts=True)
    summed = torch.zeros_like(values).index_add_(0, inverse, errors)
    each = (summed / count).repeat_interleave(count)
    return each.cumsum(0) / torch.arange(1, len(each) + 1, device=each.device)


def reliability_bins(probs: Tensor, labels: Tensor, bins: int = BINS) -> tuple[Tensor, Tensor, Tensor]:
    """(confidence, accuracy, count), each (bins,), of items grouped by the probability of their most probable class.

    Bin b holds confidences in [b / bins, (b + 1) / bins), and the last bin also holds 1. Confidence and accuracy are
    means over a bin, NaN if it is empty. Raises ConfigError as `classification_metrics` does.

    probs: (n, K). labels: (n,).
    """
    probs, labels = checked_classes(probs, labels)
    confidence, predicted = probs.double().max(1)  # (n,)
    # float32, as in torchmetrics, whose ECE then has the same bins
    edges = torch.linspace(0, 1, bins + 1, device=probs.device)
    index = (torch.bucketize(confidence.float(), edges, right=True) - 1).clamp_(max=bins - 1)
    sums = (torch.ones_like(confidence), confidence, (predicted == labels).double())
    count, total, correct = (confidence.new_zeros(bins).index_add_(0, index, values) for values in sums)
    return total / count, correct / count, count


def checked_classes(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities (n, K), clamped to [0, 1], and the labels (n,), as integers. Raises ConfigError."""
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or len(labels) == 0:
        raise ConfigError(
            f"need probabilities (n, K) and labels (n,), n > 0; got shapes {(*probs.shape,)} and {(*labels.shape,)}"
        )
    low, high, last = int(labels.min()), int(labels.max()), probs.shape[1] - 1
    if low < 0 or high > last:
        raise ConfigError(f"labels must be in 0 .. {last}, the classes of the probabilities; got {low} .. {high}")
    if not bool(((probs > -1e-3) & (probs < 1 + 1e-3)).all()):
        remedy = "correct inputs that are NaN" if bool(probs.isnan().any()) else "apply softmax to logits first"
        raise ConfigError(f"probabilities must be in [0, 1], got NaN or values outside: {remedy}")
    return probs.clamp(0, 1), labels.long()


def value_metrics(prediction: ValuePrediction, y: Tensor) -> dict[str, float]:
    """Scores of a prediction of n items against y (n,) or (n, k). Smaller is better, except for coverage.

        rmse           = root of the mean squared error of the predicted mean, in the units of y
        nll            = mean -log p(y), p the predictive mixture (the negative of LPPD), nats per item
        nll_normal     = mean -log N(y; mean, std²) with the predicted mean and total std, nats per item
        crps           = mean E|Y - y| - ½ E|Y - Y'| (Gneiting & Raftery 2007, eq. 20), in the units of y
        coverage_90    = share of y inside the central 90 % intervals; coverage_50 of the 50 % intervals
        width_90       = mean width of these intervals, in the units of y; width_50 of the 50 % intervals
        quantile_error = mean |share of y below the q-quantile - q| over q = 0.05, 0.1, ... 0.95 (Kuleshov et al. 2018)

    nll sums over the k targets of an item, the others average. A target that is missing, NaN, does not count.
    """
    return scores_of_means(value_means(prediction, y))


def scores_of_means(means: Mapping[str, Tensor]) -> dict[str, float]:
    """`value_metrics` from `value_means`."""
    seen = means["seen"].sum()
    pooled = named_scores({name: mean.sum(-1) / seen for name, mean in means.items()})
    return pooled | {"nll": means["nll"].item(), "nll_normal": means["nll_normal"].sum().item()}


def named_scores(means: Mapping[str, Tensor]) -> dict[str, float]:
    """Scores from means over items and targets, without those that only help to make others."""
    scores = {name: mean.item() for name, mean in means.items() if name not in ("mse", "shares", "seen", "nll_of_each")}
    return {"rmse": math.sqrt(means["mse"]), **scores, "quantile_error": (means["shares"] - GRID).abs().mean().item()}


def value_means(prediction: ValuePrediction, y: Tensor) -> dict[str, Tensor]:
    """What the scores of `value_metrics` are made of: means over items, which can be joined over parts of the items.

    They are (k,), with 0 for a target that is missing: divide by `seen`, the share of items that have it. `shares`
    (19, k) are the shares of y below each quantile, `nll` () is that of an item, `nll_of_each` (k,) of each target.
    """
    columns = as_columns(y.double(), prediction.mean.shape)
    seen = ~columns.isnan()

    def mean(values: Tensor) -> Tensor:
        return torch.where(seen, values.double(), 0).mean(0)

    moments, nll = (prediction.mean.double(), prediction.std.double()), -prediction.log_density(columns).double().mean()
    scores = {
        "seen": seen.double().mean(0),
        "mse": mean((moments[0] - columns).square()),
        "nll": nll,
        "nll_of_each": nll[None] if seen.shape[1] == 1 else mean(-prediction.log_density_of_each(columns)),
        "nll_normal": mean(-torch.distributions.Normal(*moments, validate_args=False).log_prob(columns)),
        "crps": mean(prediction.crps(columns)),
    }
    for level in INTERVAL_LEVELS:
        low, high = prediction.interval(level)
        scores[f"coverage_{100 * level:.0f}"] = mean((columns >= low) & (columns <= high))
        scores[f"width_{100 * level:.0f}"] = mean(high - low)
    return scores | {"shares": torch.stack([mean(below) for below in _below(prediction, columns, GRID)])}


def shares_below(prediction: ValuePrediction, y: Tensor, q: Tensor) -> Tensor:
    """(len(q),) shares of y below their predicted q-quantiles; q where the prediction is calibrated.

    A value with a probability of its own, such as a count, counts in proportion where it sits on the quantile (Czado et
    al. 2009, eq. 2).
    """
    columns = as_columns(y.double(), prediction.mean.shape)
    return torch.stack([below[~columns.isnan()].mean() for below in _below(prediction, columns, q)])


def _below(prediction: ValuePrediction, y: Tensor, q: Tensor) -> Iterator[Tensor]:
    """(n, k) for each q, how much of y (n, k) lies below its predicted q-quantile: 0 or 1, or a part of a mass."""
    upper = prediction.cdf(y).double()
    if not prediction.mixture.likelihood.has_masses:
        yield from ((upper <= one).double() for one in q)
        return
    lower = prediction.below(y).double()
    width = (upper - lower).clamp_min(torch.finfo(torch.float64).tiny)
    yield from (((one - lower) / width).clamp(0, 1) for one in q)


def constant_class_losses(y: Tensor, seen: Tensor | None = None, classes: Sequence[int] = ()) -> Tensor:
    """(n k,) -log p of classes y (n,), or of k labels (n, k), each with shares of its own, in nats.

    The shares of the classes among the targets `seen`, with one more of each. None: among all of y but the item itself.
    A label below 0 is missing, and left out. classes: how many each column has; () for as many as are named.
    """
    y, known = (v.long().reshape(len(v), -1) for v in (y, y if seen is None else seen))
    own, losses = int(seen is None), []
    for j, k in enumerate(classes or [int(max(y.max(), known.max())) + 1] * y.shape[1]):
        there = known[:, j][known[:, j] >= 0]
        shares = (there.bincount(minlength=k) + 1.0 - own) / (len(there) - own + k)
        losses.append(-shares[y[:, j].clamp_min(0)].double().log())
    return torch.stack(losses, 1)[y >= 0]


def constant_class_entropy(y: Tensor, classes: Sequence[int]) -> float:
    """The entropy of the shares of classes y (n,), or the mean over k labels (n, k), in nats, with one more of each.

    classes: how many each column has. A label below 0 is missing.
    """
    columns = zip(y.long().reshape(len(y), -1).T, classes, strict=True)
    counts = [column[column >= 0].bincount(minlength=k).double() + 1 for column, k in columns]
    return float(torch.stack([torch.special.entr(each / each.sum()).sum() for each in counts]).mean())


def constant_value_losses(y: Tensor, likelihood: Likelihood, seen: Tensor | None = None) -> Tensor:
    """(n,) -log p of numbers y (n,) or (n, k) under one law for all items, see `Likelihood.constant`, in nats.

    The law has the moments of the targets `seen`. None: those of y, and 2/n is added for each target, by which the NLL
    on what it has seen is too small (Akaike). NaN where fewer than 3 targets were seen.
    """
    y = y.double().reshape(len(y), -1)
    known = y if seen is None else seen.double().reshape(len(seen), -1)
    there = ~y.isnan()
    if int((~known.isnan()).sum(0).min()) < 3:
        return torch.full_like(y[:, 0], math.nan)
    each = likelihood.constant(known).log_prob(torch.where(there, y, 0))
    losses = -torch.where(there, each, 0).sum(-1)
    return losses if seen is not None else losses + 2 * y.shape[1] / len(y)


def agreement(probs: Tensor, reference: Tensor) -> dict[str, float]:
    """How close probabilities (n, K) are to a reference's (n, K), such as HMC (Izmailov et al. 2021, section 7).

        agreement       = share of items with the same most probable class
        total_variation = mean ½ Σ_k |p_k - q_k|

    Raises ConfigError if the shapes differ.
    """
    if probs.shape != reference.shape:
        shapes = f"shape {tuple(reference.shape)}, the posterior {tuple(probs.shape)}"
        raise ConfigError(f"the reference has probabilities of {shapes}: both must have the same items in one order")
    reference = reference.to(probs)
    return {
        "agreement": (probs.argmax(1) == reference.argmax(1)).double().mean().item(),
        "total_variation": (probs - reference).abs().sum(1).double().mean().item() / 2,
    }


def read_probabilities(path: str | Path) -> Tensor:
    """(n, K) probabilities from a .npy file, or from a text file of comma-separated rows.

    Raises ConfigError if the file cannot be read, or its rows are not probabilities.
    """
    try:
        probs = np.load(path, allow_pickle=False) if Path(path).suffix == ".npy" else np.loadtxt(path, delimiter=",")
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't read probabilities from {path}: {str(error).splitlines()[0]}") from error
    if probs.ndim != 2 or not np.allclose(probs.sum(1), 1, atol=1e-2) or not (probs >= 0).all():
        raise ConfigError(f"{path} must hold probabilities (n, K) whose rows sum to 1, got an array {probs.shape}")
    return torch.from_numpy(probs)
