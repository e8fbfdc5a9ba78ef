"""Negative log-likelihoods per item, in nats, over any leading chain axes; and what other losses would sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl.errors import ConfigError

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class CategoricalNLL:
    """-log softmax(outputs)[y]: outputs (..., B, K) logits, y (..., B) classes -> (..., B)."""

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
        return each.view(y.shape)


@dataclass(frozen=True)
class GaussianNLL:
    """-log N(y; outputs, std²), summed over the k outputs of an item: outputs and y (..., B, k) -> (..., B).

    std: the known noise standard deviation, in the units of y. Mean squared error alone would mean std = sqrt(1/2).
    """

    std: float

    def __post_init__(self) -> None:
        if not self.std > 0:
            raise ConfigError(f"std must be > 0, got {self.std}")

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        z = (outputs - y) / self.std
        return (0.5 * z.square() + math.log(self.std) + 0.5 * math.log(2 * math.pi)).sum(-1)


@dataclass(frozen=True)
class HeteroscedasticNLL:
    """-log N(y; mean, exp(s)): outputs (..., B, 2k) = mean and log variance s, y (..., B, k) -> (..., B)."""

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, log_var = outputs.chunk(2, -1)
        return 0.5 * ((y - mean).square() * (-log_var).exp() + log_var + math.log(2 * math.pi)).sum(-1)


PER_ITEM = (CategoricalNLL, GaussianNLL, HeteroscedasticNLL)


def mean_loss(loss: Loss, outputs: Tensor, y: Tensor, chains: int | None) -> Tensor:
    """() mean loss of the batch, or (C,) mean losses per chain; outputs and y lead with C if chains is given."""
    if isinstance(loss, PER_ITEM):
        return loss(outputs, y).mean(-1)
    if chains is None:
        return loss(outputs, y)
    return torch.stack([loss(outputs[c], y[c]) for c in range(chains)])


def law_note(loss: Any) -> str | None:
    """What is wrong with a loss as a mean negative log-likelihood, or None: the law sampled is exp(-N loss / T)."""
    if isinstance(loss, nn.MSELoss):
        return "MSELoss is the likelihood of noise with std sqrt(1/2), whatever the data: use bdl.GaussianNLL(std)"
    if getattr(loss, "reduction", "mean") != "mean":
        return (
            f'reduction="{loss.reduction}" is no mean over the batch: the law sampled is exp(-N loss / T); use "mean"'
        )
    if getattr(loss, "label_smoothing", 0.0):
        return f"label_smoothing={loss.label_smoothing} samples the posterior of smoothed labels, not of the data"
    if getattr(loss, "weight", None) is not None:
        return "class weights sample the posterior of re-weighted data, not of the data"
    return None
