"""What Lightning tells a sampler, as one value, when training starts."""

from __future__ import annotations

from dataclasses import replace

import lightning as L
import torch.distributed as dist
from torch import nn

from bdl.data.loader import TensorBatches
from bdl.samplers.host import Host

RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def host_under(trainer: L.Trainer, host: Host, num_data: int, averages_micro_batches: bool = False) -> Host:
    """The host with what the Trainer knows: the processes, the batches, and how the loss is accumulated.

    Args:
        host: what the module says of itself.
        num_data: N.
        averages_micro_batches: whether the closure returns the mean loss of all micro-batches. Lightning's own returns
            the last one's share.
    """
    shared = dist.group.WORLD if trainer.world_size > 1 else None
    return replace(
        host,
        group=host.group or shared,
        sees_all_data=_sees_all_data(trainer, num_data),
        loss_is_whole=trainer.accumulate_grad_batches == 1 or averages_micro_batches,
    )


def _sees_all_data(trainer: L.Trainer, num_data: int) -> bool:
    """Whether the gradient is always that of all the data: in one batch, without augmentation and random layers."""
    loader = trainer.train_dataloader
    whole = isinstance(loader, TensorBatches) and loader.batch_size == num_data and loader.augment is None
    return whole and not any(isinstance(m, RANDOM) and m.p > 0 for m in trainer.lightning_module.modules())
