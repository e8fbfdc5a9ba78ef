"""CheckedFiles: reads sample files, and checks each of them once."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from torch import Tensor

from bdl.disk.files import read_file
from bdl.disk.manifest import digest
from bdl.errors import StoreError
from bdl.posterior.index import Record


class CheckedFiles:
    """The sample files of a folder. A checksum is computed at the first reading, and again after another writing."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._seen: dict[str, tuple[str, int, int, int]] = {}  # files whose checksum was right, as they were then

    def read(self, record: Record) -> dict[str, Tensor]:
        """The tensors (C, ...) of one record. Raises StoreError if the file is missing, cut short or altered."""
        path = self.folder / record.file
        try:
            status, data = path.stat(), read_file(path)
        except OSError as error:
            raise _unusable(path, f"cannot be read ({error.strerror})") from error
        if len(data) != record.bytes:
            raise _unusable(path, f"was cut short to {len(data)} of {record.bytes} bytes")
        version = (record.sha256, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        new = self._seen.get(record.file) != version
        if new and digest(data) != record.sha256:
            raise _unusable(path, "was altered: its sha256 differs from the index")
        try:
            tensors = safetensors.torch.load(data)
        except Exception as error:  # the parser may raise anything
            raise _unusable(path, f"is no safetensors file ({error})") from error
        if new and any(tensor.isnan().any() for tensor in tensors.values()):
            raise _unusable(path, "holds NaN")
        self._seen[record.file] = version
        return tensors


def _unusable(path: Path, fault: str) -> StoreError:
    return StoreError(f"sample file {path} {fault}; skip_bad=true uses the rest")
