"""The samples of one stack: a line of the index for each file, and a line of the manifest that vouches for both."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bdl.disk.files import append_line, parse_json, read_file, write_atomically
from bdl.disk.manifest import SAMPLE, Entry, Manifest, digest
from bdl.errors import BdlWarning, StoreError

INDEX_VERSION = 2
_FILE = re.compile(r"\w[\w.-]*\.safetensors")  # a plain name: what it names lies in the folder of the index
_SAMPLE = re.compile(r"(\d{8,})-(0|[1-9]\d*)\.safetensors")  # step and stack


@dataclass(frozen=True)
class Record:
    """One line of `index-<stack>.jsonl`: a kept step of one stack of chains. Lists have one entry per chain."""

    step: int
    stack: int
    chains: list[int]  # numbers of the chains, counted through the stacks: stack 1 follows stack 0
    cycle: int
    lr: float | list[float]
    temperature: float | list[float]
    zeta: float
    energy_batch: list[float] | None  # U at this θ, estimated on the batch of the next step, nats
    energy_full: list[float] | None  # U at this θ on all data, nats
    log_weight: list[float] | None  # zeta log psi(U), with psi as it was at this step
    psi_frozen: bool
    file: str
    bytes: int
    sha256: str
    format_version: int = INDEX_VERSION
    precision: list[list[float]] | None = None  # learned by the prior; absent from the line otherwise

    def line(self) -> bytes:
        fields = dict(vars(self))  # asdict would copy lists of thousands of chains, number by number
        if self.precision is None:
            del fields["precision"]
        return json.dumps(fields).encode() + b"\n"

    def of_rows(self, rows: Sequence[int]) -> Record:
        """The record of these rows of its file alone."""
        each = {name: value for name, value in vars(self).items() if isinstance(value, list)}
        return replace(self, **{name: [value[row] for row in rows] for name, value in each.items()})


def temperatures_of(records: Iterable[Record]) -> list[float]:
    """The different temperatures of the chains, sorted."""
    return sorted({t for r in records for t in (r.temperature if isinstance(r.temperature, list) else [r.temperature])})


def sample_files(folder: Path) -> dict[tuple[int, int], Path]:
    """The sample files of a folder by (step, stack), whether a manifest lists them or not."""
    named = ((_SAMPLE.fullmatch(path.name), path) for path in sorted(folder.glob("*.safetensors")))
    return {(int(name[1]), int(name[2])): path for name, path in named if name}


class Index:
    """`index-<stack>.jsonl`, and the manifest of the stack: a sample that the manifest does not list is not written.

    skip_bad: `records` leaves out samples whose line is damaged or lost, each with a warning.
    """

    def __init__(self, run_dir: Path, stack: int, skip_bad: bool = False):
        self.stack, self.skip_bad = stack, skip_bad
        self.path = run_dir / "samples" / f"index-{stack}.jsonl"
        self.manifest = Manifest(run_dir, stack, skip_bad)

    def append(self, record: Record) -> None:
        """Write the lines of a file that is there. Raises StoreError if the disk is full or not writable."""
        line = record.line()
        append_line(self.path, line)
        self.manifest.add(f"samples/{record.file}", SAMPLE, record.bytes, record.sha256, digest(line))

    def last_step(self) -> int:
        """The step of the last sample, -1 without one."""
        return max((_step(entry) for entry in self.manifest.samples()[-1:]), default=-1)

    def records(self) -> list[Record]:
        """The records of the samples that the manifest lists. Raises StoreError for a bad line unless skip_bad."""
        return self._records_of(self.manifest.samples())

    def truncate(self, step: int, last_hash: str | None) -> None:
        """Remove the samples after `step`, see `SampleStore.truncate`."""
        kept = [] if step <= 0 else self._up_to(step, last_hash)  # a run that starts again reads nothing
        records = self._records_of([entry for entry in kept if entry.kind == SAMPLE])
        self._refuse_missing(records)
        files = {record.file for record in records}
        for (_, of_stack), path in sample_files(self.path.parent).items():
            if of_stack == self.stack and path.name not in files:
                path.unlink(missing_ok=True)
        lines = b"".join(record.line() for record in records)
        if not lines:
            self.path.unlink(missing_ok=True)
        elif read_file(self.path) != lines:
            write_atomically(self.path, lines)
        self.manifest.cut(len(kept))

    def _records_of(self, listed: Iterable[Entry]) -> list[Record]:
        lines = {digest(line): line for line in read_lines(self.path)}
        records: dict[int, Record] = {}
        for number, entry in enumerate(listed, 1):
            record = parse_line(lines.get(entry.line or "", b""))
            if record is None or entry.path != f"samples/{record.file}" or record.step in records:
                fault = f"line {number} of {self.path} is damaged or lost, that of {entry.path}"
                if not self.skip_bad:
                    raise StoreError(f"{fault}: restore it, or {self._again()}; skip_bad=true uses the rest")
                warnings.warn(f"left out: {fault}", BdlWarning, stacklevel=2)
                continue
            if record.stack != self.stack:
                place = f"line {number} of {self.path}"
                raise StoreError(f"{place} belongs to stack {record.stack}: is it a copy? Remove it")
            records[record.step] = record
        return list(records.values())

    def _up_to(self, step: int, last_hash: str | None) -> list[Entry]:
        """The lines of the manifest up to a hash, or else up to the last sample that is not after `step`."""
        if last_hash is None:
            entries = self.manifest.entries()
            kept = [i for i, entry in enumerate(entries, 1) if entry.kind == SAMPLE and _step(entry) <= step]
            return entries[: max(kept, default=0)]
        entries = self.manifest.first_entries()
        hashes = [entry.hash for entry in entries]
        if last_hash not in hashes:
            raise StoreError(
                f"the checkpoint knows samples up to step {step}, and {self.manifest.path} does not list them: "
                f"restore it, or {self._again()}"
            )
        return entries[: hashes.index(last_hash) + 1]

    def _refuse_missing(self, records: list[Record]) -> None:
        """Raise StoreError if files are not there or have another size."""
        sizes = {path.name: path.stat().st_size for path in self.path.parent.glob("*.safetensors")}
        if bad := [r.file for r in records if sizes.get(r.file) != r.bytes]:
            raise StoreError(
                f"{len(bad)} of {len(records)} sample files in {self.path.parent} are missing or cut short, {bad[0]} "
                f"first: restore them, or {self._again()}"
            )

    def _again(self) -> str:
        return f"remove {self.path.parents[1] / 'checkpoints'}, and the same command draws all samples again"


def read_lines(path: Path) -> list[bytes]:
    """The lines of a file, each with its newline; [] without the file."""
    try:
        return [line + b"\n" for line in read_file(path).split(b"\n")[:-1]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}): restore it") from error


def parse_line(line: bytes) -> Record | None:
    """The record of an index line, None if it is damaged. Raises StoreError for another format, or a file elsewhere."""
    try:
        fields = parse_json(line)
        if (version := fields["format_version"]) != INDEX_VERSION:
            raise StoreError(f"samples of format {version}; this bdl reads format {INDEX_VERSION} only")
        return _checked(Record(**fields))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _checked(record: Record) -> Record:
    """The record. Raises StoreError for a file outside of the folder, and TypeError or ValueError for other values."""
    if not (isinstance(record.file, str) and _FILE.fullmatch(record.file)):
        raise StoreError(f"an index names the file {record.file!r}, which is no plain name: do not use these samples")
    numbers = (record.step, record.stack, record.bytes, *record.chains)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise TypeError("steps, stacks, sizes and chains are whole numbers")
    lists = [value for value in vars(record).values() if isinstance(value, list)]
    if len(set(record.chains)) < len(record.chains) or {len(value) for value in lists} != {len(record.chains)}:
        raise ValueError("each list has one entry for each of the different chains")
    return record


def _step(entry: Entry) -> int:
    """The step of a listed sample. Raises StoreError for another name."""
    if (named := _SAMPLE.fullmatch(entry.path.removeprefix("samples/"))) is None:
        raise StoreError(
            f"a manifest names the sample {entry.path!r}, which is no plain name: do not use these samples"
        )
    return int(named[1])
