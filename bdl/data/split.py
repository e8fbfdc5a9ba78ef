"""What data modules share: splits of tensors, and which training items are held out."""

from __future__ import annotations

from collections.abc import Callable

import lightning as L
import torch
from torch import Tensor

from bdl.data.loader import TensorBatches, TensorSlices, WorkerBatches
from bdl.errors import ConfigError
from bdl.seeding import generator


def hold_out(items: int, fraction: float, seed: int, fold: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of the items that are kept and of those held out, in order: the `fold`-th part of an order named by seed.

    Raises ConfigError for a fraction or a fold that there is not, and where none are kept.
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
    """Items (x, y) in the splits "train", "val" and "test", held in memory. A subclass fills `_splits` and `_train`."""

    transform: Callable[[Tensor], Tensor] | None = None  # makes the network's input of stored items
    _splits: dict[str, tuple[Tensor, Tensor]]
    _train: TensorBatches | WorkerBatches

    @property
    def num_data(self) -> int:
        """N: training items that the likelihood is a product over, each counted once however it is augmented."""
        return len(self._splits["train"][1])

    def train_dataloader(self) -> TensorBatches | WorkerBatches:
        return self._train

    def val_dataloader(self) -> TensorSlices | list[TensorSlices]:
        return self.slices("val") if len(self._splits["val"][1]) else []

    def test_dataloader(self) -> TensorSlices:
        return self.slices("test")

    def tensors(self, split: str) -> tuple[Tensor, Tensor]:
        """x (n, ...) as stored and y (n,) of "train", "val" or "test"."""
        return self._splits[split]

    def slices(self, split: str, items: int | None = None) -> TensorSlices:
        """The items of "train", "val" or "test" as the network sees them, in their own order, not augmented.

        items: only so many of them, evenly spread; None: all.
        """
        x, y = self._splits[split]
        if items is not None and items < len(y):
            if items < 1:
                raise ConfigError(f"metrics need at least one item, got {items}")
            rows = torch.linspace(0, len(y) - 1, items).long()
            x, y = x[rows], y[rows]
        return TensorSlices(x, y, transform=self.transform)
