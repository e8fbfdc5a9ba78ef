"""The outputs of many networks for many items, from which their mixture is computed."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from bdl.errors import StoreError

OUTPUTS_IN_MEMORY = (
    2**30
)  # bytes of outputs in memory; more lie in a temporary file, and are evaluated in slices of the items
CHUNK_OF_OUTPUTS = 2**21  # numbers of outputs that are worked on together, in double precision


def items_in_memory(networks: int, width: int) -> int:
    """For how many items the outputs (width,) of so many networks are held in memory; at least 1."""
    return max(1, OUTPUTS_IN_MEMORY // max(1, 4 * networks * width))


class NetworkOutputs(ABC):
    """The outputs (S, n, K) of S networks for n items, in float32."""

    shape: torch.Size  # (n, K)

    @abstractmethod
    def of(self, items: slice, networks: Tensor | None = None) -> Tensor:
        """(S, n', K) in double precision, of some items, and of some networks or of all."""

    @abstractmethod
    def part(self, items: Tensor) -> StoredOutputs:
        """A copy of the outputs for the items at these places (m,)."""


class StoredOutputs(NetworkOutputs):
    """Outputs in memory, or beyond 1 GiB in a temporary file."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._file: IO[bytes] | None = None
        self.networks = 0
        self.shape = torch.Size()

    def add(self, outputs: Tensor) -> None:
        """Add the outputs (k, n, K) of k networks. Raises StoreError if the temporary file has no room for them."""
        outputs = outputs.float().contiguous()
        self.shape = outputs.shape[1:]
        self.networks += len(outputs)
        self._blocks.append(outputs)
        if self._file is not None or 4 * self.networks * self.shape.numel() > OUTPUTS_IN_MEMORY:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115
            try:
                for block in self._blocks:
                    self._file.write(block.numpy().data)
                self._file.flush()
            except OSError as error:
                raise StoreError(
                    f"the outputs of {self.networks:,} networks for {len(outputs[0]):,} items do not fit into a "
                    f"temporary file in {tempfile.gettempdir()} ({error.strerror}): free space, set TMPDIR, or predict "
                    "fewer items at a time"
                ) from error
            self._blocks = []

    def of(self, items: slice, networks: Tensor | None = None) -> Tensor:
        part = self._all()[:, items]
        return (part if networks is None else part[networks]).double()

    def part(self, items: Tensor) -> StoredOutputs:
        part, size = StoredOutputs(), max(1, CHUNK_OF_OUTPUTS // max(1, self.shape.numel()))
        for block in self._all().split(size):
            part.add(block[:, items])
        return part

    def _all(self) -> Tensor:
        """(S, n, K), in memory or mapped from the file."""
        if self._file is None:
            self._blocks = [torch.cat(self._blocks)] if len(self._blocks) > 1 else self._blocks
            return self._blocks[0]
        self._file.flush()
        mapped: Any = np.memmap(self._file, np.float32, "c", shape=(self.networks, *self.shape))
        return torch.from_numpy(mapped)
