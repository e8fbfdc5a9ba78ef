"""The index of the samples of one stack: one checksummed line per file, and the rolling hash over its lines.

A sample file repeats its line in its header, so a lost index can be made again from the files.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bdl.errors import StoreError
from bdl.files import read_file

FORMAT_VERSION = 1
_NAME = re.compile(r"index-(0|[1-9]\d*)\.jsonl")
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

    def line(self) -> str:
        """The line of the index, with its checksum."""
        fields = asdict(self)
        return json.dumps({**fields, "checksum": _checksum(fields)}) + "\n"

    def counting(self, excluded: Container[int]) -> list[int]:
        """The rows of the chains that are not excluded."""
        return [row for row, chain in enumerate(self.chains) if chain not in excluded]

    def of_rows(self, rows: Sequence[int]) -> Record:
        """The record of these rows of its file alone."""
        each = {name: value for name, value in asdict(self).items() if isinstance(value, list)}
        return replace(self, **{name: [value[row] for row in rows] for name, value in each.items()})

    def header(self, tensors: Mapping[str, Tensor]) -> dict[str, str]:
        """The metadata of the sample file: the fields that do not follow from its bytes, and a checksum of its tensors.

        They are a single entry, because safetensors writes several entries in random order.
        """
        fields = {k: v for k, v in asdict(self).items() if k not in ("file", "bytes", "sha256")}
        return {"record": json.dumps({**fields, "crc32": _crc32(tensors)}, sort_keys=True)}


@dataclass(frozen=True)
class Digest:
    """How many lines an index has, and a hash of all of them. Adding a line takes the same time for any number."""

    count: int = 0
    hash: str = ""

    def add(self, records: Iterable[Record]) -> Digest:
        digest = self
        for record in records:
            rolled = hashlib.sha256((digest.hash + record.line()).encode()).hexdigest()
            digest = Digest(digest.count + 1, rolled)
        return digest


def stack_of(index: Path) -> int | None:
    """The stack whose index has this name; None for a name like theirs, such as that of a copy."""
    name = _NAME.fullmatch(index.name)
    return None if name is None else int(name[1])


def index_files(folder: Path) -> dict[int, Path]:
    """The index of every stack. Raises StoreError for a file with a name like theirs, such as a copy."""
    files = {}
    for path in sorted(folder.glob("index-*.jsonl")):
        if (stack := stack_of(path)) is None:
            raise StoreError(f"{path} is the index of no stack: its samples would count twice; remove this copy")
        files[stack] = path
    return files


def sample_name(step: int, stack: int, **_: Any) -> str:
    """The name of the sample file of a step and a stack."""
    return f"{step:08d}-{stack}.safetensors"


def sample_files(folder: Path) -> dict[tuple[int, int], Path]:
    """The sample files of a folder by (step, stack), whether an index lists them or not."""
    named = ((_SAMPLE.fullmatch(path.name), path) for path in folder.glob("*.safetensors"))
    return {(int(name[1]), int(name[2])): path for name, path in sorted(named, key=str) if name is not None}


def read_index(path: Path, stack: int) -> list[Record]:
    """The records of an index; none if there is no such file. A last line that was cut short counts as not written.

    Raises StoreError for a damaged line, one of another stack, and one that repeats a step.
    """
    records: dict[int, Record] = {}
    for number, record in read_lines(path):
        if record is None:
            raise StoreError(
                f"line {number} of {path} is damaged: its checksum does not match; bdl verify run={path.parents[1]} "
                "repair=true makes it again, or delete it to use the rest"
            )
        if record.stack != stack:
            raise StoreError(f"line {number} of {path} belongs to stack {record.stack}: is it a copy? Remove it")
        if record.step in records:
            raise StoreError(
                f"line {number} of {path} repeats step {record.step}: its samples would count twice; bdl verify "
                f"run={path.parents[1]} repair=true removes it"
            )
        records[record.step] = record
    return list(records.values())


def read_lines(path: Path) -> list[tuple[int, Record | None]]:
    """(number, record) of every line, None for a damaged one. Raises StoreError for another format.

    A last line without its newline counts if it is whole.
    """
    try:
        *lines, last = read_file(path).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}): restore it") from error
    numbered = [(number, _parse(line)) for number, line in enumerate(lines, 1)]
    cut = _parse(last) if last else None
    return numbered if cut is None else [*numbered, (len(numbered) + 1, cut)]


def record_of(path: Path) -> Record | None:
    """The record that a sample file's header holds; None for a damaged file, a copy, and one that has none."""
    try:
        data = read_file(path)
        with safe_open(path, "pt") as f:
            fields = json.loads((f.metadata() or {})["record"])
        if fields.pop("crc32") != _crc32(safetensors.torch.load(data)) or path.name != sample_name(**fields):
            return None
        return _checked(Record(**fields, file=path.name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError):
        return None


def _parse(line: bytes) -> Record | None:
    """The record of an index line; None if the line is damaged.

    Raises StoreError for another format, and for a file that is not in the folder of the index.
    """
    try:
        fields = json.loads(line)
        checksum = fields.pop("checksum")
        if checksum != _checksum(fields):
            return None
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


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def _crc32(tensors: Mapping[str, Tensor]) -> int:
    """A checksum of names and bytes. A file without a line has no other."""
    value = 0
    for name, tensor in sorted(tensors.items()):
        whole = tensor.detach().cpu().contiguous()
        flat = whole.as_strided((whole.numel(),), (1,))  # a tensor of one number is contiguous with any stride
        value = zlib.crc32(flat.view(torch.uint8).numpy().data, zlib.crc32(name.encode(), value))
    return value
