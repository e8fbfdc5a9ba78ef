"""Draws of the noise that mini-batches give to a gradient, from the differences between parts of one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bdl.batch import Inputs, feed, map_tensors, tensors_in
from bdl.engine.gradient import Losses
from bdl.errors import ConfigError
from bdl.likelihoods import Loss, mean_loss

GROUPS = 8  # parts of a batch: 7 draws for the price of one gradient of the batch


def noise_draws(net: nn.Module, loss: Loss, x: Inputs, y: Tensor, groups: int = GROUPS) -> Tensor:
    """(groups - 1, d) draws of mean 0 whose covariance is that of the gradient of the mean loss of a batch.

    Columns are the parameters that require a gradient, in the order of `net.named_parameters()`. The items of the batch
    are taken for independent. Parts of one batch at one θ differ by their items alone, so that the draws know nothing
    of the curvature.

    Args:
        loss: loss(outputs, y), the mean over a batch or one value per item.
        x, y: (n, ...) inputs and labels; several inputs as a tuple, or as a dict by name.
        groups: parts of equal size that the batch is divided into, at most n.

    Raises ConfigError for fewer than 2 items.
    """
    params = [p for p in net.parameters() if p.requires_grad]
    return draws_of(lambda x, y: mean_loss(loss, feed(net, x), y, None).mean(), params, x, y, groups=groups)


def draws_of(
    losses: Losses,
    params: Sequence[Tensor],
    x: Inputs,
    y: Tensor,
    chains: int | None = None,
    axis: int = 0,
    groups: int = GROUPS,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Tensor:
    """(groups - 1, d), or with chains (C, groups - 1, d), draws as those of `noise_draws`.

    axis: that of the items in inputs and targets. context: in which losses are found.
    """
    items = next(tensors_in(x)).shape[axis]
    groups = min(groups, items)
    if groups < 2:
        raise ConfigError(f"the noise of a batch shows in the difference between its parts, and it has {items} item")
    size, lead = items // groups, 0 if chains is None else 1
    rows = []
    for i in range(groups):
        part = map_tensors(lambda t, at=i * size: t.narrow(axis, at, size), (x, y))
        with torch.enable_grad():
            with context():
                loss = losses(*part)
            found = torch.autograd.grad(loss.sum(), params, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten(lead) for g in found], -1))
    # A contrast of unit length has the covariance of one part's mean; that of the batch is `size / items` times it
    scale = (size / items) ** 0.5
    return scale * (contrasts(groups).to(rows[0]) @ torch.stack(rows, lead))


def contrasts(n: int) -> Tensor:
    """(n - 1, n) orthonormal rows that sum to 0 (Helmert): the i-th compares entry i + 1 with those before it."""
    i = torch.arange(1, n, dtype=torch.float64).unsqueeze(1)
    rows = torch.ones(n - 1, n, dtype=torch.float64).tril()
    rows[:, 1:] -= torch.diag_embed(i.squeeze(1))
    return rows / (i * (i + 1)).sqrt()
