"""What the data modules share: splits of tensors, and the choice of the training items that are held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import lightning as L
import torch
from torch import Tensor

from bdl.data.loader import TensorBatches, TensorSlices, WorkerBatches
from bdl.errors import ConfigError
from bdl.seeding import generator


def hold_out(items: int, fraction: float, seed: int, fold: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of the items that are kept and of those held out, both in ascending order.

    >>> kept, held_out = hold_out(items=8, fraction=0.25, seed=0)
    >>> len(kept), len(held_out)
    (6, 2)

    Args:
        items: number of items.
        fraction: share of the items held out, in [0, 1).
        seed: decides a random order of the items.
        fold: which part of that order is held out, from 0 to 1 / fraction - 1.

    Raises ConfigError for a fraction or a fold out of range, and when no item would be kept.
    """
    if not 0 <= fraction < 1:
        raise ConfigError(f"val_fraction must be in [0, 1), got {fraction}")
    if fold and not 0 < (fold + 1) * fraction <= 1:
        raise ConfigError(f"fold must be from 0 to 1 / val_fraction - 1, got {fold} with val_fraction {fraction}")
    rows = torch.randperm(items, generator=generator("cpu", "split", seed))
    start, end = (round(fraction * items * k) for k in (fold, fold + 1))
    if end - start == items:
        raise ConfigError(f"val_fraction = {fraction} holds out all of the {items} items: lower it")
    return torch.cat([rows[:start], rows[end:]]).sort().values, rows[start:end].sort().values


class SplitDataModule(L.LightningDataModule):
    """Items (x, y) in the splits "train", "val" and "test", held in memory.

    Args:
        splits: x (n, ...) as stored and y (n,) of each split.
        batches: the training loader.
        transform: makes the network's input of stored items; None leaves them as they are.
    """

    def __init__(
        self,
        splits: Mapping[str, tuple[Tensor, Tensor]],
        batches: TensorBatches | WorkerBatches,
        transform: Callable[[Tensor], Tensor] | None = None,
    ):
        super().__init__()
        self.splits, self.batches, self.transform = splits, batches, transform

    @property
    def num_data(self) -> int:
        """N: the number of training items, each counted once however it is augmented."""
        return len(self.splits["train"][1])

    def train_dataloader(self) -> TensorBatches | WorkerBatches:
        return self.batches

    def val_dataloader(self) -> TensorSlices | list[TensorSlices]:
        return self.slices("val") if len(self.splits["val"][1]) else []

    def test_dataloader(self) -> TensorSlices:
        return self.slices("test")

    def tensors(self, split: str) -> tuple[Tensor, Tensor]:
        """x (n, ...) as stored and y (n,) of "train", "val" or "test"."""
        return self.splits[split]

    def slices(self, split: str, items: int | None = None) -> TensorSlices:
        """The items of "train", "val" or "test" as the network sees them, in order and without augmentation.

        Args:
            items: take only that many items, evenly spaced; None takes all.

        Raises ConfigError for items < 1.
        """
        x, y = self.splits[split]
        if items is not None and items < len(y):
            if items < 1:
                raise ConfigError(f"metrics need at least one item, got {items}")
            rows = torch.linspace(0, len(y) - 1, items).long()
            x, y = x[rows], y[rows]
        return TensorSlices(x, y, transform=self.transform)
