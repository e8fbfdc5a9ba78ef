"""Samples on disk: one safetensors file per kept step and stack, and one index line with a checksum per file."""

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
from torch import Tensor, nn

from bdl.errors import StoreError
from bdl.files import disk_errors, sweep_leftovers, write_atomically
from bdl.posterior.snapshot import (
    SamplerState,
    copies_of_target,
    describe_state,
    describe_target,
    describe_weighting,
    full_log_weight,
    of_target,
    stacked_tensors,
)

FORMAT_VERSION = 1


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


class SampleStore:
    """The folder `samples/` of a run directory: one writer per stack, any number of readers.

    A sample file is written to a temporary name, synced and renamed. Its index line is written last. A last line that
    a crash cut short counts as not written.
    """

    def __init__(self, run_dir: str | Path):
        self.run_dir = Path(run_dir)
        self.folder = self.run_dir / "samples"
        self._verified: dict[str, tuple[str, int, int, int]] = {}  # files whose checksum was right, as they were then

    def write(self, tensors: Mapping[str, Tensor], **fields: Any) -> Record:
        """Write one file of tensors (C, ...) and its index line; returns the line.

        fields: the fields of Record, except file, bytes and sha256.

        Raises StoreError if the disk is full or not writable. Earlier samples stay valid.
        """
        step, stack = fields["step"], fields["stack"]
        # A single entry, because safetensors writes several entries in random order.
        header = {"format_version": str(FORMAT_VERSION)}
        data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, metadata=header)
        name = f"{step:08d}-{stack}.safetensors"
        record = Record(**fields, file=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        write_atomically(self.folder / name, data)
        self._append(record)
        return record

    def append(self, sampler: SamplerState, net: nn.Module, loss: Any = None) -> Record:
        """Keep the present state of a `bdl.Sampler` in a loop of one's own; call it after a step.

        The first call also writes `target.json`, and every call psi of a weighting. The energy of a state is recorded
        where `sampler.full_loss` gives it, because its energy on a new batch is known after the next step only.

        Args:
            sampler: whose parameters are those of the network.
            net: the network, or a `bdl.ChainStack`.
            loss: of the run, a likelihood or a loss of torch, so that predictions know what the outputs mean.

        Raises StoreError if the folder holds samples of this stack at this step or later, or the disk is full;
        DivergedError if the state is not finite.
        """
        stack, tensors = sampler.stack, stacked_tensors(net, sampler.chains)
        last = max((r.step for r in self._read_index(self._index(stack))), default=-1)
        if last >= sampler.steps:
            raise StoreError(
                f"{self.folder} holds samples up to step {last}, and this sampler is at step {sampler.steps}: choose "
                f"another folder; to continue a run from there, call store.truncate({stack}, {sampler.steps - 1}) first"
            )
        fields = describe_state(sampler, 0, full_energy=True, freeze_weighting=True)
        weight = of_target(sampler, full_log_weight(sampler, fields["energy_full"]))
        if last < 0:
            self.write_target(describe_target(sampler, loss, tensors))
        if (described := describe_weighting(sampler)) is not None:
            self.write_weighting(stack, *described)
        return self.write(copies_of_target(sampler, tensors), energy_batch=None, log_weight=weight, **fields)

    def write_target(self, target: Mapping[str, Any]) -> None:
        """Write target.json: what must be equal for runs to be merged, and how to read the outputs."""
        write_atomically(self.folder / "target.json", json.dumps(target, indent=1, sort_keys=True).encode())

    def write_weighting(self, stack: int, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Write `weighting-<stack>.safetensors`: bin edges, log psi, zeta and T per chain.

        about: the names `energy` and `weighting`, see `about_weighting`.
        """
        header = {"about": json.dumps(about, sort_keys=True)}
        data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, header)
        write_atomically(self.folder / f"weighting-{stack}.safetensors", data)

    def about_weighting(self, stack: int) -> dict[str, str]:
        """`energy`: the energy that psi was fitted on (batch, ema or full). `weighting`: its class (AdaptiveWeight)."""
        with safe_open(self.folder / f"weighting-{stack}.safetensors", "pt") as f:
            return json.loads(f.metadata()["about"])

    def weighting(self, stack: int) -> dict[str, Tensor] | None:
        """The tensors of `write_weighting`, None if the stack wrote none. Raises StoreError for a damaged file."""
        path = self.folder / f"weighting-{stack}.safetensors"
        if not path.exists():
            return None
        try:
            return safetensors.torch.load_file(path)
        except SafetensorError as error:
            raise StoreError(f"{path} is not a whole safetensors file ({error}): finish or repeat the run") from error

    def truncate(self, stack: int, step: int) -> None:
        """Remove the samples of a stack after `step`: a run that resumes there writes them again."""
        sweep_leftovers(self.folder)
        records = self._read_index(self._index(stack))
        kept = [r for r in records if r.step <= step]
        if self._index(stack).exists():
            write_atomically(self._index(stack), "".join(_line(r) for r in kept).encode())
        for record in records:
            if record.step > step:
                (self.folder / record.file).unlink(missing_ok=True)

    def has_records(self, stack: int) -> bool:
        """Has this stack written samples?"""
        return bool(self._read_index(self._index(stack)))

    def records(self) -> list[Record]:
        """All records of all stacks, sorted by step, then by stack. Raises StoreError if there are none."""
        records = [r for path in sorted(self.folder.glob("index-*.jsonl")) for r in self._read_index(path)]
        if not records:
            raise StoreError(f"no samples in {self.folder}: the run kept none, or this is not a run directory")
        return sorted(records, key=lambda r: (r.step, r.stack))

    def read(self, record: Record) -> dict[str, Tensor]:
        """The tensors (C, ...) of one record. Raises StoreError if the file is missing, cut short or altered.

        The checksum is computed at the first reading, and again if the file has been written since.
        """
        path = self.folder / record.file
        try:
            with open(path, "rb") as f:
                status, data = os.fstat(f.fileno()), f.read()
        except OSError as error:
            raise StoreError(
                f"sample file {path} cannot be read ({error.strerror}); skip_bad=true uses the rest"
            ) from error
        if len(data) != record.bytes:
            raise StoreError(
                f"sample file {path} was cut short to {len(data)} of {record.bytes} bytes; skip_bad=true uses the rest"
            )
        version = (record.sha256, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        if self._verified.get(record.file) != version:
            if hashlib.sha256(data).hexdigest() != record.sha256:
                raise StoreError(
                    f"sample file {path} was altered: its sha256 differs from the index; skip_bad=true uses the rest"
                )
            self._verified[record.file] = version
        return safetensors.torch.load(data)

    def target(self) -> dict[str, Any]:
        """target.json: N, prior, loss, data, model, ... of the run. Raises StoreError if it cannot be read."""
        path = self.folder / "target.json"
        try:
            return json.loads(path.read_text())
        except OSError as error:
            raise StoreError(
                f"{self.run_dir} is not a run directory: {path} cannot be read ({error.strerror})"
            ) from error

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
        for number, line in enumerate(lines[:-1], 1):  # after the last newline: a line that a crash cut short
            record = _parse(line)
            if record is None:
                raise StoreError(
                    f"line {number} of {path} is damaged: its checksum does not match; delete it to use the rest"
                )
            records.append(record)
        return records


def refuse_other_target(a: SampleStore, b: SampleStore) -> None:
    """Raise StoreError if two runs sampled different laws. It names the first key in which their targets differ."""
    difference = _first_difference(*(dict(s.target(), temperature=_temperatures(s)) for s in (a, b)))
    if difference is not None:
        key, *values = difference
        in_a, in_b = (brief(value) for value in values)
        raise StoreError(
            f"runs of different targets are not merged: {key} is {in_a} in {a.run_dir}, {in_b} in {b.run_dir}"
        )


def brief(value: Any) -> str:
    """A value of target.json in at most 60 characters, for a message; "absent" for None."""
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _first_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """(path, value of a, value of b) of the first key that differs, such as `prior.precision`.

    A missing key equals null. `type` is compared first: with another type most of the other keys differ as well.
    """
    for key in sorted(a.keys() | b.keys(), key=lambda k: (k != "type", k)):
        in_a, in_b = a.get(key), b.get(key)
        if isinstance(in_a, dict) and isinstance(in_b, dict):
            if inner := _first_difference(in_a, in_b):
                return f"{key}.{inner[0]}", inner[1], inner[2]
        elif in_a != in_b:
            return key, in_a, in_b
    return None


def _temperatures(store: SampleStore) -> list[float]:
    """The different temperatures at which a run kept samples, sorted."""
    temperatures = (r.temperature if isinstance(r.temperature, list) else [r.temperature] for r in store.records())
    return sorted({t for of_record in temperatures for t in of_record})


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def _line(record: Record) -> str:
    fields = asdict(record)
    return json.dumps({**fields, "checksum": _checksum(fields)}) + "\n"


def _parse(line: bytes) -> Record | None:
    """The record of an index line; None if the line is damaged. Raises StoreError for another format."""
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
