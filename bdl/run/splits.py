"""Labelled batches by split, for the report of a run: from a data module, from loaders, or from those of a Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader, Subset

from bdl.data.loader import TensorBatches, TensorSlices, WorkerBatches
from bdl.errors import ConfigError
from bdl.run.write_report import loaders_of

SPLITS = ("test", "train", "val")


def find_splits(data: Any, trainer: L.Trainer | None, train_items: int | None) -> dict[str, Any]:
    """Loaders by split; "test" stands first.

    Args:
        data: a data module, a dict of loaders by split, or one loader, which is then the test split. None means the
            data of the trainer. Where there are no test data, validation data take their place.
        trainer: with which the module was trained, None if it is no longer there.
        train_items: number of training items, evenly spaced; None for all.

    Raises ConfigError where there are neither test nor validation data, and for a split of another name.
    """
    if data is None and trainer is not None:
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        data = datamodule or {"val": trainer.val_dataloaders, "train": trainer.train_dataloader}
    if hasattr(data, "slices"):
        return loaders_of(data, train_items)
    if isinstance(data, L.LightningDataModule):
        data = _of_datamodule(data)
    given = dict(data) if isinstance(data, Mapping) else {"test": data}
    if unknown := sorted(given.keys() - set(SPLITS)):
        raise ConfigError(f"{unknown[0]!r} is no split of the data: name the loaders test, val and train")
    found = {name: loader for name in SPLITS if (loader := given.get(name)) is not None}
    if "test" not in found and "val" not in found:
        raise ConfigError(
            "the report has no test data: pass a loader of labelled batches, a dict such as {'test': loader}, or a "
            "data module with a test_dataloader or a val_dataloader"
        )
    if "test" not in found:
        found = {"test": found.pop("val"), **found}
    train = _in_order(found.pop("train", None), train_items)
    return found if train is None else {"test": found.pop("test"), "train": train, **found}


def _of_datamodule(datamodule: L.LightningDataModule) -> dict[str, Any]:
    """The loaders that a data module defines."""
    datamodule.prepare_data()
    loaders = {}
    for split, stage in (("test", "test"), ("val", "validate"), ("train", "fit")):
        if is_overridden(f"{split}_dataloader", datamodule, L.LightningDataModule):
            datamodule.setup(stage)
            loaders[split] = getattr(datamodule, f"{split}_dataloader")()
    return loaders


def _in_order(loader: Any, items: int | None) -> Any:
    """The training items in a fixed order; None for a loader that has none."""
    if isinstance(loader, TensorBatches | WorkerBatches):
        slices = loader.slices()
        chosen = _spaced(len(slices.dataset), items)
        return slices if items is None else TensorSlices(slices.x[chosen], slices.y[chosen], transform=slices.transform)
    if not isinstance(loader, DataLoader) or not hasattr(loader.dataset, "__len__"):
        return None
    dataset = loader.dataset
    if items is not None:
        dataset = Subset(dataset, _spaced(len(dataset), items))  # type: ignore[arg-type]
    return DataLoader(dataset, batch_size=loader.batch_size or 1, collate_fn=loader.collate_fn)


def _spaced(total: int, items: int | None) -> list[int]:
    return np.linspace(0, total - 1, min(items or total, total)).round().astype(int).tolist()
