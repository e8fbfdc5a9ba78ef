"""The index of the samples of one stack: one line per file, whose sha256 the manifest of the stack knows."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bdl.disk.files import read_file
from bdl.disk.manifest import Entry
from bdl.errors import BdlWarning, StoreError

FORMAT_VERSION = 2
_FILE = re.compile(r"\w[\w.-]*\.safetensors")  # a plain name: what it names lies in the folder of the index
_SAMPLE = re.compile(r"(\d{8,})-(0|[1-9]\d*)\.safetensors")


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
    format_version: int = FORMAT_VERSION

    def line(self) -> bytes:
        """The line of the index."""
        return json.dumps(asdict(self)).encode() + b"\n"

    def counting(self, excluded: Container[int]) -> list[int]:
        """The rows of the chains that are not excluded."""
        return [row for row, chain in enumerate(self.chains) if chain not in excluded]

    def of_rows(self, rows: Sequence[int]) -> Record:
        """The record of these rows of its file alone."""
        each = {name: value for name, value in asdict(self).items() if isinstance(value, list)}
        return replace(self, **{name: [value[row] for row in rows] for name, value in each.items()})


def sample_name(step: int, stack: int, **_: Any) -> str:
    """The name of the sample file of a step and a stack."""
    return f"{step:08d}-{stack}.safetensors"


def step_and_stack(name: str) -> tuple[int, int] | None:
    """The step and the stack of a sample file; None for another name."""
    named = _SAMPLE.fullmatch(name)
    return None if named is None else (int(named[1]), int(named[2]))


def sample_files(folder: Path) -> dict[tuple[int, int], Path]:
    """The sample files of a folder by (step, stack), whether a manifest lists them or not."""
    named = ((step_and_stack(path.name), path) for path in sorted(folder.glob("*.safetensors")))
    return {key: path for key, path in named if key is not None}


def read_index(path: Path, stack: int, listed: Iterable[Entry], skip_bad: bool = False) -> list[Record]:
    """The records of the samples that the manifest lists. Other lines of the file were not written to their end.

    skip_bad: leave out samples whose line is damaged or lost, each with a warning. Raises StoreError for one otherwise,
    for another format, and for a line of another stack.
    """
    lines = {line_hash(line): line for line in read_lines(path)}
    records: dict[int, Record] = {}
    for number, entry in enumerate(listed, 1):
        record = parse_line(lines.get(entry.line or "", b""))
        if record is None or entry.path != f"samples/{record.file}" or record.step in records:
            fault = f"line {number} of {path} is damaged or lost, that of {entry.path}"
            if not skip_bad:
                raise StoreError(
                    f"{fault}: restore it, or remove {path.parents[1] / 'checkpoints'}, and the same command of "
                    "train.py draws all samples again; skip_bad=true uses the rest"
                )
            warnings.warn(f"left out: {fault}", BdlWarning, stacklevel=2)
            continue
        if record.stack != stack:
            raise StoreError(f"line {number} of {path} belongs to stack {record.stack}: is it a copy? Remove it")
        records[record.step] = record
    return list(records.values())


def read_lines(path: Path) -> list[bytes]:
    """The lines of a file, each with its newline; none if there is no such file."""
    try:
        return [line + b"\n" for line in read_file(path).split(b"\n")[:-1]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}): restore it") from error


def line_hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def parse_line(line: bytes) -> Record | None:
    """The record of an index line; None if the line is damaged.

    Raises StoreError for another format, and for a file that is not in the folder of the index.
    """
    try:
        fields = json.loads(line)
        if fields["format_version"] != FORMAT_VERSION:
            raise StoreError(
                f"samples of format {fields['format_version']}; this bdl reads format {FORMAT_VERSION} only"
            )
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
    lists = [value for value in asdict(record).values() if isinstance(value, list)]
    if len(set(record.chains)) < len(record.chains) or {len(value) for value in lists} != {len(record.chains)}:
        raise ValueError("each list has one entry for each of the different chains")
    return record
