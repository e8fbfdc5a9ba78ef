"""Batches of tensors that live on the device: a batch is an index select, its order a function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.seeding import generator


class TensorBatches:
    """A loader over tensors x (N, ...) and y (N, ...), for training: shuffled, without replacement, resumable.

    Yields x (B, ...) and y (B, ...), or with `chains=C` x (C, B, ...) and y (C, B, ...): every chain its own order. The
    order of epoch e depends on (seed, stack, e, chain) alone, so a run that stops at any batch goes on with the next.
    The N mod B items that do not fill a batch sit out the epoch, other ones each time. `dataset` has length N.
    `shard(rank, ranks)` makes it one of several that yield, together, the batches of one loader of ranks x B items.

    Raises ConfigError for a batch larger than the data.
    """

    def __init__(
        self, x: Tensor, y: Tensor, batch_size: int, *, chains: int | None = None, seed: int = 0, stack: int = 0
    ):
        if not 1 <= batch_size <= len(x):
            raise ConfigError(f"batch_size must be between 1 and the {len(x)} training items, got {batch_size}")
        if len(x) != len(y):
            raise ConfigError(f"{len(x)} inputs do not match {len(y)} labels")
        self.x, self.y, self.batch_size, self.chains = x, y, batch_size, chains
        self.seed, self.stack = seed, stack
        self.rank, self.ranks = 0, 1
        self.epoch, self.index = 0, 0  # position of the next batch
        self._order: Tensor | None = None  # (batches, C * B) rows, of the present epoch

    @property
    def dataset(self) -> Tensor:
        return self.x

    def __len__(self) -> int:
        return len(self.x) // (self.ranks * self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.index, len(self)):
            batch = self._batch()
            self._advance()  # before the yield: a caller that counts batches never comes back after the last one
            yield batch

    def to(self, device: torch.device | str) -> TensorBatches:
        """Move the data to the device, once."""
        self.x, self.y, self._order = self.x.to(device), self.y.to(device), None
        return self

    def shard(self, rank: int, ranks: int) -> TensorBatches:
        """Yield the rank-th of `ranks` parts, B items each, of batches of ranks x B; ConfigError where N is less."""
        if ranks * self.batch_size > len(self.x):
            raise ConfigError(
                f"batch_size = {self.batch_size} on each of {ranks} processes is more than the {len(self.x)} training "
                f"items: at most {len(self.x) // ranks}"
            )
        self.rank, self.ranks, self._order = rank, ranks, None
        return self

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.index, self._order = state["epoch"], state["index"], None

    def _advance(self) -> None:
        self.index += 1
        if self.index == len(self):
            self.epoch, self.index, self._order = self.epoch + 1, 0, None

    def _batch(self) -> tuple[Tensor, Tensor]:
        if self._order is None:
            self._order = self._shuffle()
        rows = self._order[self.index]
        x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
        if self.chains is None:
            return x, y
        lead = (self.chains, self.batch_size)
        return x.view(*lead, *x.shape[1:]), y.view(*lead, *y.shape[1:])

    def _shuffle(self) -> Tensor:
        # Drawn on the CPU, so that the order is the same on every device.
        count, used = self.chains or 1, len(self) * self.ranks * self.batch_size
        orders = [
            torch.randperm(len(self.x), generator=generator("cpu", "order", self.seed, self.stack, self.epoch, c))[
                :used
            ]
            for c in range(count)
        ]
        order = torch.stack(orders).view(count, len(self), self.ranks, self.batch_size)[:, :, self.rank]
        return order.transpose(0, 1).reshape(len(self), -1).to(self.x.device)


class TensorSlices:
    """A loader over tensors in their own order, for evaluation: yields x (<=B, ...) and y (<=B, ...)."""

    shuffles = False

    def __init__(self, x: Tensor, y: Tensor, batch_size: int = 4096):
        self.x, self.y, self.batch_size = x, y, batch_size

    @property
    def dataset(self) -> Tensor:
        return self.x

    def __len__(self) -> int:
        return -(-len(self.x) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True)

    def to(self, device: torch.device | str) -> TensorSlices:
        self.x, self.y = self.x.to(device), self.y.to(device)
        return self
