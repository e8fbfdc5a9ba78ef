"""TensorDataModule: the base of bdl's data modules, for items that are tensors in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from bdl.data.augment import Augmentation
from bdl.data.fingerprint import digest
from bdl.data.loader import Batching, TensorBatches, TensorSlices, WorkerBatches
from bdl.data.module import DataModule, in_order
from bdl.data.values import Task
from bdl.errors import ConfigError

Splits = Mapping[str, tuple[Tensor, Tensor]]


class TensorDataModule(DataModule):
    """Items (x, y) in the splits "train", "val" and "test". Subclass it, or give it tensors of your own.

        >>> x, y = torch.randn(120, 3), torch.randint(2, (120,))
        >>> data = TensorDataModule({"train": (x[:90], y[:90]), "test": (x[90:], y[90:])}, batch_size=30)
        >>> data.num_data, data.input_shape, data.num_classes, len(data.train_dataloader())
        (90, (3,), 2, 3)

    Args:
        splits: x (n, ...) as stored and y of each split. y holds classes, (n,) int64 in 0..K-1, or numbers, (n, k)
            float32, which a regression should standardise; NaN where some of several are missing. Items of T elements,
            such as tokens, x (n, T, ...), may have a class for each, (n, T) int64; `num_data` then counts elements.
            "val" may be missing, and "test" may be empty.
        batch_size: items per chain and step; None means all training items, "auto" 100 or all of fewer.
        task: "classification", "regression" or "counts".
        labels: names of the K classes; None means as many as the labels of all splits name, called "0", "1", ...
        class_columns: the names of the classes by column, where y (n, k) int64 has a class in each of k columns, and
            -100 where one of them is missing; {} for one column.
        augment: random changes to the training items, as in `TensorBatches`.
        transform: makes the network's input of stored items, e.g. floats of bytes; None leaves them as they are.
        workers: None selects batches on the device that holds the items; a number makes them ahead by as many
            processes, as `WorkerBatches` does.
        batching: chains, seed, stack and replacement, as in `TensorBatches`.

    Raises ConfigError for splits, labels or a batch size that do not fit the task or each other.
    """

    def __init__(
        self,
        splits: Splits,
        *,
        batch_size: int | Literal["auto"] | None = None,
        task: Task = "classification",
        labels: Sequence[str] | None = None,
        class_columns: Mapping[str, Sequence[str]] = MappingProxyType({}),
        augment: Augmentation | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        workers: int | None = None,
        **batching: Unpack[Batching],
    ):
        super().__init__()
        self.name = self.name or type(self).__name__  # reports show it; Lightning's modules have none
        self.splits, self.task, self.transform = _checked(splits, task, len(class_columns)), task, transform
        classes, self.class_columns = task == "classification", class_columns
        if class_columns:
            self.labels = tuple(f"{name}={label}" for name, names in class_columns.items() for label in names)
        else:
            self.labels = _class_names(self.splits, labels) if classes else ()
        x, y = self.splits["train"]
        self.num_data = y.numel() if classes and not class_columns else len(y)
        self.num_classes, self.num_targets = len(self.labels), 1 if y.ndim == 1 or classes else y.shape[1]
        every = [labels for _, labels in self.splits.values()]
        if class_columns:
            self.gaps = any(bool((labels < 0).any()) for labels in every)
        else:
            self.gaps = self.num_targets > 1 and any(bool(labels.isnan().any()) for labels in every)
        size = count_batch(batch_size, len(y))
        self._use(TensorBatches(x, y, size, augment=augment, transform=transform, **batching), workers)

    def _use(self, batches: TensorBatches, workers: int | None = None) -> None:
        self.batch_size, self.seed, self.stack = batches.batch_size, batches.seed, batches.stack
        self.batches = batches if workers is None else WorkerBatches(batches, workers)

    @property
    def class_names(self) -> Sequence[str]:
        return self.labels

    @property
    def rows(self) -> str:
        """The number of items of each split that has some, in words."""
        return ", ".join(f"{len(y):,} {split}" for split, (_, y) in self.splits.items() if len(y))

    def checksums(self) -> dict[str, str]:
        return {split: digest(items) for split, items in self.splits.items() if len(items[1])}

    def train_dataloader(self) -> TensorBatches | WorkerBatches:
        return self.batches

    def val_dataloader(self) -> TensorSlices | list[TensorSlices]:
        return self.slices("val") if len(self.splits["val"][1]) else []

    def test_dataloader(self) -> TensorSlices | list[TensorSlices]:
        return self.slices("test") if len(self.splits["test"][1]) else []

    def count(self, split: str) -> int:
        return len(self.splits[split][1])

    def shard(self, rank: int, ranks: int) -> None:
        self.batches.shard(rank, ranks)

    def tensors(self, split: str) -> tuple[Tensor, Tensor]:
        """x (n, ...) as stored and y of "train", "val" or "test"."""
        return self.splits[split]

    def slices(self, split: str, items: int | None = None) -> TensorSlices:
        """The items of "train", "val" or "test" as the network sees them, in order and without augmentation.

        Args:
            items: take only that many items, evenly spaced; None takes all.

        Raises ConfigError for items < 1, and for a split without items.
        """
        if not len(self.splits[split][1]):
            raise self._lacks(f"{split} items", f'x and y of the split "{split}"')
        return in_order(TensorSlices(*self.splits[split], transform=self.transform), items)


def count_batch(batch_size: int | Literal["auto"] | None, items: int) -> int:
    """Items of a batch; None means all, "auto" 100 or all of fewer."""
    return items if batch_size is None else min(100, items) if batch_size == "auto" else batch_size


def _checked(splits: Splits, task: str, columns: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """The three splits; an empty "val" where it is missing. Raises ConfigError for others, and other labels."""
    if missing := [s for s in ("train", "test") if s not in splits or s == "train" and not len(splits[s][1])]:
        raise ConfigError(f'the split "{missing[0]}" has no items: give x (n, ...) and y of "train" and "test"')
    if task not in get_args(Task):
        raise ConfigError(f"task must be {', '.join(get_args(Task)[:-1])} or {get_args(Task)[-1]}, got {task!r}")
    for split, (x, y) in splits.items():
        if len(x) != len(y):
            raise ConfigError(f'the split "{split}" has {len(x)} inputs for {len(y)} labels: give one label per input')
        elements = 1 < y.ndim < 3 and y.shape[1] > 1 and (x.shape[:2] == y.shape or y.shape[1] == columns)  # classes
        whole = (y.ndim == 1 or elements) and y.dtype == torch.int64
        if whole != (task == "classification"):
            wanted = "classes (n,) int64" if task == "classification" else "numbers (n, k) float32"
            raise ConfigError(
                f'the labels of the split "{split}" are {tuple(y.shape)} {y.dtype}: task={task} takes {wanted}'
            )
    (x, y), none = splits["train"], torch.arange(0)
    return {"train": (x, y), "val": splits.get("val", (x[none], y[none])), "test": splits["test"]}


def _class_names(splits: Splits, labels: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the classes. Raises ConfigError for labels outside of 0..K-1."""
    every = torch.cat([y for _, y in splits.values()])
    names = tuple(labels) if labels is not None else tuple(str(k) for k in range(int(every.max()) + 1))
    if int(every.min()) < 0 or int(every.max()) >= len(names):
        raise ConfigError(f"labels go from {int(every.min())} to {int(every.max())}, outside of {len(names)} classes")
    return names
