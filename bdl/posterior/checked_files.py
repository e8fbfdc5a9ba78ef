"""CheckedFiles: reads sample files, and checks each of them once."""

from __future__ import annotations

import stat
from pathlib import Path

from torch import Tensor

from bdl.errors import StoreError
from bdl.posterior.index import Record
from bdl.posterior.tensors import holds_nan, read_tensors

ALTERED_SAMPLE = "was altered: its sha256 differs from the index"


class CheckedFiles:
    """The sample files of a folder. A checksum is computed at the first reading, and again after another writing."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._seen: dict[str, tuple[str, int, int, int]] = {}  # files whose checksum was right, as they were then

    def read(self, record: Record) -> dict[str, Tensor]:
        """The tensors (C, ...) of one record. Raises StoreError if the file is missing, cut short or altered."""
        path = self.folder / record.file
        try:
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size != record.bytes:
                raise _unusable(path, f"was cut short to {status.st_size} of {record.bytes} bytes")
            version = (record.sha256, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            new = self._seen.get(record.file) != version
            tensors, sha256 = read_tensors(path, check=new)
        except StoreError:
            raise
        except OSError as error:
            raise _unusable(path, f"cannot be read ({error.strerror})") from error
        except ValueError as error:
            fault, sha256 = error.args
            altered = sha256 != record.sha256
            raise _unusable(path, ALTERED_SAMPLE if altered else f"is no safetensors file ({fault})") from error
        if new and sha256 != record.sha256:
            raise _unusable(path, ALTERED_SAMPLE)
        if new and any(holds_nan(tensor) for tensor in tensors.values()):
            raise _unusable(path, "holds NaN")
        self._seen[record.file] = version
        return tensors


def _unusable(path: Path, fault: str) -> StoreError:
    return StoreError(f"sample file {path} {fault}; skip_bad=true uses the rest")
