"""All items of a training loader, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.errors import ConfigError


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
