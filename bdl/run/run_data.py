"""RunData: the data modules of a run. A table is read once, and all stacks and processes of the run share its rows."""

from __future__ import annotations

import contextlib
import io
import pickle
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.data.loader import Batching
from bdl.data.module import DataModule, as_data_module
from bdl.data.table import TableDataModule
from bdl.disk.files import disk_errors
from bdl.disk.temporary import own_folder
from bdl.errors import BdlWarning
from bdl.run.config import TABLE
from bdl.run.launch import Start
from bdl.run.machine import return_freed_memory
from bdl.run.plan import Strategy
from bdl.run.processes import SINGLE, ProcessInfo
from bdl.run.section import Section
from bdl.run.threads import on_threads

OF_BATCHES = {"batch_size", *Batching.__annotations__}  # arguments that choose no rows
ALIGNED = 64  # bytes; where each tensor begins in a file


class RunData:
    """Makes the data module of each stack of a run.

    A table is read at the first call or by `read`, and later calls take its rows. A forked process has the rows of its
    parent, which are held once while nobody writes to them; a spawned one maps a file, see `handed_over`. Any other
    data module is built anew for each stack.

    Args:
        warns: whether the warnings about a table are shown; others of several processes say the same.
    """

    def __init__(self, warns: bool = True):
        self.warns = warns
        self._rows: tuple[Mapping[str, Any], TableDataModule] | None = None  # the arguments that chose them, and they
        self._file: Path | None = None  # where spawned processes find the rows

    def build(
        self, section: Section[DataModule], strategy: Strategy = "auto", process: ProcessInfo = SINGLE,
        warn: bool = True,
    ) -> DataModule:  # fmt: skip
        """The data module of a stack. Each of several ranks of one chain gets its part of every batch."""
        table = self.read(section)
        if table is not None:
            data = table.with_batches(**{key: value for key, value in section.node.items() if key in OF_BATCHES})
        else:
            data = _build(section, warn)
        if strategy == "ddp" and process.world_size > 1:
            data.shard(process.rank, process.world_size)
        return data

    def read(self, section: Section[DataModule]) -> TableDataModule | None:
        """Read the table, unless its rows are here; None for other data.

        It starts no threads, because a process that has some cannot fork those of its stacks.
        """
        if section.target != TABLE:
            return None
        chosen = {key: value for key, value in section.node.items() if key not in OF_BATCHES}
        if self._rows is None or self._rows[0] != chosen:
            self._rows = None
            with on_threads(1):
                self._rows = chosen, _build(section, self.warns)
            return_freed_memory()  # the texts and doubles of the table
        return self._rows[1]

    @contextlib.contextmanager
    def handed_over(self, start: Start) -> Iterator[RunData]:
        """Itself, as an argument for processes that are started inside.

        Spawned ones read the rows in a temporary file, each page of which the machine holds once. It is not the memory
        that torch shares, of which a container often has 64 MB. Raises StoreError where the file cannot be written.
        """
        if start == "fork" or self._rows is None:
            yield self
            return
        with disk_errors(Path(tempfile.gettempdir())):
            made = contextlib.ExitStack()
            folder = made.enter_context(own_folder())
        with made:
            self._file = folder / "rows"
            try:
                yield self
            finally:
                self._file = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._rows is None or self._file is None:
            return RunData, (self.warns,)
        chosen, table = self._rows
        return _from_file, (self.warns, chosen, _write(table, self._file), self._file)


def _build(section: Section[Any], warn: bool) -> Any:
    with warnings.catch_warnings():
        if not warn:
            warnings.simplefilter("ignore", BdlWarning)
        return as_data_module(section.build())


def _from_file(warns: bool, chosen: Mapping[str, Any], pickled: bytes, path: Path) -> RunData:
    data = RunData(warns)
    data._rows = chosen, _read(pickled, path)
    return data


def _write(value: object, path: Path) -> bytes:
    """A value as a pickle, whose tensors are in the file; each once."""
    places: dict[Any, tuple[int, str, tuple[int, ...]]] = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> tuple[int, str, tuple[int, ...]] | None:
            if not isinstance(obj, Tensor):
                return None
            key = obj.data_ptr(), obj.dtype, obj.shape, obj.stride()
            if key not in places:
                array = obj.contiguous().numpy()
                f.seek(-(-f.tell() // ALIGNED) * ALIGNED)
                places[key] = f.tell(), array.dtype.str, array.shape
                f.write(array.data)
            return places[key]

    pickled = io.BytesIO()
    with disk_errors(path), open(path, "wb") as f:
        Pickler(pickled).dump(value)
    return pickled.getvalue()


def _read(pickled: bytes, path: Path) -> Any:
    """The value, whose tensors are pages of the file; a write goes to a copy of the page."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: tuple[int, str, tuple[int, ...]]) -> Tensor:
            begin, dtype, shape = pid
            if 0 in shape:  # there are no pages to map
                return torch.from_numpy(np.empty(shape, dtype))
            return torch.from_numpy(np.memmap(path, dtype, "c", begin, shape))

    return Unpickler(io.BytesIO(pickled)).load()
