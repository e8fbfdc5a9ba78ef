"""Samples on disk: one safetensors file per kept step and stack, and one index line with a checksum per file."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from bdl.errors import BdlWarning, StoreError
from bdl.files import disk_errors, read_file, sweep_leftovers, write_atomically
from bdl.posterior.described import (
    read_target,
    read_weighting,
    target_as_bytes,
    weighting_as_bytes,
)
from bdl.posterior.frozen import FrozenPart, frozen_names
from bdl.posterior.index import (
    Digest,
    Record,
    index_files,
    read_index,
    read_lines,
    record_of,
    sample_files,
    sample_name,
)
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


class SampleStore:
    """The folder `samples/` of a run directory: one writer per stack, any number of readers.

    A sample file is written to a temporary name, synced and renamed. Its index line is written last. A last line that
    a crash cut short counts as not written. `digest` is the rolling hash by which a checkpoint knows its samples.
    """

    def __init__(self, run_dir: str | Path):
        self.run_dir = Path(run_dir)
        self.folder = self.run_dir / "samples"
        self._verified: dict[str, tuple[str, int, int, int]] = {}  # files whose checksum was right, as they were then
        self._digests: dict[int, Digest] = {}
        self._frozen: FrozenPart | None = None  # of the network that `append` keeps

    def write(self, tensors: Mapping[str, Tensor], **fields: Any) -> Record:
        """Write one file of tensors (C, ...) and its index line; returns the line.

        fields: the fields of Record, except file, bytes and sha256.

        Raises StoreError if the disk is full or not writable. Earlier samples stay valid.
        """
        step, stack = fields["step"], fields["stack"]
        name = sample_name(step, stack)
        record = Record(**fields, file=name, bytes=0, sha256="")
        contiguous = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
        data = safetensors.torch.save(contiguous, metadata=record.header(contiguous))
        record = replace(record, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        write_atomically(self.folder / name, data, make_folder=stack not in self._digests)
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
        stack = sampler.stack
        last = max((r.step for r in read_index(self._index(stack), stack)), default=-1)
        if last >= sampler.steps:
            raise StoreError(
                f"{self.folder} holds samples up to step {last}, and this sampler is at step {sampler.steps}: choose "
                f"another folder; to continue a run from there, call store.truncate({stack}, {sampler.steps - 1}) first"
            )
        recorded = self.target() if index_files(self.folder) else None
        if self._frozen is None:
            self._frozen = FrozenPart(net, sampler, None if recorded is None else frozen_names(recorded))
        if recorded is not None:
            self._frozen.check(self.folder, recorded)
        tensors = stacked_tensors(net, sampler.chains, self._frozen.tensors)
        fields = describe_state(sampler, 0, full_energy=True, freeze_weighting=True)
        weight = of_target(sampler, full_log_weight(sampler, fields["energy_full"]))
        if last < 0:
            self._frozen.write(self.folder)
            self.write_target(describe_target(sampler, loss, tensors) | self._frozen.entry())
        if (described := describe_weighting(sampler)) is not None:
            self.write_weighting(stack, *described)
        self.write_excluded(stack, sampler.survivors.excluded())
        return self.write(copies_of_target(sampler, tensors), energy_batch=None, log_weight=weight, **fields)

    def write_target(self, target: Mapping[str, Any]) -> None:
        """Write target.json: what must be equal for runs to be merged, and how to read the outputs."""
        write_atomically(self.folder / "target.json", target_as_bytes(target))

    def write_weighting(self, stack: int, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Write `weighting-<stack>.safetensors`: bin edges, log psi, zeta and T per chain.

        about: the names `energy` and `weighting`, see `about_weighting`.
        """
        write_atomically(self._weighting(stack), weighting_as_bytes(tensors, about))

    def write_excluded(self, stack: int, steps: Mapping[int, int]) -> None:
        """Write the numbers of the chains whose samples do not count, with the steps at which they diverged."""
        path = self._excluded(stack)
        if steps:
            write_atomically(path, target_as_bytes({str(number): step for number, step in steps.items()}))
        else:
            path.unlink(missing_ok=True)

    def excluded(self, stack: int) -> dict[int, int]:
        """The step of divergence of every chain of a stack whose samples do not count. Raises StoreError if damaged."""
        path = self._excluded(stack)
        steps = read_target(path) if path.exists() else {}
        return {int(number): step for number, step in steps.items()}

    def about_weighting(self, stack: int) -> dict[str, str] | None:
        """`energy`: the energy that psi was fitted on (batch, ema or full). `weighting`: its class (AdaptiveWeight).

        None if the stack wrote no weighting. Raises StoreError for a damaged file.
        """
        return None if (read := read_weighting(self._weighting(stack))) is None else read[1]

    def weighting(self, stack: int) -> dict[str, Tensor] | None:
        """The tensors of `write_weighting`, None if the stack wrote none. Raises StoreError for a damaged file."""
        return None if (read := read_weighting(self._weighting(stack))) is None else read[0]

    def truncate(self, stack: int, step: int, known: Digest | None = None) -> None:
        """Remove the samples of a stack after `step`: a run that resumes there writes them again.

        known: `digest` as it was at that step. The index is then made whole: damaged and doubled lines go, and lost
        lines come back from the headers of the sample files. Raises StoreError, and removes nothing, if the samples
        up to `step` are not those, or if files of them are missing.
        """
        sweep_leftovers(self.folder)
        kept = self._up_to(stack, step, known)
        self._refuse_missing(kept)
        index, lines = self._index(stack), "".join(r.line() for r in kept).encode()
        if index.exists() and index.read_bytes() != lines or kept and not index.exists():
            write_atomically(index, lines)
        for (of_step, of_stack), path in sample_files(self.folder).items():
            if of_stack == stack and of_step > step:
                path.unlink(missing_ok=True)
        self._digests[stack] = Digest().add(kept)

    def digest(self, stack: int) -> Digest:
        """The number of lines in the index of a stack, and a hash of all of them."""
        if stack not in self._digests:
            self._digests[stack] = Digest().add(read_index(self._index(stack), stack))
        return self._digests[stack]

    def has_records(self, stack: int) -> bool:
        return bool(read_index(self._index(stack), stack))

    def records(self) -> list[Record]:
        """All records of all stacks, sorted by step, then by stack. Raises StoreError if there are none."""
        records = [r for stack, path in index_files(self.folder).items() for r in read_index(path, stack)]
        if not records:
            raise StoreError(f"no samples in {self.folder}: the run kept none, or this is not a run directory")
        return sorted(records, key=lambda r: (r.step, r.stack))

    def warn_of_unlisted(self) -> None:
        """Warn of sample files that no index lists: their lines were lost, or a run is about to write them."""
        listed = {record.file for record in self.records()}
        unlisted = [path.name for path in sample_files(self.folder).values() if path.name not in listed]
        if unlisted:
            warnings.warn(
                f"{len(unlisted)} sample files in {self.folder} are in no index and are left out, {unlisted[0]} first: "
                f"bdl verify run={self.run_dir} repair=true lists them again",
                BdlWarning,
                stacklevel=2,
            )

    def read(self, record: Record) -> dict[str, Tensor]:
        """The tensors (C, ...) of one record. Raises StoreError if the file is missing, cut short or altered.

        The checksum is computed at the first reading, and again if the file has been written since.
        """
        path = self.folder / record.file
        try:
            status, data = path.stat(), read_file(path)
        except OSError as error:
            raise _unusable(path, f"cannot be read ({error.strerror})") from error
        if len(data) != record.bytes:
            raise _unusable(path, f"was cut short to {len(data)} of {record.bytes} bytes")
        version = (record.sha256, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        new = self._verified.get(record.file) != version
        if new and hashlib.sha256(data).hexdigest() != record.sha256:
            raise _unusable(path, "was altered: its sha256 differs from the index")
        try:
            tensors = safetensors.torch.load(data)
        except Exception as error:  # the parser may raise anything
            raise _unusable(path, f"is no safetensors file ({error})") from error
        if new and any(tensor.isnan().any() for tensor in tensors.values()):
            raise _unusable(path, "holds NaN")
        self._verified[record.file] = version
        return tensors

    def target(self) -> dict[str, Any]:
        """target.json: N, prior, loss, data, model, ... of the run. Raises StoreError if it cannot be read."""
        return read_target(self.folder / "target.json")

    def has_target(self) -> bool:
        return (self.folder / "target.json").exists()

    def _excluded(self, stack: int) -> Path:
        return self.folder / f"excluded-{stack}.json"

    def _weighting(self, stack: int) -> Path:
        return self.folder / f"weighting-{stack}.safetensors"

    def _index(self, stack: int) -> Path:
        return self.folder / f"index-{stack}.jsonl"

    def _append(self, record: Record) -> None:
        digest = self.digest(record.stack).add([record])
        with disk_errors(self._index(record.stack)), open(self._index(record.stack), "ab") as f:
            f.write(record.line().encode())
            f.flush()
            os.fsync(f.fileno())
        self._digests[record.stack] = digest

    def _up_to(self, stack: int, step: int, known: Digest | None) -> list[Record]:
        """The records of a stack up to `step`, in the order in which they were written."""
        if step <= 0:  # nothing is kept, so nothing can be damaged
            return []
        path = self._index(stack)
        if known is None:
            return [r for r in read_index(path, stack) if r.step <= step]
        most: list[Record] = []
        for records in self._readings(stack, step):
            if Digest().add(records) == known:
                return records
            most = max(most, records, key=len)
        fault = f"{known.count - len(most)} are missing" if len(most) < known.count else "they are not the same"
        raise StoreError(
            f"the checkpoint knows {known.count} samples up to step {step} in {path}, and {fault}: restore them, or "
            f"remove {self.run_dir / 'checkpoints'}, and the same command draws all samples again"
        )

    def _readings(self, stack: int, step: int) -> Iterator[list[Record]]:
        """What the records up to `step` may have been: by the index, with what it lacks, and by the files alone."""
        lines = {r.step: r for _, r in read_lines(self._index(stack)) if r and r.stack == stack and r.step <= step}
        yield list(lines.values())
        files = {s: p for (s, k), p in sample_files(self.folder).items() if k == stack and s <= step}
        headers = {s: record for s, path in files.items() if (record := record_of(path)) is not None}
        yield [r for _, r in sorted({**headers, **lines}.items())]
        yield [r for _, r in sorted(headers.items())]

    def _refuse_missing(self, records: list[Record]) -> None:
        """Raise StoreError if files are not there or have another size."""
        sizes = {path.name: path.stat().st_size for path in self.folder.glob("*.safetensors")}
        bad = [r.file for r in records if sizes.get(r.file) != r.bytes]
        if bad:
            raise StoreError(
                f"{len(bad)} of {len(records)} sample files in {self.folder} are missing or cut short, {bad[0]} first: "
                f"restore them, or remove {self.run_dir / 'checkpoints'}, and the same command draws all samples again"
            )


def _unusable(path: Path, fault: str) -> StoreError:
    return StoreError(f"sample file {path} {fault}; skip_bad=true uses the rest")
