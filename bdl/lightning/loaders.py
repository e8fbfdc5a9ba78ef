"""Training loaders: all items in a fixed order, and batches that all chains share."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.engine.stack import ChainStack
from bdl.errors import BdlWarning, ConfigError
from bdl.samplers.sampler import Sampler


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
