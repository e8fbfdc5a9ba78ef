"""The loss over all the data of a training loader, for full-data energies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bdl.batch import Inputs, feed, map_tensors
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.devices import widest
from bdl.engine.forward import Forward
from bdl.engine.functional import evaluating
from bdl.engine.stack import ChainStack
from bdl.likelihoods import Loss, mean_loss

Read = Callable[[Any], tuple[Inputs, Any]]  # inputs and target of a batch, as the network takes them


@torch.no_grad()
def mean_over(
    batches: Iterable[Any], net: nn.Module, loss: Loss, chains: int | None, device: torch.device, read: Read
) -> Tensor:
    """() or (C,) mean negative log-likelihood of all items of the batches, in eval mode and the widest type.

    net: maps inputs to the outputs (B, K), or (C, B, K) of every chain.
    """
    total, count = torch.zeros((), dtype=widest(device), device=device), 0
    with evaluating(net):
        for batch in batches:
            inputs, y = read(map_tensors(lambda t: t.to(device), batch))
            labels = y if chains is None else y.expand(chains, *y.shape)
            total = total + mean_loss(loss, feed(net, inputs), labels, chains).to(total.dtype) * len(y)
            count += len(y)
    return total / count


def most_items(loader: Any, net: nn.Module, device: torch.device, read: Read) -> int | None:
    """Items that all chains of a network may run on at once on an accelerator; None on a CPU, and for other loaders."""
    if device.type == "cpu" or not isinstance(loader, TensorBatches | WorkerBatches):
        return None
    inputs, _ = read(next(iter(loader.slices().bound(1))))
    return net.items(inputs) if isinstance(net, ChainStack) else Forward(net).items(inputs)
