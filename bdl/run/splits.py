"""Labelled batches by split, for the report of a run: from a data module, from loaders, or from those of a Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning as L

from bdl.data.module import as_data_module
from bdl.data.order import in_order
from bdl.errors import ConfigError

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
    if isinstance(data, L.LightningDataModule):
        module = as_data_module(data)
        loaders = {"test": module.test_dataloader(), "val": module.val_dataloader(), "train": module.train_dataloader()}
        data = {split: loader for split, loader in loaders.items() if loader}
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
    train = in_order(found.pop("train", None), train_items)
    return found if train is None else {"test": found.pop("test"), "train": train, **found}
