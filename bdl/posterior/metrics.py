"""Scores of predicted probabilities, the parts of their uncertainty, and the bins of a reliability diagram."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, multiclass_accuracy, multiclass_calibration_error

from bdl.errors import ConfigError

BINS = 15  # equal bins of confidence, Guo et al. 2017


def classification_metrics(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Scores of probabilities (n, K) against labels (n,): shares of 1, but for the negative log-likelihood in nats.

        accuracy = share of items whose most probable class is y
        nll      = mean -log p(y)
        ece      = Σ_b n_b / n |accuracy_b - confidence_b|, top-label, 15 equal bins (Guo et al. 2017)
        brier    = mean Σ_k (p_k - 1{k = y})², in [0, 2]

    Raises ConfigError when shapes, labels or probabilities do not fit.
    """
    probs, labels = _checked(probs, labels)
    own = probs.gather(1, labels[:, None]).clamp_min(torch.finfo(probs.dtype).tiny)  # (n, 1)
    error = probs - torch.nn.functional.one_hot(labels, probs.shape[1])  # (n, K)
    settings = {"num_classes": probs.shape[1], "validate_args": False}
    return {
        "accuracy": multiclass_accuracy(probs, labels, average="micro", **settings).item(),
        "nll": -own.log().double().mean().item(),
        "ece": multiclass_calibration_error(probs, labels, n_bins=BINS, norm="l1", **settings).item(),
        "brier": error.square().sum(1).double().mean().item(),
    }


def uncertainty(mean_probs: Tensor, mean_entropy: Tensor) -> dict[str, Tensor]:
    """Parts of the predictive entropy, each (n,) in nats: total = aleatoric + epistemic (Depeweg et al. 2018).

        total = H(E p),    aleatoric = E H(p),    epistemic = total - aleatoric = I(y; θ) >= 0

    mean_probs: (n, K) mean of the samples' probabilities. mean_entropy: (n,) mean of the samples' entropies, nats.
    """
    total = torch.special.entr(mean_probs).sum(-1)
    # Jensen's inequality holds exactly; rounding alone can make the difference negative
    return {"total": total, "aleatoric": mean_entropy, "epistemic": (total - mean_entropy).clamp_min(0)}


def ood_auroc(inside: Tensor, outside: Tensor) -> float:
    """Chance that an item from elsewhere has a larger entropy than one of the data, ties half: .5 is guessing.

    inside (n, K), outside (m, K): predicted probabilities.
    """
    entropy = torch.special.entr(torch.cat([inside, outside]).double()).sum(1)
    target = torch.arange(len(entropy), device=entropy.device) >= len(inside)
    return binary_auroc(entropy / entropy.max().clamp_min(1), target.long()).item()  # in [0, 1], or it is no score


def reliability_bins(probs: Tensor, labels: Tensor, bins: int = BINS) -> tuple[Tensor, Tensor, Tensor]:
    """(confidence, accuracy, count), each (bins,), of items grouped by the probability of their most probable class.

    probs (n, K), labels (n,). Bin b holds confidences in [b / bins, (b + 1) / bins), the last one 1 too. Confidence and
    accuracy are means over the bin, NaN where it is empty.
    """
    probs, labels = _checked(probs, labels)
    confidence, predicted = probs.double().max(1)  # (n,)
    # the edges as torchmetrics rounds them, so that the diagram shows the bins that the ECE is made of
    edges = torch.linspace(0, 1, bins + 1, device=probs.device)
    index = (torch.bucketize(confidence.float(), edges, right=True) - 1).clamp_(max=bins - 1)
    count = confidence.new_zeros(bins).index_add_(0, index, torch.ones_like(confidence))
    total = confidence.new_zeros(bins).index_add_(0, index, confidence)
    right = confidence.new_zeros(bins).index_add_(0, index, (predicted == labels).double())
    return total / count, right / count, count


def _checked(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (n, K) within [0, 1] and labels (n,) that index them."""
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or len(labels) == 0:
        raise ConfigError(
            f"need probabilities (n, K) and labels (n,), n > 0; got {(*probs.shape,)} and {(*labels.shape,)}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= probs.shape[1]:
        raise ConfigError(
            f"labels must be in 0 .. {probs.shape[1] - 1}, the classes of the network; got {low} .. {high}"
        )
    if not bool(((probs > -1e-3) & (probs < 1 + 1e-3)).all()):
        raise ConfigError("probabilities must be in [0, 1], got others or NaN: apply softmax to logits first")
    # an average may round to 1 + 1e-7, which torchmetrics would take for a logit and pass through a softmax
    return probs.clamp(0, 1), labels.long()
