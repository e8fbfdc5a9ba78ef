"""Loaders over tensors. A batch is an index select on the device of the data; (seed, epoch) decide the order."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypedDict, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bdl.data.augment import Augmentation
from bdl.data.order import AHEAD, MANY, draw_on_device, drawer
from bdl.data.slices import TensorSlices
from bdl.errors import ConfigError
from bdl.seeding import generator

SMALL_EPOCH = 2**22  # numbers in the items of an epoch, over all chains, that are put in order at once


class Batching(TypedDict, total=False):
    """Arguments of `TensorBatches` that a data module passes on."""

    chains: int | None
    seed: int
    stack: int
    replacement: bool


@dataclass(eq=False, repr=False)
class TensorBatches:
    """A loader over tensors x (N, ...) and y (N, ...) for training: shuffled and resumable.

    It yields x (B, ...) and y (B, ...). With `chains=C` it yields x (C, B, ...) and y (C, B, ...), where every chain
    has a different order. The order of epoch e depends on (seed, stack, e, chain) alone, so a resumed run sees the same
    batches. An accelerator draws another order for chains that have 2^15 rows an epoch together, unless data are
    augmented: one of (seed, stack, e), that also depends on the kind of device. The N mod B items that do not fill a
    batch are left out of the epoch; they differ from epoch to epoch. All items in one batch keep their order.

        >>> loader = TensorBatches(torch.zeros(10, 3), torch.arange(10), batch_size=4, chains=2)
        >>> [tuple(x.shape) for x, y in loader]
        [(2, 4, 3), (2, 4, 3)]
        >>> loader.state_dict()
        {'epoch': 1, 'index': 0}

    Args:
        x, y: the N items and their labels. `dataset` has length N.
        batch_size: B, items per chain and step.
        chains: C, or None for one chain and for batches that all chains share.
        seed, stack: decide the order and the augmentation.
        replacement: draw every batch independently, with replacement. The batches of a shuffled epoch depend on each
            other: over an epoch their noise cancels, which heats slow directions less, by an amount that no sampler
            knows. Corrections for batch noise (`grad_var`, SGNHT, SGFS) are right for independent batches only.
        augment: changes the items of every batch. The change of item i depends on (seed, stack, epoch, chain, i) alone.
        transform: makes the network's input of stored items on their device, e.g. floats of bytes.

    Raises ConfigError for a batch size below 1 or above N, and when x and y differ in length.
    """

    x: Tensor
    y: Tensor
    batch_size: int
    _: KW_ONLY
    chains: int | None = None
    seed: int = 0
    stack: int = 0
    replacement: bool = False
    augment: Augmentation | None = None
    transform: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        items = len(self.x)
        if not 1 <= self.batch_size <= items:
            raise ConfigError(f"batch_size must be between 1 and the {items} training items, got {self.batch_size}")
        if items != len(self.y):
            raise ConfigError(f"{items} inputs do not match {len(self.y)} labels")
        self.rank, self.ranks = 0, 1
        self.epoch, self.index = 0, 0  # the next batch
        self._drawn: tuple[int, Tensor, Tensor | None] | None = None  # an epoch, its rows, its decisions
        self._ahead: tuple[int, Future[Any]] | None = None  # the next epoch, which a thread draws
        self._gathers = True  # whether the items of an epoch are put in order at once
        self._gathered: tuple[Tensor, Tensor] | None = None  # the items of that epoch in order, where they are small

    @property
    def dataset(self) -> Tensor:
        return self.x

    def __len__(self) -> int:
        return len(self.x) // (self.ranks * self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.index, len(self)):
            batch = self.at(self.epoch, self.index)
            self.advance()  # before the yield, because a caller that counts batches never returns after the last one
            yield batch

    @property
    def is_whole(self) -> bool:
        """Whether every batch holds the N items as they are, each once, in their order."""
        changes = self.replacement or self.augment is not None or self.transform is not None
        return self.batch_size == len(self.x) and not changes

    def to(self, device: torch.device | str) -> TensorBatches:
        """Move the data to the device, once."""
        self.x, self.y, self._drawn = self.x.to(device), self.y.to(device), None
        return self

    def shard(self, rank: int, ranks: int) -> TensorBatches:
        """Yield only this rank's B items of batches of ranks x B items, so that all ranks together see each batch once.

        Raises ConfigError if ranks x B > N.
        """
        if ranks * self.batch_size > len(self.x):
            raise ConfigError(
                f"batch_size = {self.batch_size} on each of {ranks} processes is more than the {len(self.x)} training "
                f"items: at most {len(self.x) // ranks}"
            )
        self.rank, self.ranks, self._drawn, self._ahead = rank, ranks, None, None
        return self

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_ahead": None}  # a thread's work cannot be copied

    def at(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        """Batch number `index` of an epoch, whatever the position of the loader."""
        if self.is_whole:
            own = self.chains in (None, 1)  # a network may write to what it is given, but not to what chains share
            x, y = (self.x.clone(), self.y.clone()) if own else (self.x, self.y)
            return (x, y) if self.chains is None else (x.expand(self.chains, *x.shape), y.expand(self.chains, *y.shape))
        rows, decisions = self._rows(epoch)
        if self._gathered is not None:
            x, y = self._gathered[0][index], self._gathered[1][index]
        else:
            x, y = self.x.index_select(0, rows[index]), self.y.index_select(0, rows[index])
        if self.augment is not None and decisions is not None:
            x = self.augment(x, decisions[index])
        if self.transform is not None:
            x = self.transform(x)
        if self.chains is None:
            return x, y
        lead = (self.chains, self.batch_size)
        return x.view(*lead, *x.shape[1:]), y.view(*lead, *y.shape[1:])

    def rows_ahead(self, most: int) -> Tensor | None:
        """The rows of the next batches, (n, C, B) or (n, B), also of later epochs. The position stays.

        n is `most`, or less where so many take more memory than an epoch and AHEAD. None where the items are changed.
        """
        if self.augment is not None or self.transform is not None:
            return None
        self._gathers = False  # few batches are asked for one by one
        parts, epoch = [self._rows(self.epoch)[0][self.index : self.index + most]], self.epoch
        while (n := sum(map(len, parts))) < most and n * parts[0].shape[1] < AHEAD:
            parts.append(self._rows(epoch := epoch + 1)[0][: most - n])
        rows = torch.cat(parts)
        return rows if self.chains is None else rows.unflatten(1, (self.chains, self.batch_size))

    def slices(self) -> TensorSlices:
        """The same items in the order of the data, without augmentation."""
        return TensorSlices(self.x, self.y, transform=self.transform)

    def advance(self, batches: int = 1) -> None:
        """Move the position on by so many batches."""
        epochs, self.index = divmod(self.index + batches, len(self))
        self.epoch += epochs

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.index = state["epoch"], state["index"]

    def _rows(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        """The rows (batches, C * B) of an epoch, and what is decided of its items, drawn once."""
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = (epoch, *self._next(epoch))
            self._gathered = self._gather(self._drawn[1]) if self._gathers and self.augment is None else None
        return self._drawn[1:]

    def _next(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        """(batches, C * B) rows and (batches, C * B, k) decisions of an epoch, on the device of the data.

        An accelerator works while a thread of the host draws the next epoch. It draws long orders itself.
        """
        device, count = self.x.device, len(self) * (self.chains or 1) * self.batch_size
        if device.type == "cpu":
            return self._draw(epoch)
        if self.chains is not None and count > MANY and self.augment is None:
            size, key = self.ranks * self.batch_size, (self.seed, self.stack, epoch)
            rows = draw_on_device(device, key, len(self.x), len(self), self.chains or 1, size, self.replacement)
            return rows.unflatten(2, (self.ranks, -1))[:, :, self.rank].flatten(1), None
        ahead, self._ahead = self._ahead, None
        rows, decisions = ahead[1].result() if ahead is not None and ahead[0] == epoch else self._draw(epoch)
        if count <= AHEAD:
            self._ahead = epoch + 1, drawer().submit(self._draw, epoch + 1)
        rows = rows.to(self.x.device, non_blocking=True)
        return rows, None if decisions is None else decisions.to(self.x.device, non_blocking=True)

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        """What `_next` returns, on the CPU, where it is drawn for every device; one chain after the other."""
        items, shape = len(self.x), (len(self), self.ranks, self.batch_size)
        count, decisions = shape[0] * self.ranks * self.batch_size, None
        kind = torch.int32 if items < 2**31 else torch.int64
        rows = torch.empty(shape[0], self.chains or 1, self.batch_size, dtype=kind)
        for c in range(self.chains or 1):
            key = (self.seed, self.stack, epoch, c)
            random = generator("cpu", "order", *key)
            if self.replacement:
                order = torch.randint(items, (count,), generator=random)
            else:
                order = torch.randperm(items, generator=random)[:count]
            rows[:, c] = order.view(shape)[:, self.rank]  # this rank's part of the batches
            if self.augment is not None:
                drawn = self.augment.draw(items, tuple(self.x.shape[1:]), generator("cpu", "augment", *key))
                each = drawn[order].unflatten(0, shape)[:, self.rank]
                decisions = each.new_empty(*rows.shape, *each.shape[2:]) if decisions is None else decisions
                decisions[:, c] = each
        return rows.flatten(1), None if decisions is None else decisions.flatten(1, 2)

    def _gather(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """All items of an epoch in the order of its batches, so that a batch is a view; None if they are many."""
        if rows.numel() * max(1, self.x[:1].numel()) > SMALL_EPOCH:
            return None
        x, y = (v.index_select(0, rows.flatten()).unflatten(0, rows.shape) for v in (self.x, self.y))
        return x, y


class WorkerBatches:
    """The same batches as a TensorBatches, made ahead by worker processes, for data that do not fit on the device.

    The position counts the batches that were yielded, not those that the workers have made ahead.

    Args:
        batches: the loader whose batches are made.
        workers: number of processes; 0 makes the batches in this process.
    """

    def __init__(self, batches: TensorBatches, workers: int = 2):
        self.batches, self.workers = batches, workers
        self._pins = False

    def to(self, device: torch.device | str) -> WorkerBatches:
        """Make batches that are copied to the device; they are made on the CPU."""
        self._pins = torch.device(device).type == "cuda" and torch.cuda.is_available()
        return self

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
        fresh = WorkerBatches(copy.copy(self.batches), self.workers)
        fresh._pins = self._pins
        return fresh

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        first, numbers = self.batches.index, range(len(self))
        batch_of: Any = functools.partial(self.batches.at, self.batches.epoch)  # (number) -> batch
        ahead = DataLoader(
            cast(Dataset, numbers), None, sampler=numbers[first:], num_workers=self.workers, collate_fn=batch_of,
            pin_memory=self._pins, generator=torch.Generator(),  # None draws from the global stream
        )  # fmt: skip
        batches = iter(ahead)
        for _ in range(first, len(self)):
            try:
                batch = next(batches)
            except ConfigError as error:  # a worker's traceback is part of the message
                raise ConfigError(str(error).splitlines()[-1].removeprefix("bdl.errors.ConfigError: ")) from None
            self.batches.advance()
            yield batch

    def shard(self, rank: int, ranks: int) -> WorkerBatches:
        self.batches.shard(rank, ranks)
        return self

    def slices(self) -> TensorSlices:
        return self.batches.slices()

    def state_dict(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches.load_state_dict(state)
