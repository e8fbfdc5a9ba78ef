"""Scores of each class: how often it is found, how often it is meant, and how well it is ranked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

RANKED = 2**26  # probabilities at most that are ranked for the AUC: beyond, as for pixels, it is not computed


@dataclass(frozen=True)
class ClassScores:
    """Scores of K classes, each (K,) in double precision; NaN where a class has no item that defines it.

    recall = found / items of the class; precision = found / items predicted as the class; iou = found / items of
    either; auc = P(an item of the class has a larger probability of it than an item of another), one against the rest.
    """

    items: Tensor  # how many items the class has
    recall: Tensor
    precision: Tensor
    iou: Tensor
    auc: Tensor

    @classmethod
    def of(cls, probs: Tensor, labels: Tensor) -> ClassScores:
        """Of probabilities (n, K) and labels (n,)."""
        classes = probs.shape[1]
        predicted = probs.argmax(1)
        items, chosen = (v.bincount(minlength=classes).double() for v in (labels, predicted))
        found = labels[predicted == labels].bincount(minlength=classes).double()
        few = probs.numel() <= RANKED
        auc = class_auc(probs, labels) if few else torch.full_like(items, math.nan)
        return cls(items, found / items, found / chosen, found / (items + chosen - found), auc)

    def means(self) -> dict[str, float]:
        """balanced_accuracy = mean recall, mean_iou and auc, each over the classes for which it is defined.

        Two classes have the same AUC, which is then the mean.
        """
        named = {"balanced_accuracy": self.recall, "mean_iou": self.iou, "auc": self.auc}
        return {name: float(values.nanmean()) for name, values in named.items()}


def class_auc(probs: Tensor, labels: Tensor) -> Tensor:
    """(K,) areas under the ROC curves of one class against the rest, by the rank sum; ties count half."""
    from scipy.stats import rankdata

    ranks = torch.from_numpy(np.asarray(rankdata(probs.double().numpy(), axis=0)))
    is_class = torch.nn.functional.one_hot(labels.long(), probs.shape[1]).double()
    inside = is_class.sum(0)
    outside = len(labels) - inside
    return ((ranks * is_class).sum(0) - inside * (inside + 1) / 2) / (inside * outside)
