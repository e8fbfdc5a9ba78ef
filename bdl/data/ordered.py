"""DataLoaders: their items in a fixed order, how many there are, and which of them an order prefers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sized
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, default_collate

from bdl.batch import count_items, count_targets, structure, tensors_in
from bdl.errors import ConfigError

PASSES = 8  # in which the rows of a sampler of the user's are counted
SURE = 5.0  # standard errors of a mean covariance
LONGEST = 4  # passes over all rows that a sampler without an end is followed for, in one epoch

_counted: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # (length, axis), counts: may have taken a pass


def length_of(loader: Any) -> int | None:
    """The length of a loader's data set; None where it has none. Items of a DataLoader may be batches: `counts_of`."""
    data = getattr(loader, "dataset", None)
    streams = isinstance(data, IterableDataset) and getattr(loader, "batch_size", None) is None  # whole batches
    return len(data) if isinstance(data, Sized) and not streams else None


def size_of(loader: Any) -> int | None:
    """The items of a batch, a mean where batches are items of the data; None where the loader does not say it."""
    size = getattr(loader, "batch_size", None)
    if size is None and isinstance(loader, DataLoader):
        size = getattr(loader.batch_sampler or loader.sampler, "batch_size", None)
        if size is None and loader.batch_sampler is None and (counts := counts_of(loader)):
            size = max(1, counts[-1] // max(1, length_of(loader) or 1))
    return size


def ordered(loader: DataLoader, dataset: Dataset | None = None) -> DataLoader:
    """The items of a DataLoader in the order of its data, in batches such as it makes.

    dataset: a part of its data, in their place.
    """
    data: Any = loader.dataset if dataset is None else dataset
    size = order = None
    if asks_for_batches(loader):
        order = BatchSampler(SequentialSampler(data), size_of(loader) or 1, False)
    elif loader.batch_sampler is not None:  # one of the user's may not say its size
        size = size_of(loader) or 1
    return DataLoader(data, size, sampler=order, collate_fn=loader.collate_fn)


def asks_for_batches(loader: DataLoader) -> bool:
    """Whether the data set makes the batches, of rows that a batch sampler in the place of the sampler chooses."""
    return loader.batch_sampler is None and hasattr(loader.sampler, "batch_size")


def order_of(loader: Any) -> Any:
    """What chooses the rows of a DataLoader: its sampler, or a batch sampler other than torch's own around one."""
    chooses = getattr(loader, "batch_sampler", None)
    if chooses is None or type(chooses) is BatchSampler:
        chooses = getattr(loader if chooses is None else chooses, "sampler", None)
    return chooses.sampler if type(chooses) is BatchSampler else chooses  # where the data make batches


def preferred(loader: DataLoader, rows: int) -> tuple[int, bool] | None:
    """(rows that are visited, whether some are visited more often than others) under an order of the user's.

    A copy of the order is asked for `PASSES` passes, or the order itself where it cannot be copied. The random streams
    stay as they are. Passes that are drawn alike have counts of rows with a covariance of 0 between any two passes,
    also where rows are drawn with replacement, or by groups. A positive mean covariance shows preferred rows.

    rows: of the data. None where the order can be read once only, or does not name rows by their numbers.
    """
    from lightning.pytorch.utilities.seed import isolate_rng  # slow to import

    order = order_of(loader)
    if isinstance(order, Iterator):
        return None
    try:
        order = copy.deepcopy(order, {id(loader.dataset): loader.dataset})  # the data are not copied
    except Exception:  # of a generator or a file that it holds
        pass
    try:
        with isolate_rng():
            counts = np.stack([_visits(order, rows, epoch) for epoch in range(PASSES)])
    except Exception:  # code of the user's, which fails with its own words when batches are made
        return None
    centred = counts - counts.mean(1, keepdims=True)
    pairs = np.array([(a * b).mean() for a, b in combinations(centred, 2)])
    error = pairs.std(ddof=1) / len(pairs) ** 0.5
    seen = (totals := counts.sum(0))[totals > 0]
    left_out = seen.min(initial=PASSES) >= PASSES  # rows that are drawn seldom may be missing by chance
    return len(seen) if left_out else rows, bool(pairs.mean() > 1e-12 + SURE * error)


def _visits(order: Any, rows: int, epoch: int) -> np.ndarray:
    """(rows,) how often an epoch visits each row."""
    if hasattr(order, "set_epoch"):
        order.set_epoch(epoch)
    visited: list[int] = []
    for chosen in order:
        if isinstance(chosen, int):
            visited.append(chosen)
        else:
            visited.extend(np.ravel(chosen).tolist())
        if len(visited) > LONGEST * rows:
            break
    counts = np.zeros(rows)
    np.add.at(counts, np.asarray(visited, dtype=np.int64), 1)
    return counts


def counts_of(loader: Any, axis: int = 0) -> tuple[int, ...]:
    """How many items a loader's data may be: one number, two where it is not clear, none for data without a length.

    It is the length of the data set. Where a DataLoader has no batch size, an item of its data is a batch, and the
    items of all are counted by their targets, in a pass over the data. Both numbers are given, the length first, where
    a `collate_fn` makes more or fewer items of those that it gets, and where batches that are items of the data have
    inputs and targets of different lengths.

    axis: that of the items in a batch.

    Raises ConfigError for single items where they have to be batches.
    """
    length = length_of(loader)
    if length is None:
        return ()
    if not isinstance(loader, DataLoader) or not length or asks_for_batches(loader):
        return (length,)
    if loader.batch_sampler is not None and loader.collate_fn is default_collate:
        return (length,)
    if _counted.get(loader, ((),))[0] != (length, axis):
        _counted[loader] = (length, axis), _count(loader, length, axis)
    return _counted[loader][1]


def _count(loader: DataLoader, length: int, axis: int) -> tuple[int, ...]:
    from lightning.pytorch.utilities.seed import isolate_rng  # slow to import

    in_order = ordered(loader)
    with isolate_rng():
        batches = iter(in_order)
        first = next(batches)
        held, size = count_targets(first, axis), in_order.batch_size
        lengths = {t.shape[axis] if t.ndim > axis else 0 for t in tensors_in(first)}
        flat = all(t.ndim <= axis + 1 for t in tensors_in(first)) and len(lengths) > 1
        if size is None and (flat or all(t.ndim <= axis for t in list(tensors_in(first))[-1:])):
            raise ConfigError(
                f"the DataLoader has batch_size=None, so that an item of its data is a batch, and the first one is "
                f"{structure(first)}, which is none: give the DataLoader a batch_size"
            )
        if size is not None and held == min(length, size):
            return (length,)
        total = held + sum(count_targets(batch, axis) for batch in batches)
    sure = total == length or size is None and held == count_items(first, axis)
    return (total,) if sure else (length, total)


def data_in_words(counts: tuple[int, ...]) -> str:
    """What `counts_of` found, for messages."""
    if len(counts) == 1:
        return f"the training data have {counts[0]} items"
    return f"the training data have {counts[0]} items, of which the loader makes batches with {counts[1]} in all"
