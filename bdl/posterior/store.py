"""Samples on disk: one safetensors file per kept step and stack, one checksummed index line per file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bdl.errors import StoreError
from bdl.files import disk_errors, write_atomically

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Record:
    """One line of `index-<stack>.jsonl`: a kept step of a stack of chains. Lists have one entry per chain."""

    step: int
    stack: int
    chains: list[int]  # numbers through all stacks of as many chains: those of stack 1 follow those of stack 0
    cycle: int
    lr: float | list[float]
    temperature: float | list[float]
    zeta: float
    energy_batch: list[float] | None  # batch estimate of U at this θ, on a batch drawn after it, nats
    energy_full: list[float] | None  # U at this θ over all data, nats
    log_weight: list[float] | None  # zeta log psi(U) with the psi of that moment
    psi_frozen: bool
    file: str
    bytes: int
    sha256: str
    format_version: int = FORMAT_VERSION


class SampleStore:
    """The folder `samples/` of a run directory; one writer per stack, any number of readers.

    A file is written under a temporary name, synced and renamed; its index line comes last. A line that a crash cut
    short fails its checksum and counts as not written.
    """

    def __init__(self, run_dir: str | Path):
        self.run_dir = Path(run_dir)
        self.folder = self.run_dir / "samples"

    def write(self, tensors: Mapping[str, Tensor], **fields: Any) -> Record:
        """Write one file of tensors (C, ...) and its index line. fields: those of Record but file, bytes, sha256.

        Raises StoreError when the disk is full or not writable; what was written before stays valid.
        """
        step, stack = fields["step"], fields["stack"]
        # One header entry: safetensors writes several in random order, and the same run should write the same bytes.
        header = {"format_version": str(FORMAT_VERSION)}
        data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, metadata=header)
        name = f"{step:08d}-{stack}.safetensors"
        record = Record(**fields, file=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        write_atomically(self.folder / name, data)
        self._append(record)
        return record

    def write_weighting(self, stack: int, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Write `weighting-<stack>.safetensors`: bin edges, log psi, zeta, T per chain; about: names of its kind."""
        header = {"about": json.dumps(about, sort_keys=True)}
        data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, header)
        write_atomically(self.folder / f"weighting-{stack}.safetensors", data)

    def about_weighting(self, stack: int) -> dict[str, str]:
        """`energy` (batch, ema or full: what psi was fitted on) and `weighting` (AdaptiveWeight, ...)."""
        with safe_open(self.folder / f"weighting-{stack}.safetensors", "pt") as f:
            return json.loads(f.metadata()["about"])

    def weighting(self, stack: int) -> dict[str, Tensor] | None:
        path = self.folder / f"weighting-{stack}.safetensors"
        if not path.exists():
            return None
        try:
            return safetensors.torch.load_file(path)
        except SafetensorError as error:
            raise StoreError(f"{path} is not a whole safetensors file ({error}): finish or repeat the run") from error

    def truncate(self, stack: int, step: int) -> None:
        """Forget what was written after `step`: a run that resumes there will write it again."""
        found = self._read_index(self._index(stack))
        kept = [r for r in found if r.step <= step]
        if self._index(stack).exists():
            write_atomically(self._index(stack), "".join(_line(r) for r in kept).encode())
        for record in found:
            if record.step > step:
                (self.folder / record.file).unlink(missing_ok=True)

    def has_records(self, stack: int) -> bool:
        return bool(self._read_index(self._index(stack)))

    def records(self) -> list[Record]:
        """All records of all stacks, by step, then stack."""
        found = [r for path in sorted(self.folder.glob("index-*.jsonl")) for r in self._read_index(path)]
        if not found:
            raise StoreError(f"no samples in {self.folder}: the run kept none, or this is not a run directory")
        return sorted(found, key=lambda r: (r.step, r.stack))

    def read(self, record: Record) -> dict[str, Tensor]:
        """The tensors (C, ...) of one record. Raises StoreError naming a file that is missing, cut short or altered."""
        path = self.folder / record.file
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(
                f"sample file {path} cannot be read ({error.strerror}); skip_bad=true uses the rest"
            ) from error
        if len(data) != record.bytes:
            raise StoreError(
                f"sample file {path} has {len(data)} of {record.bytes} bytes: cut short; skip_bad=true uses the rest"
            )
        if hashlib.sha256(data).hexdigest() != record.sha256:
            raise StoreError(
                f"sample file {path} was altered: its sha256 differs from the index; skip_bad=true uses the rest"
            )
        return safetensors.torch.load(data)

    def _index(self, stack: int) -> Path:
        return self.folder / f"index-{stack}.jsonl"

    def _append(self, record: Record) -> None:
        with disk_errors(self._index(record.stack)), open(self._index(record.stack), "ab") as f:
            f.write(_line(record).encode())
            f.flush()
            os.fsync(f.fileno())

    def _read_index(self, path: Path) -> list[Record]:
        if not path.exists():
            return []
        lines = path.read_bytes().split(b"\n")
        records = []
        for number, line in enumerate(lines[:-1], 1):  # text after the last newline is a line that a crash cut short
            record = _parse(line)
            if record is None:
                raise StoreError(
                    f"line {number} of {path} is damaged: its checksum fails; delete that line to use the rest"
                )
            records.append(record)
        return records


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def _line(record: Record) -> str:
    fields = asdict(record)
    return json.dumps({**fields, "checksum": _checksum(fields)}) + "\n"


def _parse(line: bytes) -> Record | None:
    try:
        fields = json.loads(line)
        checksum = fields.pop("checksum")
        if checksum != _checksum(fields):
            return None
        if fields["format_version"] != FORMAT_VERSION:
            raise StoreError(
                f"samples of format {fields['format_version']}; this bdl reads format {FORMAT_VERSION} only"
            )
        return Record(**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
