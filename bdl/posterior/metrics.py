"""Scores of predicted probabilities, the parts of their uncertainty, and the bins of a reliability diagram."""

from __future__ import annotations

import torch
from torch import Tensor

from bdl.errors import ConfigError

BINS = 15  # equal bins of confidence, Guo et al. 2017
RISK = 0.05  # error that is tolerated where the network may abstain


def classification_metrics(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Scores of probabilities (n, K) against labels (n,). nll is in nats; the others have no unit.

        accuracy = share of items whose most probable class is y
        nll      = mean -log p(y)
        ece      = Σ_b n_b / n |accuracy_b - confidence_b|, top-label, 15 equal bins (Guo et al. 2017)
        brier    = mean Σ_k (p_k - 1{k = y})², in [0, 2]
                 = brier_reliability - brier_resolution + brier_uncertainty, see `brier_parts`
        ece_adaptive       = ece with 15 bins of equally many items
        aurc               = area under the curve of error against coverage, see `risk_coverage`
        coverage_at_5_risk = largest share of items, the most confident first, that has an error of at most 5 %

    Raises ConfigError when shapes do not match, or labels or probabilities are out of range.
    """
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

    probs, labels = _checked(probs, labels)
    p_of_label = probs.gather(1, labels[:, None]).clamp_min(torch.finfo(probs.dtype).tiny)  # (n, 1)
    error = probs - torch.nn.functional.one_hot(labels, probs.shape[1])  # (n, K)
    risk = risk_coverage(probs, labels)
    allowed = (risk <= RISK).nonzero()
    settings = {"num_classes": probs.shape[1], "validate_args": False}
    return {
        "accuracy": multiclass_accuracy(probs, labels, average="micro", **settings).item(),
        "nll": -p_of_label.log().double().mean().item(),
        "ece": multiclass_calibration_error(probs, labels, n_bins=BINS, norm="l1", **settings).item(),
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
    confidence, predicted = probs.double().max(1)
    order = confidence.argsort(stable=True)
    gap = ((predicted == labels).double() - confidence)[order]
    return sum(abs(part.sum().item()) for part in gap.tensor_split(bins)) / len(labels)


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
    confidence, predicted = probs.double().max(1)
    values, inverse, count = (-confidence).unique(return_inverse=True, return_counts=True)
    errors = torch.zeros_like(values).index_add_(0, inverse, (predicted != labels).double())
    each = (errors / count).repeat_interleave(count)
    return each.cumsum(0) / torch.arange(1, len(each) + 1, device=each.device)


def uncertainty(mean_probs: Tensor, mean_entropy: Tensor) -> dict[str, Tensor]:
    """Parts of the predictive entropy, each (n,) in nats: total = aleatoric + epistemic (Depeweg et al. 2018).

        total = H(E p),    aleatoric = E H(p),    epistemic = total - aleatoric = I(y; θ) >= 0

    mean_probs: (n, K) mean of the samples' probabilities. mean_entropy: (n,) mean of the samples' entropies, nats.
    """
    total = torch.special.entr(mean_probs).sum(-1)
    # By Jensen's inequality the difference is >= 0; only rounding makes it negative.
    return {"total": total, "aleatoric": mean_entropy, "epistemic": (total - mean_entropy).clamp_min(0)}


def ood_auroc(inside: Tensor, outside: Tensor) -> float:
    """Area under the ROC curve when predictive entropy is used to detect out-of-distribution items.

    It is the probability that an out-of-distribution item has a larger entropy than an item of the data. Ties count
    half, so that guessing gives .5.

    inside: (n, K) predicted probabilities of items of the data. outside: (m, K), of out-of-distribution items.
    """
    from torchmetrics.functional.classification import binary_auroc

    entropy = torch.special.entr(torch.cat([inside, outside]).double()).sum(1)
    is_outside = torch.arange(len(entropy), device=entropy.device) >= len(inside)
    # torchmetrics takes scores outside of [0, 1] for logits
    return binary_auroc(entropy / entropy.max().clamp_min(1), is_outside.long()).item()


def reliability_bins(probs: Tensor, labels: Tensor, bins: int = BINS) -> tuple[Tensor, Tensor, Tensor]:
    """(confidence, accuracy, count), each (bins,), of items grouped by the probability of their most probable class.

    Bin b holds confidences in [b / bins, (b + 1) / bins), and the last bin also holds 1. Confidence and accuracy are
    means over a bin, NaN if it is empty. Raises ConfigError as `classification_metrics` does.

    probs: (n, K). labels: (n,).
    """
    probs, labels = _checked(probs, labels)
    confidence, predicted = probs.double().max(1)  # (n,)
    # float32, as in torchmetrics: the diagram then has the same bins as the ECE
    edges = torch.linspace(0, 1, bins + 1, device=probs.device)
    index = (torch.bucketize(confidence.float(), edges, right=True) - 1).clamp_(max=bins - 1)
    count = confidence.new_zeros(bins).index_add_(0, index, torch.ones_like(confidence))
    total = confidence.new_zeros(bins).index_add_(0, index, confidence)
    correct = confidence.new_zeros(bins).index_add_(0, index, (predicted == labels).double())
    return total / count, correct / count, count


def _checked(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities (n, K), clamped to [0, 1], and the labels (n,), as integers. Raises ConfigError."""
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or len(labels) == 0:
        raise ConfigError(
            f"need probabilities (n, K) and labels (n,), n > 0; got shapes {(*probs.shape,)} and {(*labels.shape,)}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= probs.shape[1]:
        raise ConfigError(
            f"labels must be in 0 .. {probs.shape[1] - 1}, the classes of the probabilities; got {low} .. {high}"
        )
    if not bool(((probs > -1e-3) & (probs < 1 + 1e-3)).all()):
        raise ConfigError("probabilities must be in [0, 1], got NaN or values outside: apply softmax to logits first")
    # An average may round to 1 + 1e-7; torchmetrics would take it for a logit and apply softmax
    return probs.clamp(0, 1), labels.long()
