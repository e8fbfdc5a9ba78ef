"""Visits: what a Trainer shows of the data, batch by batch."""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L
import torch
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from bdl.batch import count_targets, structure, tensors_in
from bdl.data.fingerprint import fingerprint
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.data.ordered import counts_of, length_of, order_of, size_of
from bdl.display import count_of
from bdl.engine.stack import ChainStack
from bdl.errors import BdlWarning, ConfigError
from bdl.lightning.host import dataset_of, sampled_net
from bdl.lightning.refuse import check_data
from bdl.samplers.sampler import Sampler

LIMITS = ("overfit_batches", "limit_train_batches")  # settings of a Trainer that leave batches out


class Visits:
    """Counts the items of the batches that a Trainer shows to the training step.

    Warns once with BdlWarning where every epoch visits the same part of the data, whatever causes it; where batches may
    differ in size and it cannot be told; and where a module other than BayesianModule, which weighs them, accumulates
    micro-batches of different sizes.

    Attributes:
        items: how many the present batch holds; None where that is not known, or does not matter.
    """

    def __init__(self, trainer: L.Trainer, module: L.LightningModule, sampler: Sampler, weighs_parts: bool):
        """weighs_parts: whether the module weighs micro-batches by their sizes itself."""
        self.trainer: Any = trainer
        self.sampler, self.loader, self._weighs_parts = sampler, trainer.train_dataloader, weighs_parts
        net = sampled_net(module, None)
        self._axis = int(isinstance(net, ChainStack) and not net.shared)  # behind that of the chains, if they have own
        self._alike = isinstance(self.loader, TensorBatches | WorkerBatches)
        size = size_of(self.loader) if self._alike and self._parts > 1 else None
        self.items: int | None = size  # of batches that are alike a step may still have more or fewer
        self._seen: tuple[int, int] | None = None  # (epoch, number) of the present batch
        self._ended: tuple[int, int] | None = None  # `_seen` when the last epoch ended
        self._nominal: int | None = None  # the size of the first batch
        self._visited: int | None = None  # items of the epoch; None where a resumed run begins amid one
        self._each = 1  # elements of an item that have a class each, such as tokens
        self._reloaded = False  # whether another loader has taken the place of the first one
        self._first: Any = None  # the first batch of the epoch, where the loader does not say whether orders differ
        self._streams = isinstance(dataset_of(self.loader), IterableDataset) or length_of(self.loader) is None
        # that of an earlier fit goes
        others = [each for each in self.trainer.callbacks if not isinstance(each, _EndOfStream)]
        self.trainer.callbacks = [*others, _EndOfStream(self)] if self._streams else others

    def see(self, batch: Any, batch_idx: int) -> int | None:
        """Called with every batch at its training step, which may be made twice; returns `items`."""
        seen = self.trainer.current_epoch, batch_idx
        if not self._alike and seen != self._seen:
            self._seen = seen
            self._count(batch, batch_idx)
        return self.items

    def _count(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            if self.trainer.train_dataloader is not self.loader:
                self._reload()
            self._end_epoch(batch)
        items = count_targets(batch, self._axis)
        if not items and any(t.ndim > self._axis and not t.shape[self._axis] for t in tensors_in(batch)):
            raise ConfigError(
                f"batch {batch_idx} of epoch {self.trainer.current_epoch} has no items, {structure(batch)}, and so no "
                "mean loss: leave it out in the collate_fn, the batch sampler or the data that make it"
            )
        self._visited, self._each = None if self._visited is None else self._visited + items, _elements(batch)
        self._nominal = self._nominal or items
        self.items = items or None
        if self.items is None and self._may_be_ragged():
            self._warn(
                f"the size of the batches is unknown, {structure(batch)}, so that items of a short one count more",
                "let the DataLoader shuffle and drop_last=True",
            )
        ends = batch_idx + 1 == self.trainer.num_training_batches and (batch_idx + 1) % self._parts
        if not self._weighs_parts and self._parts > 1 and (items != self._nominal or ends):
            self._warn(
                f"accumulate_grad_batches={self._parts} adds up parts of steps that are not alike, so that some items "
                "count more than others",
                "choose it so that it divides the batches of an epoch, and let the DataLoader drop_last=True",
            )

    @property
    def _parts(self) -> int:
        return self.trainer.accumulate_grad_batches

    def _reload(self) -> None:
        """Look at a loader that has taken the place of another one. The data of the first such one are compared."""
        before, self.loader = self.loader, self.trainer.train_dataloader
        check_data(self.trainer, self.sampler)
        if not self._reloaded and hasattr(before, "dataset") and hasattr(self.loader, "dataset"):
            try:
                was, now = fingerprint(before), fingerprint(self.loader)
            except Exception:  # a data set of somebody's own may be read in another way
                was = now = {"item": None, "sha256": None}
            if was["item"] != now["item"] or None not in (was["sha256"], now["sha256"]) and was != now:
                self._warn(
                    f"the loader of epoch {self.trainer.current_epoch} has other data than the one before, and the "
                    f"posterior is that of {count_of(self.sampler.num_data, 'item')}",
                    "give all epochs one data set, and count its items",
                )
        self._reloaded = True

    def _end_epoch(self, batch: Any) -> None:
        """Warn where the epoch that has ended visited a part of the data, and the new one begins as it did."""
        visited, self._visited = (self._visited or 0) * self.trainer.world_size, 0
        order, counts = order_of(self.loader), counts_of(self.loader, self._axis)
        shuffles, items = isinstance(order, RandomSampler), counts[0] if counts else self.sampler.num_data
        first, self._first = self._first, None if shuffles else batch
        if shuffles or self._streams and not self._limits or not 0 < visited < items:
            return
        if isinstance(order, SequentialSampler) or _same(first, batch):
            by = f" under {' and '.join(self._limits)}" if self._limits else ""
            self._warn(
                f"every epoch visits the same {visited} items{by}, and the posterior is that of all {items}",
                "shuffle the loader, or give it a Subset of the data and count its items",
            )

    @property
    def _limits(self) -> list[str]:
        """The settings of the Trainer that leave batches out, as they are written."""
        return [f"{name}={value:g}" for name in LIMITS if (value := getattr(self.trainer, name)) not in (1.0, 0)]

    def end_stream(self) -> None:
        """At the end of an epoch of data without a length: what N should have been, and whether there are more."""
        if self._ended == (seen := self._seen):
            raise ConfigError(
                f"the {type(self.loader).__name__} has no batch left after step {self.sampler.steps}, because its data "
                "can be read once: give one that begins anew in every epoch"
            )
        self._ended = seen
        visited, items = (self._visited or 0) * self.trainer.world_size, self.sampler.num_data
        cut = visited < items and self.trainer.global_step == self.trainer.max_steps  # the run may end amid an epoch
        if not visited or cut or self._limits or items in (visited, visited * self._each):
            return
        stream = type(dataset_of(self.loader)).__name__
        self._warn(
            f"an epoch of {stream} visits {visited} items, and the posterior is that of {items}",
            f"set num_data={visited}, or let every item be visited once, also by several workers"
            if visited > items
            else "count the items of the stream, or ignore this if other epochs have others",
        )

    def _may_be_ragged(self) -> bool:
        """Whether batches may differ in size."""
        length, size = length_of(self.loader), getattr(self.loader, "batch_size", None)
        if size is None or length is None:
            return True
        return not getattr(self.loader, "drop_last", False) and length % size != 0

    def _warn(self, note: str, remedy: str) -> None:
        if note not in self.sampler.notes:
            self.sampler.notes.append(note)
            warnings.warn(f"{note}: {remedy}", BdlWarning, stacklevel=4)


class _EndOfStream(L.Callback):
    """Tells of the end of an epoch."""

    def __init__(self, visits: Visits):
        self._visits = visits

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._visits.end_stream()


def _elements(batch: Any) -> int:
    """The elements of an item that have a class each, such as tokens; 1 where an item has one target."""
    tensors = list(tensors_in(batch))
    return tensors[-1][0].numel() if tensors and not tensors[-1].is_floating_point() else 1


def _same(one: Any, other: Any) -> bool:
    """Whether two batches hold the same tensors."""
    pairs = list(zip(tensors_in(one), tensors_in(other), strict=False))
    return bool(pairs) and all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)
