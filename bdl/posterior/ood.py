"""Out-of-distribution scores: how well a posterior's uncertainty tells strange items from items of its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.posterior.prediction import ValuePrediction

RECALL = 0.95  # share of strange items that are found, at which false alarms are counted


def ood(posterior: Any, inside: Any, outside: Any) -> dict[str, float]:
    """How well scores of a posterior tell `outside` from `inside` items; larger scores are stranger.

        entropy            = entropy of the mean probabilities, nats
        mutual_information = its epistemic part, I(y; θ), nats (Depeweg et al. 2018)
        energy             = mean over networks of -log Σ_k exp(logit_k) (Liu et al. 2020, eq. 4), where logits exist
        std, epistemic     = for numbers: standard deviation of y, and of the networks' means; the mean over targets

    Args:
        posterior: a `bdl.Posterior`.
        inside, outside: tensors x (n, ...), or loaders of batches, as `posterior.predict` takes them. Labels are not
            read. Where an item has several elements, such as pixels, each is an item.

    Returns flat `entropy/auroc`, `entropy/aupr`, `entropy/fpr95` and so on, see `detection`.

    Raises ConfigError as `posterior.predict` does.
    """
    known, strange = scores_of(posterior, inside), scores_of(posterior, outside)
    return named_detection(known, strange)


def scores_of(posterior: Any, data: Any) -> dict[str, Tensor]:
    """(n,) scores of items by name, larger for stranger items."""
    prediction = posterior.predicted(posterior.batches(data))  # `predict` would warn of inputs that are meant to be far
    if isinstance(prediction, ValuePrediction):
        return {"std": prediction.std.mean(-1), "epistemic": prediction.epistemic.mean(-1)}
    scores = {"entropy": prediction.entropy.flatten(), "mutual_information": prediction.epistemic.flatten()}
    if posterior.likelihood(data).outputs == "logits":
        scores["energy"] = posterior.moments(data, logit_energy)[0].flatten()
    return scores


def logit_energy(logits: Tensor) -> Tensor:
    """-log Σ_k exp(logit_k) of logits (..., K)."""
    return -logits.logsumexp(-1)


def named_detection(inside: Mapping[str, Tensor], outside: Mapping[str, Tensor]) -> dict[str, float]:
    """`detection` by each of the scores, as `score/auroc` and so on."""
    each = {name: detection(inside[name], outside[name]) for name in inside}
    return {f"{score}/{name}": value for score, values in each.items() for name, value in values.items()}


def detection(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """How well a score (n,) of items of the data and (m,) of strange items separates the two. Strange is positive.

        auroc = P(strange item has the larger score); a tie counts half, so that guessing gives 0.5
        aupr  = Σ (recall_k - recall_(k-1)) precision_k, the average precision; guessing gives m / (n + m)
        fpr95 = share of items of the data above the largest threshold that finds 95 % of the strange items

    Raises ConfigError without items, and for scores that are not finite.
    """
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision, binary_roc

    scores = torch.cat([inside.flatten().double(), outside.flatten().double()])
    if not inside.numel() or not outside.numel() or not bool(scores.isfinite().all()):
        raise ConfigError(
            f"need finite scores of items of both kinds, got {inside.numel()} of the data and {outside.numel()} strange"
        )
    values, place = scores.unique(return_inverse=True)
    ranks = (place + 1).double() / (len(values) + 1)  # torchmetrics takes scores outside of [0, 1] for logits
    strange = (torch.arange(len(scores), device=scores.device) >= inside.numel()).long()
    false_alarms, found, _ = binary_roc(ranks, strange)
    hits = (found.double() * outside.numel()).round()  # 0.95 is less than 19/20 in float32
    return {
        "auroc": binary_auroc(ranks, strange).item(),
        "aupr": binary_average_precision(ranks, strange).item(),
        "fpr95": false_alarms[hits >= RECALL * outside.numel() - 1e-6].min().item(),
    }
