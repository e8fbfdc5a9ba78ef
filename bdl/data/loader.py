"""Batches of tensors: a batch is an index select on their device, its order a function of (seed, epoch)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bdl.errors import ConfigError
from bdl.seeding import generator

LARGEST = 2**18  # numbers in a batch of TensorSlices on a CPU, 85 CIFAR images: the fastest for ResNet20


class Augmentation(Protocol):
    """Random changes to items, as decisions that are drawn on the CPU and carried out where the items are."""

    def draw(self, count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """(count, k) decisions for items of this shape."""
        ...

    def __call__(self, x: Tensor, decisions: Tensor) -> Tensor:
        """The items x (n, ...), changed as the decisions (n, k) say."""
        ...


class TensorBatches:
    """A loader over tensors x (N, ...) and y (N, ...), for training: shuffled and resumable.

    Yields x (B, ...) and y (B, ...), or with `chains=C` x (C, B, ...) and y (C, B, ...): every chain its own order. The
    order of epoch e depends on (seed, stack, e, chain) alone, so a run that stops at any batch goes on with the next.
    The N mod B items that do not fill a batch sit out the epoch, other ones each time. `dataset` has length N.
    `shard(rank, ranks)` makes it one of several that yield, together, the batches of one loader of ranks x B items.

    replacement: every batch is B items drawn afresh, so that batches are independent. Those of a shuffled epoch are
    not: over an epoch their noise cancels, which heats slow directions less, but by an amount that no sampler knows.
    What subtracts or absorbs batch noise (`grad_var`, SGNHT, SGFS) is right for independent batches only.

    augment: changes the items of every batch. What becomes of item i depends on (seed, stack, epoch, chain, i) alone,
    whatever the batches. transform: makes the network's input of stored items, on their device, e.g. floats of bytes.

    Raises ConfigError for a batch larger than the data.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        batch_size: int,
        *,
        chains: int | None = None,
        seed: int = 0,
        stack: int = 0,
        replacement: bool = False,
        augment: Augmentation | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
    ):
        if not 1 <= batch_size <= len(x):
            raise ConfigError(f"batch_size must be between 1 and the {len(x)} training items, got {batch_size}")
        if len(x) != len(y):
            raise ConfigError(f"{len(x)} inputs do not match {len(y)} labels")
        self.x, self.y, self.batch_size, self.chains = x, y, batch_size, chains
        self.seed, self.stack, self.replacement = seed, stack, replacement
        self.augment, self.transform = augment, transform
        self.rank, self.ranks = 0, 1
        self.epoch, self.index = 0, 0  # position of the next batch
        self._drawn: tuple[int, Tensor, Tensor | None] | None = None  # epoch, its rows, its decisions

    @property
    def dataset(self) -> Tensor:
        return self.x

    def __len__(self) -> int:
        return len(self.x) // (self.ranks * self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.index, len(self)):
            batch = self.at(self.epoch, self.index)
            self.advance()  # before the yield: a caller that counts batches never comes back after the last one
            yield batch

    def to(self, device: torch.device | str) -> TensorBatches:
        """Move the data to the device, once."""
        self.x, self.y, self._drawn = self.x.to(device), self.y.to(device), None
        return self

    def shard(self, rank: int, ranks: int) -> TensorBatches:
        """Yield the rank-th of `ranks` parts, B items each, of batches of ranks x B; ConfigError where N is less."""
        if ranks * self.batch_size > len(self.x):
            raise ConfigError(
                f"batch_size = {self.batch_size} on each of {ranks} processes is more than the {len(self.x)} training "
                f"items: at most {len(self.x) // ranks}"
            )
        self.rank, self.ranks, self._drawn = rank, ranks, None
        return self

    def at(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        """Batch number `index` of an epoch, wherever the loader stands."""
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = (epoch, *self._draw(epoch))
        _, rows, decisions = self._drawn
        x, y = self.x.index_select(0, rows[index]), self.y.index_select(0, rows[index])
        if self.augment is not None and decisions is not None:
            x = self.augment(x, decisions[index])
        if self.transform is not None:
            x = self.transform(x)
        if self.chains is None:
            return x, y
        lead = (self.chains, self.batch_size)
        return x.view(*lead, *x.shape[1:]), y.view(*lead, *y.shape[1:])

    def slices(self) -> TensorSlices:
        """The same items in their own order, not augmented."""
        return TensorSlices(self.x, self.y, transform=self.transform)

    def advance(self) -> None:
        """Go on to the next batch."""
        self.index += 1
        if self.index == len(self):
            self.epoch, self.index = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.index = state["epoch"], state["index"]

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        """(batches, C * B) rows and (batches, C * B, k) decisions; drawn on the CPU, so the same on every device."""
        orders, decisions = [], []
        for c in range(self.chains or 1):
            key = (self.seed, self.stack, epoch, c)
            orders.append(self._order(len(self) * self.ranks * self.batch_size, generator("cpu", "order", *key)))
            if self.augment is not None:
                drawn = self.augment.draw(len(self.x), tuple(self.x.shape[1:]), generator("cpu", "augment", *key))
                decisions.append(drawn[orders[-1]])
        return self._in_batches(orders), self._in_batches(decisions) if decisions else None

    def _order(self, count: int, generator: torch.Generator) -> Tensor:
        if self.replacement:
            return torch.randint(len(self.x), (count,), generator=generator)
        return torch.randperm(len(self.x), generator=generator)[:count]

    def _in_batches(self, drawn: list[Tensor]) -> Tensor:
        """C tensors (items, ...) -> this rank's part of the batches, (batches, C * B, ...)."""
        each = torch.stack(drawn).unflatten(1, (len(self), self.ranks, self.batch_size))[:, :, self.rank]
        return each.transpose(0, 1).flatten(1, 2).to(self.x.device)


class WorkerBatches:
    """The very batches of a TensorBatches, made ahead by worker processes: for data that do not fit on the device.

    workers: processes, 0 = none. The position is that of the batches handed out, not of those made ahead.
    """

    def __init__(self, batches: TensorBatches, workers: int = 2):
        self.batches, self.workers = batches, workers

    @property
    def dataset(self) -> Tensor:
        return self.batches.dataset

    @property
    def batch_size(self) -> int:
        return self.batches.batch_size

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def ranks(self) -> int:
        return self.batches.ranks

    def __copy__(self) -> WorkerBatches:
        return WorkerBatches(copy.copy(self.batches), self.workers)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, first = self.batches.epoch, self.batches.index
        ahead = DataLoader(
            _Epoch(self.batches, epoch), batch_size=None, sampler=range(first, len(self)), num_workers=self.workers,
            pin_memory=torch.cuda.is_available(), generator=torch.Generator(),  # or it would draw from the global RNG
        )  # fmt: skip
        for x, y in ahead:
            self.batches.advance()
            yield x, y

    def shard(self, rank: int, ranks: int) -> WorkerBatches:
        self.batches.shard(rank, ranks)
        return self

    def slices(self) -> TensorSlices:
        return self.batches.slices()

    def state_dict(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches.load_state_dict(state)


class _Epoch(Dataset):
    """One epoch's batches by their number."""

    def __init__(self, batches: TensorBatches, epoch: int):
        self.batches, self.epoch = batches, epoch

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.batches.at(self.epoch, index)


class TensorSlices:
    """A loader over tensors in their own order, for evaluation: yields transform(x) (<=B, ...) and y (<=B, ...).

    batch_size: None = 4096, on a CPU fewer of large items.
    """

    shuffles = False

    def __init__(
        self, x: Tensor, y: Tensor, batch_size: int | None = None, transform: Callable[[Tensor], Tensor] | None = None
    ):
        self.x, self.y, self.transform, self._batch_size = x, y, transform, batch_size

    @property
    def batch_size(self) -> int:
        most = LARGEST // max(1, self.x[:1].numel()) if self.x.device.type == "cpu" else 4096
        return self._batch_size or min(4096, max(1, most))

    @property
    def dataset(self) -> Tensor:
        return self.x

    def __len__(self) -> int:
        return -(-len(self.x) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in zip(self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True):
            yield x if self.transform is None else self.transform(x), y

    def to(self, device: torch.device | str) -> TensorSlices:
        self.x, self.y = self.x.to(device), self.y.to(device)
        return self
