"""Scores of each class: how often it is found, how often it is meant, and how well it is ranked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FEWEST = 3  # items of a class that tell whether it is ever predicted
RANKED = 2**26  # probabilities at most that are ranked for the AUC: beyond, as for pixels, it is not computed


@dataclass(frozen=True)
class ClassScores:
    """Scores of K classes, each (K,) in double precision; NaN where a class has no item that defines it.

    recall = found / items of the class; precision = found / items predicted as the class; iou = found / items of
    either; auc = P(an item of the class has a larger probability of it than an item of another), one against the rest;
    ap = the average precision of a search for the class, see `class_ap`.
    """

    items: Tensor  # how many items the class has
    recall: Tensor
    precision: Tensor
    iou: Tensor
    auc: Tensor
    ap: Tensor

    @classmethod
    def of(cls, probs: Tensor, labels: Tensor) -> ClassScores:
        """Of probabilities (n, K) and labels (n,)."""
        classes = probs.shape[1]
        predicted = probs.argmax(1)
        items, chosen = (v.bincount(minlength=classes).double() for v in (labels, predicted))
        found = labels[predicted == labels].bincount(minlength=classes).double()
        few = probs.numel() <= RANKED
        ranked = [class_auc(probs, labels), class_ap(probs, labels)] if few else [torch.full_like(items, math.nan)] * 2
        return cls(items, found / items, found / chosen, found / (items + chosen - found), *ranked)

    def means(self) -> dict[str, float]:
        """balanced_accuracy = mean recall, mean_iou, auc and average_precision, over the classes that define them.

        Two classes have the same AUC, which is then the mean. Their average_precision is that of the rarer one, because
        that of the frequent one is near 1 for any prediction.
        """
        named = {"balanced_accuracy": self.recall, "mean_iou": self.iou, "auc": self.auc, "average_precision": self.ap}
        means = {name: float(values.nanmean()) for name, values in named.items()}
        both = len(self.items) == 2 and bool((self.items > 0).all())
        return means | ({"average_precision": float(self.ap[self.items.argmin()])} if both else {})


def class_auc(probs: Tensor, labels: Tensor) -> Tensor:
    """(K,) areas under the ROC curves of one class against the rest, by the rank sum; ties count half."""
    from scipy.stats import rankdata

    ranks = torch.from_numpy(np.asarray(rankdata(probs.double().numpy(), axis=0)))
    is_class = torch.nn.functional.one_hot(labels.long(), probs.shape[1]).double()
    inside = is_class.sum(0)
    outside = len(labels) - inside
    return ((ranks * is_class).sum(0) - inside * (inside + 1) / 2) / (inside * outside)


def class_ap(probs: Tensor, labels: Tensor) -> Tensor:
    """(K,) average precisions Σ (recall_i - recall_(i-1)) precision_i over the probabilities, the largest first.

    Items of one probability come together, so that their order does not matter. Guessing gives the share of the class.
    """
    found = torch.full((probs.shape[1],), math.nan, dtype=torch.float64)
    for k, column in enumerate(probs.double().T):
        values, place = column.unique(return_inverse=True)
        hits, items = (torch.zeros(len(values), dtype=torch.float64) for _ in range(2))
        hits.index_add_(0, place, (labels == k).double())
        items.index_add_(0, place, torch.ones_like(column))
        precision = hits.flip(0).cumsum(0) / items.flip(0).cumsum(0)
        found[k] = (hits.flip(0) * precision).sum() / hits.sum()
    return found


def unpredicted(items: Tensor, chosen: Tensor) -> dict[int, int]:
    """The items (K,) of each class that has FEWEST of them, and that is `chosen` (K,) for no item.

    >>> unpredicted(torch.tensor([972, 28, 1]), torch.tensor([1001, 0, 0]))
    {1: 28}
    """
    never = ((items >= FEWEST) & (chosen == 0)).nonzero().flatten().tolist()
    return {k: int(items[k]) for k in never}
