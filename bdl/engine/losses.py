"""mean_losses: the loss of a network, or of every chain of a stack, over all items of some batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bdl.batch import Inputs, feed
from bdl.devices import widest
from bdl.engine.functional import evaluating
from bdl.engine.stack import ChainStack
from bdl.likelihoods import Loss, mean_loss


@torch.no_grad()
def mean_losses(batches: Iterable[tuple[Inputs, Tensor]], net: nn.Module, loss: Loss, chains: int | None) -> Tensor:
    """() or (C,) mean negative log-likelihood of all items, in eval mode, summed in the widest type of the device.

    batches: (inputs, targets) on the device of the network, which all chains see. net: a stack, or a module that maps
    inputs to the outputs (B, K), or (C, B, K) of every chain.
    """
    total: Any = 0.0
    run, count = net.broadcast if isinstance(net, ChainStack) else net, 0
    with evaluating(net):
        for inputs, y in batches:
            labels = y if chains is None else y.expand(chains, *y.shape)
            mean = mean_loss(loss, feed(run, inputs), labels, chains)
            total = total + mean.to(widest(mean.device)) * len(y)
            count += len(y)
    return total / count
