"""The best predictions that do not read the inputs, against which an average is compared.

A constant that has seen the very y on which it is scored would beat every honest prediction of few items. It takes its
shares or moments from targets `seen` elsewhere, such as the training set, or is corrected for what it has seen.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def constant_class_losses(y: Tensor, seen: Tensor | None = None) -> Tensor:
    """(n k,) -log p of classes y (n,), or of k labels (n, k), each with shares of its own, in nats.

    The shares are those of the targets `seen` and of one more of each class. None: of all of y but the item itself.
    """
    y = y.long().reshape(len(y), -1)
    known = y if seen is None else seen.long().reshape(len(seen), -1)
    classes, own = int(max(y.max(), known.max())) + 1, int(seen is None)
    shift = classes * torch.arange(y.shape[1])  # each label has counts of its own
    counts = (known + shift).flatten().bincount(minlength=classes * y.shape[1])
    return -((counts[y + shift] + 1.0 - own) / (len(known) - own + classes)).double().log().flatten()


def constant_value_losses(y: Tensor, counts: bool, seen: Tensor | None = None) -> Tensor:
    """(n,) -log p of numbers y (n,) or (n, k) under one law of two moments for each target, in nats.

    The moments are those of the targets `seen`. None: of y, and 2/n is added for each target, by which the NLL on what
    it has seen is too small (Akaike). NaN where fewer than 3 targets were seen.
    """
    y = y.double().reshape(len(y), -1)
    known = y if seen is None else seen.double().reshape(len(seen), -1)
    losses = -constant_law(known, counts).log_prob(y).sum(-1)
    if len(known) < 3:
        return torch.full_like(losses, math.nan)
    return losses if seen is not None else losses + 2 * y.shape[1] / len(y)


def constant_law(y: Tensor, counts: bool) -> torch.distributions.Distribution:
    """The law of targets (n, k) for all items alike: normal, or for counts negative binomial, of their moments."""
    mean, variance = y.mean(0), y.var(0, unbiased=False).clamp_min(torch.finfo(y.dtype).tiny)
    if not counts:
        return torch.distributions.Normal(mean, variance.sqrt())
    mean = mean.clamp_min(torch.finfo(y.dtype).tiny)
    excess = (variance - mean).clamp_min(1e-6 * mean)  # hardly more than none: Poisson
    return torch.distributions.NegativeBinomial(mean.square() / excess, probs=excess / (mean + excess))
