"""What Lightning tells a sampler, as one value, when training starts; and how it reads the training loader."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import lightning as L
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.engine.stack import ChainStack
from bdl.errors import BdlWarning, ConfigError
from bdl.samplers.chain import Host
from bdl.samplers.sampler import Sampler

RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def host_under(trainer: L.Trainer, host: Host, num_data: int, averages_micro_batches: bool = False) -> Host:
    """The host with what the Trainer knows: the processes, the batches, and how the loss is accumulated.

    Args:
        host: what the module says of itself.
        num_data: N.
        averages_micro_batches: whether the closure returns the mean loss of all micro-batches. Lightning's own returns
            the last one's share.
    """
    shared, loader = dist.group.WORLD if trainer.world_size > 1 else None, trainer.train_dataloader
    whole = isinstance(loader, TensorBatches) and loader.batch_size == num_data and loader.augment is None
    random = any(isinstance(m, RANDOM) and m.p > 0 for m in trainer.lightning_module.modules())
    return replace(
        host,
        group=host.group or shared,
        sees_all_data=whole and not random,
        loss_is_whole=trainer.accumulate_grad_batches == 1 or averages_micro_batches,
    )


def in_order(loader: Any) -> Iterable[Any]:
    """All items of a training loader in batches, in a fixed order and without augmentation.

    The loader keeps its position. Raises ConfigError for a loader that is none of bdl.data's and no DataLoader.
    """
    if isinstance(loader, TensorBatches | WorkerBatches):
        return loader.slices()
    if isinstance(loader, DataLoader):
        return DataLoader(loader.dataset, batch_size=loader.batch_size, collate_fn=loader.collate_fn)
    raise ConfigError(
        f"full-data energies need the items in a fixed order, which {type(loader).__name__} does not give: use a "
        "DataLoader or TensorBatches"
    )


def share_batches(stack: ChainStack, sampler: Sampler) -> None:
    """Let all chains share the batches of a DataLoader, unless the stack was told how to read its batches."""
    if not stack.follows_loader:
        return
    note = (
        f"the {stack.chains} chains share the DataLoader's batches. Each samples the same law as with batches of "
        "its own, but common batch noise may make chains agree more than independent ones, and R-hat look better. "
        "ChainStack(net, C, shared=True) says that you mean it; bdl.data.TensorBatches(x, y, batch_size, chains=C) "
        "gives each chain its own"
    )
    if not stack.shared:
        warnings.warn(note, BdlWarning, stacklevel=2)
        sampler.notes.append(note)
    stack.shared = True
