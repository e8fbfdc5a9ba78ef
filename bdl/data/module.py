"""DataModule: everything that bdl asks of data, with a default for each optional part."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence, Sized
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from bdl.batch import count_items, structure
from bdl.data.loader import TensorBatches, TensorSlices, WorkerBatches
from bdl.data.ordered import ordered
from bdl.data.values import Frame, Task
from bdl.errors import ConfigError
from bdl.lean import L

STAGES = {"train": "fit", "val": "validate", "test": "test"}  # Lightning's names of what a split is set up for


class DataModule(L.LightningDataModule):
    """The base of bdl's data modules. Only `train_dataloader`, and `num_classes` of a classification, have no default.

    A subclass sets the attributes that differ from their defaults, on the class or in its constructor, and overrides
    the methods. `as_data_module` gives the same defaults to any other LightningDataModule.

    Attributes:
        name: what reports call the data; None is the name of their configuration.
        task: what is predicted.
        num_data: N, the number of training items, each counted once however it is augmented; by default the length of
            the training loader's data set.
        num_classes: K of a classification, otherwise 0.
        num_targets: k, numbers to predict per item; 1 for a class.
        input_shape: the shape of one item as the network sees it; by default that of the first training item.
        batch_size: items per chain and step; by default that of the training loader.
        weighted: whether the labels carry the weights of their items, see `bdl.likelihoods.WeightedNLL`.
        has_offset: whether the last number of an item is no input, but an offset of the log rate of its count, see
            `bdl.likelihoods.WithOffset`.
        target_units: name, shift and scale of each target of a regression, whose units are shift + scale x labels.
        loss: the likelihood that fits the labels of a regression, as `_target_` and arguments; {} is that of the task.
            Where another of the same class is asked for, it has these arguments as far as it gives none.
        class_columns: the names of the classes of each of several columns, by its name; {} for one column, and for
            numbers. `class_names` then are those of all columns, and so is `num_classes`.
        gaps: whether some of several targets are missing in some items: NaN in their labels, -100 of classes.
        overview: what was read, in one line that a run prints; None prints nothing.
        held_out: how rows were held out that are not exchangeable, in words that a report shows; None for others.
        groups: (n,) int64 by split, for data whose items of one group depend on each other; {} for others. A part of
            the training items that is held out for a while has whole groups.
    """

    task: Task = "classification"
    num_targets: int = 1
    target_units: tuple[tuple[str, float, float], ...] | None = None
    has_offset: bool = False
    weighted: bool = False
    loss: Mapping[str, Any] = {}
    class_columns: Mapping[str, Sequence[str]] = MappingProxyType({})
    gaps: bool = False
    overview: str | None = None
    held_out: str | None = None
    groups: Mapping[str, Tensor] = MappingProxyType({})

    @cached_property
    def num_data(self) -> int:
        if (count := _length(self.train_dataloader())) is None:
            raise self._lacks("num_data", "the number of training items")
        return count

    @cached_property
    def num_classes(self) -> int:
        if self.task == "classification":
            raise self._lacks("num_classes", 'the number of classes, or task = "regression"')
        return 0

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.items("train", 1)[0].shape[1:])

    @cached_property
    def batch_size(self) -> int:
        loader = self.train_dataloader()
        size = loader.batch_size if isinstance(loader, TensorBatches | WorkerBatches | DataLoader) else None
        return count_items(next(iter(loader))) if size is None else size

    def identity(self) -> dict[str, Any]:
        """Plain values that tell these data from others of the same settings; part of what names the sampled law.

        Runs whose data differ in them are not merged. Data that their settings name completely have none.
        """
        return {}

    def checksums(self) -> dict[str, str]:
        """A checksum of the items and labels of each split, as far as they are in memory or in files of known sizes.

        A run records them, and says later when it is evaluated on others.
        """
        return {}

    def preprocessing(self) -> dict[str, Any] | None:
        """Plain values that make inputs of new data and undo the standardisation of targets; None where there are none.

        A run keeps them in `preprocessing.json`.
        """
        return None

    def as_written(self, split: str, items: Sequence[int]) -> Frame | None:
        """These items as their file has them, a row for each and all columns; None for data of another form.

        The index has the numbers of the rows in the file, from 0.
        """
        return None

    def pieces(self, tokens: Sequence[int]) -> list[str] | None:
        """The text of each token, for the picture of a text in reports; None where the classes are no tokens."""
        return None

    def ood(self) -> Any:
        """A loader of items from another distribution, for out-of-distribution scores; None for none."""
        return None

    def train_dataloader(self) -> Any:
        raise self._lacks("train_dataloader()", "a loader of training batches")

    def val_dataloader(self) -> Any:
        """Labelled batches for validation; an empty list for none."""
        return []

    def test_dataloader(self) -> Any:
        """Labelled batches for the report; an empty list for none."""
        return []

    def slices(self, split: str, items: int | None = None) -> Any:
        """A loader of a split as the network sees it, in a fixed order and without augmentation.

        items: take only that many items, evenly spaced; None takes all.

        Raises ConfigError for a split without items or without an order.
        """
        loader = {"train": self.train_dataloader, "val": self.val_dataloader, "test": self.test_dataloader}[split]()
        if not loader:
            raise self._lacks(f"{split}_dataloader()", "labelled batches")
        if split != "train" and items is None:
            return loader
        ordered = in_order(loader, items)
        if ordered is None:
            raise self._lacks("slices(split, items)", f'the items of the split "{split}" in a fixed order')
        return ordered

    def items(self, split: str, most: int | None = None) -> tuple[Tensor, Tensor]:
        """x (n, ...) as the network sees it and y (n, ...) of a split, of at most so many items, evenly spaced.

        Raises ConfigError for batches that are no pairs of tensors.
        """
        batches = list(self.slices(split, most))
        for batch in batches:
            if not (isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(v, Tensor) for v in batch)):
                raise ConfigError(
                    f"data: {type(self).__name__} has batches {structure(batch)}: make them (x, y) tensors"
                )
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return x, y

    def count(self, split: str) -> int:
        """Number of items of a split."""
        if split == "train":
            return self.num_data
        loader = self.val_dataloader() if split == "val" else self.test_dataloader()
        count = _length(loader)
        return sum(count_items(batch) for batch in loader) if count is None else count

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes, in their order; empty where there are none."""
        return ()

    def has(self, split: str) -> bool:
        """Whether "val" or "test" has items."""
        return bool(self.val_dataloader() if split == "val" else self.test_dataloader())

    def shard(self, rank: int, ranks: int) -> None:
        """Let the training loader yield only this rank's part of every batch. Raises ConfigError where it cannot."""
        loader = self.train_dataloader()
        raise ConfigError(f"trainer=ddp shards the batches of a loader of bdl.data, got {type(loader).__name__}")

    def __str__(self) -> str:
        """The data's overview, or their name and the items of each split. Lightning's form needs `loader.dataset`."""
        return (
            self.overview or f"{self.name or type(self).__name__}: {', '.join(filter(None, map(self._size, STAGES)))}"
        )

    def _size(self, split: str) -> str | None:
        """The items of a split in words, without a pass over them; None for no items."""
        try:
            loaders = {"train": self.train_dataloader, "val": self.val_dataloader, "test": self.test_dataloader}
            loader = loaders[split]()
            count = self.num_data if split == "train" else _length(loader) if loader else 0
        except Exception:  # printing asks nothing of data that are not set up
            return f"{split} unknown"
        return None if count == 0 else f"{split} unknown" if count is None else f"{count:,} {split}"

    def _lacks(self, member: str, meaning: str) -> ConfigError:
        return ConfigError(f"data: {type(self).__name__} has no {member}: give it {meaning}")


def in_order(loader: Any, items: int | None = None) -> Any:
    """The items of a loader in the order of its data, without augmentation; None for a loader without an order.

    items: take only that many, evenly spaced; None takes all. Raises ConfigError for items < 1.
    """
    if isinstance(loader, TensorBatches | WorkerBatches):
        loader = loader.slices()
    if (count := _length(loader)) is None:
        return None
    if items is not None and items < 1:
        raise ConfigError(f"metrics need at least one item, got {items}")
    rows = None if items is None or items >= count else torch.linspace(0, count - 1, items).long()
    if isinstance(loader, TensorSlices):
        return loader if rows is None else TensorSlices(loader.x[rows], loader.y[rows], transform=loader.transform)
    return ordered(loader, None if rows is None else Subset(loader.dataset, rows.tolist()))


def _length(loader: Any) -> int | None:
    """Items of a loader's data set; None where it does not say."""
    data = loader.dataset if isinstance(loader, TensorBatches | WorkerBatches | TensorSlices | DataLoader) else None
    return len(data) if isinstance(data, Sized) else None


def as_data_module(module: Any) -> DataModule:
    """The module itself if it is a DataModule; else a copy of a LightningDataModule, set up, with bdl's defaults.

    What the module defines stays as it is, Lightning's hooks too.

    Raises ConfigError for anything else.
    """
    if isinstance(module, DataModule):
        return module
    if not isinstance(module, L.LightningDataModule):
        raise ConfigError(
            f"data: {type(module).__name__} is no LightningDataModule: derive it from bdl.data.DataModule"
        )
    from lightning.pytorch.utilities.model_helpers import is_overridden  # after Lightning, which bdl.lean imports

    kind: Any = type(module)  # no static class: its bases are those of the module
    adapted = copy.copy(module)
    adapted.prepare_data()
    for split, stage in STAGES.items():
        if is_overridden(f"{split}_dataloader", module, L.LightningDataModule):
            adapted.setup(stage)
    adapted.__class__ = type(kind.__name__, (kind, DataModule), {"__module__": kind.__module__})
    return cast(DataModule, adapted)
