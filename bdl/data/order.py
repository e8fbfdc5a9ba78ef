"""The items of a loader in a fixed order, for evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from bdl.data.loader import TensorBatches, TensorSlices, WorkerBatches
from bdl.errors import ConfigError


def in_order(loader: Any, items: int | None = None) -> Any:
    """The items of a loader in the order of its data, without augmentation; None for a loader without an order.

    items: take only that many, evenly spaced; None takes all.
    """
    if isinstance(loader, TensorBatches | WorkerBatches):
        loader = loader.slices()
    if isinstance(loader, TensorSlices):
        if items is None or items >= len(loader.y):
            return loader
        rows = evenly_spaced(len(loader.y), items)
        return TensorSlices(loader.x[rows], loader.y[rows], transform=loader.transform)
    if not isinstance(loader, DataLoader) or not hasattr(loader.dataset, "__len__"):
        return None
    dataset: Any = loader.dataset
    if items is not None and items < len(dataset):
        dataset = Subset(dataset, evenly_spaced(len(dataset), items).tolist())
    return DataLoader(dataset, batch_size=loader.batch_size or 1, collate_fn=loader.collate_fn)


def evenly_spaced(total: int, items: int) -> Tensor:
    """(items,) rows from 0 to total - 1. Raises ConfigError for items < 1."""
    if items < 1:
        raise ConfigError(f"metrics need at least one item, got {items}")
    return torch.linspace(0, total - 1, items).long()
