"""What tells the training data of a loader from others: their shapes, and a checksum of their values."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from bdl.batch import structure, tensors_in
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.identity import identity

ITEMS = 64  # how many items are read, evenly spaced, where a data set is not in memory


def fingerprint(loader: Any) -> dict[str, Any]:
    """Plain values that differ for a loader over other data.

    Tensors in memory count whole, with the augmentation and the transform of bdl's loaders. Of any other data set 64
    evenly spaced items are read, under fixed random numbers so that an augmentation draws the same; the random streams
    stay as they are. Items that differ from one reading to the next count by their shapes alone, and a stream by the
    name of its class.

        >>> x, labels = torch.arange(6.0).view(3, 2), ([0, 1, 0], [0, 1, 1])
        >>> one, other = (fingerprint(TensorBatches(x, torch.tensor(y), 1)) for y in labels)
        >>> one["items"], one["item"], one == other
        (3, 'tuple(float32 (2,), int64 ())', False)
    """
    batches = loader.batches if isinstance(loader, WorkerBatches) else loader
    if isinstance(batches, TensorBatches):
        about = {"augment": identity(batches.augment), "transform": identity(batches.transform)}
        x: Any = batches.x
        if not isinstance(x, Tensor):  # images in files
            return {**_of_tensors((batches.y,)), "files": digest(x.paths), **about}
        return _of_tensors((x, batches.y)) | about
    dataset = loader.dataset
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and tensors and all(isinstance(t, Tensor) for t in tensors):
        return _of_tensors(tensors)
    if isinstance(dataset, IterableDataset):  # to read an item may use it up
        return {"items": None, "item": type(dataset).__name__, "sha256": None}
    return _of_items(dataset)


def _of_tensors(tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    each = tuple(t[0] for t in tensors)
    return {"items": len(tensors[0]), "item": structure(each), "sha256": digest(tensors)}


def _of_items(dataset: Sized) -> dict[str, Any]:
    rows = sorted(set(torch.linspace(0, len(dataset) - 1, ITEMS).long().tolist()))
    one, again = (_read(dataset, rows) for _ in range(2))
    return {"items": len(dataset), "item": one[0], "sha256": one[1] if one == again else None}


def _read(dataset: Any, rows: list[int]) -> tuple[str, str]:
    """The structure of the first item and the checksum of all."""
    from lightning.pytorch.utilities.seed import isolate_rng  # slow to import

    with isolate_rng():
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(0)
        items = [dataset[row] for row in rows]
    return structure(items[0]), digest(items)


def digest(value: Any) -> str:
    """A checksum of the values of an item; for images in files, of the files' names and sizes."""
    checksum = hashlib.sha256()
    _add(checksum, value)
    return checksum.hexdigest()[:16]


def _add(checksum: Any, value: Any) -> None:
    """Add the values of an item: those of tensors and arrays, numbers and words, in mappings and sequences of them."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        checksum.update(f"{value.dtype} {tuple(value.shape)}".encode())
        checksum.update(value.flatten().view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        _add(checksum, torch.from_numpy(np.ascontiguousarray(value)) if value.dtype.kind in "biuf" else str(value))
    elif isinstance(paths := getattr(value, "paths", None), list):
        _add(checksum, [[Path(path).name, Path(path).stat().st_size] for path in paths])
    elif isinstance(value, bool | int | float | str | None):
        checksum.update(repr(value).encode())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            _add(checksum, [str(key), value[key]])
    elif isinstance(value, list | tuple):
        for part in value:
            _add(checksum, part)
    else:
        for tensor in tensors_in(value):
            _add(checksum, tensor)
