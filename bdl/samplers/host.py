"""Host: what the loop that drives a sampler tells it of the data, the network and the processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

MeanLoss = Callable[[], Tensor]  # returns a mean negative log-likelihood at the present θ, () or (C,)


@dataclass(frozen=True)
class Host:
    """What a sampler knows of the loop around it. `BayesianModule` and `CollectSamples` say it when training starts.

    Args:
        full_loss: returns the mean negative log-likelihood over all the data, or None.
        batch_loss: returns that of the step's own batch, without gradients, or None.
        per_example: returns the gradients (..., n, d) of every item of the step's batch, or None.
        buffers: returns tensors (C, ...) of the network that are no parameters, such as BatchNorm's statistics.
        group: the process group whose ranks share the chain and average its energy, or None.
        sees_all_data: whether every batch holds all the data and nothing in the network is random: no batch noise.
        loss_is_whole: False where the closure returns less than the mean loss of the batch, as under Lightning's
            gradient accumulation. Energies are then None.
    """

    full_loss: MeanLoss | None = None
    batch_loss: MeanLoss | None = None
    per_example: Callable[[], Tensor] | None = None
    buffers: Callable[[], Iterable[Tensor]] = tuple
    group: dist.ProcessGroup | None = None
    sees_all_data: bool = False
    loss_is_whole: bool = True
