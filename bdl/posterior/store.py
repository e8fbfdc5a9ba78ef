"""Samples on disk: one safetensors file per kept step and stack, a line in the index, and one in the manifest."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from bdl.disk.files import append_line, read_file, sweep_leftovers, write_atomically
from bdl.disk.manifest import SAMPLE, Entry, Manifest, manifests_of, read_listed
from bdl.errors import BdlWarning, StoreError
from bdl.posterior.frozen import FILE as FROZEN
from bdl.posterior.frozen import FrozenPart, frozen_names
from bdl.posterior.index import Record, line_hash, read_index, sample_files, sample_name, step_and_stack
from bdl.posterior.tensors import copies_of, stacked_tensors
from bdl.snapshot import Sampled, describe_target


class SampleStore:
    """The folder `samples/` of a run directory: one writer per stack, any number of readers.

    A file is written to a temporary name, synced and renamed. Then its line is written to the index, and last its line
    to the manifest of the stack: a sample that no manifest lists counts as not written.

    skip_bad: `records` leaves out samples whose line in the index is damaged or lost, each with a warning.
    """

    def __init__(self, run_dir: str | Path, skip_bad: bool = False):
        self.run_dir, self.skip_bad = Path(run_dir), skip_bad
        self.folder = self.run_dir / "samples"
        self._manifests: dict[int | None, Manifest] = {}
        self._verified: dict[str, tuple[str, int, int, int]] = {}  # files whose checksum was right, as they were then
        self._frozen: FrozenPart | None = None  # the part of the network that `append` writes once

    def write(self, tensors: Mapping[str, Tensor], **fields: Any) -> Record:
        """Write one file of tensors (C, ...) and its lines; returns the line of the index.

        fields: the fields of Record, except file, bytes and sha256.

        Raises StoreError if the disk is full or not writable. Earlier samples stay valid.
        """
        stack, name = fields["stack"], sample_name(**fields)
        data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})
        record = Record(**fields, file=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        manifest = self.manifest(stack)
        write_atomically(self.folder / name, data, make_folder=not manifest.entries())
        append_line(self._index(stack), record.line())
        manifest.add(f"samples/{name}", SAMPLE, record.bytes, record.sha256, line_hash(record.line()))
        return record

    def manifest(self, stack: int) -> Manifest:
        """What lists the samples of a stack, and the files that describe them."""
        return self._manifests.setdefault(stack, Manifest(self.run_dir, stack))

    def append(self, sampler: Sampled, net: nn.Module, loss: Any = None) -> Record:
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
        now = sampler.snapshot()
        stack = now.stack
        last = max((_step(entry) for entry in self.manifest(stack).samples()[-1:]), default=-1)
        if last >= now.step:
            raise StoreError(
                f"{self.folder} holds samples up to step {last}, and this sampler is at step {now.step}: choose "
                f"another folder; to continue a run from there, call store.truncate({stack}, {now.step - 1}) first"
            )
        recorded = self.target() if any(m.samples() for m in self._all_manifests()) else None
        if self._frozen is None:
            self._frozen = FrozenPart(net, sampler, None if recorded is None else frozen_names(recorded))
        if recorded is not None:
            self._frozen.check(self.folder, recorded)
        tensors = stacked_tensors(net, sampler.chains, self._frozen.tensors)
        if last < 0:
            self.write_target(describe_target(sampler, loss, tensors), stack, self._frozen)
        if (psi := sampler.psi()) is not None:
            self.write_weighting(stack, *psi)
        self.write_excluded(stack, sampler.excluded())
        copies = copies_of(now.rows, tensors, sampler.chains)
        return self.write(copies, energy_batch=None, log_weight=now.log_weight, **now.fields())

    def write_target(self, target: Mapping[str, Any], stack: int = 0, frozen: FrozenPart | None = None) -> None:
        """Write target.json, see `describe_target`.

        stack: of the writer. frozen: what no sample holds, which gets a file of its own.
        """
        if frozen is not None and frozen.tensors:
            self._write(stack, FROZEN, "frozen", frozen.as_bytes())
            target = {**target, **frozen.entry()}
        self._write(stack, "target.json", "target", json.dumps(target, indent=1, sort_keys=True).encode())

    def write_weighting(self, stack: int, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Write `weighting-<stack>.safetensors`: bin edges, log psi, zeta and T per chain.

        about: the names `energy` and `weighting`, see `about_weighting`.
        """
        contiguous = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
        data = safetensors.torch.save(contiguous, {"about": json.dumps(about, sort_keys=True)})
        self._write(stack, f"weighting-{stack}.safetensors", "weighting", data)

    def write_excluded(self, stack: int, steps: Mapping[int, int]) -> None:
        """Write the numbers of the chains whose samples do not count, with the steps at which they diverged."""
        if steps:
            named = {str(number): step for number, step in steps.items()}
            self._write(stack, f"excluded-{stack}.json", "excluded", json.dumps(named, indent=1).encode())

    def excluded(self, stack: int) -> dict[int, int]:
        """The step of divergence of every chain of a stack whose samples do not count. Raises StoreError if damaged."""
        steps = self._read_json(f"excluded-{stack}.json")
        return {int(number): step for number, step in (steps or {}).items()}

    def about_weighting(self, stack: int) -> dict[str, str] | None:
        """`energy`: the energy that psi was fitted on (batch, ema or full). `weighting`: its class (AdaptiveWeight).

        None if the stack wrote no weighting. Raises StoreError for a damaged file.
        """
        return None if (read := self._read_weighting(stack)) is None else read[1]

    def weighting(self, stack: int) -> dict[str, Tensor] | None:
        """The tensors of `write_weighting`, None if the stack wrote none. Raises StoreError for a damaged file."""
        return None if (read := self._read_weighting(stack)) is None else read[0]

    def truncate(self, stack: int, step: int, last_hash: str | None = None) -> None:
        """Remove the samples of a stack after `step`: a run that resumes there writes them again.

        last_hash: of the manifest as it was at that step. Raises StoreError, and removes nothing, if no line of the
        manifest has it, or if samples up to there are missing.
        """
        sweep_leftovers(self.folder)
        manifest = self.manifest(stack)
        kept = [] if step <= 0 else self._up_to(manifest, step, last_hash)  # a run that starts again reads nothing
        records = read_index(self._index(stack), stack, [entry for entry in kept if entry.kind == SAMPLE])
        self._refuse_missing(records)
        files = {record.file for record in records}
        for (_, of_stack), path in sample_files(self.folder).items():
            if of_stack == stack and path.name not in files:
                path.unlink(missing_ok=True)
        lines = b"".join(record.line() for record in records)
        if not lines:
            self._index(stack).unlink(missing_ok=True)
        elif read_file(self._index(stack)) != lines:
            write_atomically(self._index(stack), lines)
        manifest.cut(len(kept))

    def has_records(self, stack: int) -> bool:
        return bool(self.manifest(stack).samples())

    def has_files(self, stack: int) -> bool:
        """Whether there are sample files of a stack, listed or not."""
        return any(of_stack == stack for _, of_stack in sample_files(self.folder))

    def records(self) -> list[Record]:
        """All records of all stacks, sorted by step, then by stack. Raises StoreError if there are none."""
        listed = {m.stack: m.samples() for m in self._all_manifests() if m.stack is not None}
        each = (read_index(self._index(s), s, entries, self.skip_bad) for s, entries in listed.items())
        if not (records := [record for of_stack in each for record in of_stack]):
            what = "the run kept none, or this is not a run directory"
            if sample_files(self.folder):
                what = "its sample files are in no manifest, or their lines are lost: restore manifest and index"
            raise StoreError(f"no samples in {self.folder}: {what}")
        return sorted(records, key=lambda r: (r.step, r.stack))

    def warn_of_unlisted(self) -> None:
        """Warn of sample files that no manifest lists: their lines were lost, or a run is about to write them."""
        listed = {entry.path for manifest in self._all_manifests() for entry in manifest.samples()}
        unlisted = [p.name for p in sample_files(self.folder).values() if f"samples/{p.name}" not in listed]
        if unlisted:
            warnings.warn(
                f"{len(unlisted)} sample files in {self.folder} are in no manifest and are left out, {unlisted[0]} "
                "first: restore the manifest, or give the command of the run in another folder",
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
        if (target := self._read_json("target.json")) is None:
            raise StoreError(
                f"{self.run_dir} is not a run directory, or its manifest was lost: none lists samples/target.json"
            )
        return target

    def has_target(self) -> bool:
        return any(manifest.versions("samples/target.json") for manifest in self._all_manifests())

    def _all_manifests(self) -> list[Manifest]:
        return [self._manifests.setdefault(m.stack, m) for m in manifests_of(self.run_dir)]

    def _write(self, stack: int, name: str, kind: str, data: bytes) -> None:
        self.manifest(stack).write(f"samples/{name}", kind, data)

    def _read_json(self, name: str) -> dict[str, Any] | None:
        """A mapping, None where no manifest lists the file. Raises StoreError for a damaged one."""
        if (data := read_listed(self._all_manifests(), f"samples/{name}")) is None:
            return None
        try:
            content = json.loads(data)
            if not isinstance(content, dict):
                raise ValueError("it is no mapping")
            return content
        except ValueError as error:
            raise StoreError(f"{self.folder / name} is damaged ({error}): restore it") from error

    def _read_weighting(self, stack: int) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        name = f"weighting-{stack}.safetensors"
        if (data := read_listed(self._all_manifests(), f"samples/{name}")) is None:
            return None
        try:
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            return safetensors.torch.load(data), json.loads(header["__metadata__"]["about"])
        except Exception as error:  # the parsers may raise anything
            raise StoreError(f"{self.folder / name} is no whole safetensors file ({error}): repeat the run") from error

    def _index(self, stack: int) -> Path:
        return self.folder / f"index-{stack}.jsonl"

    def _up_to(self, manifest: Manifest, step: int, last_hash: str | None) -> list[Entry]:
        """The lines of a manifest up to a hash, or else up to the last sample that is not after `step`."""
        if last_hash is None:
            entries = manifest.entries()
            kept = [i for i, entry in enumerate(entries, 1) if entry.kind == SAMPLE and _step(entry) <= step]
            return entries[: max(kept, default=0)]
        entries = manifest.first_entries()
        hashes = [entry.hash for entry in entries]
        if last_hash not in hashes:
            raise StoreError(
                f"the checkpoint knows samples up to step {step}, and {manifest.path} does not list them: restore it, "
                f"or remove {self.run_dir / 'checkpoints'}, and the same command draws all samples again"
            )
        return entries[: hashes.index(last_hash) + 1]

    def _refuse_missing(self, records: list[Record]) -> None:
        """Raise StoreError if files are not there or have another size."""
        sizes = {path.name: path.stat().st_size for path in self.folder.glob("*.safetensors")}
        bad = [r.file for r in records if sizes.get(r.file) != r.bytes]
        if bad:
            raise StoreError(
                f"{len(bad)} of {len(records)} sample files in {self.folder} are missing or cut short, {bad[0]} first: "
                f"restore them, or remove {self.run_dir / 'checkpoints'}, and the same command draws all samples again"
            )


def _step(entry: Entry) -> int:
    """The step of a listed sample. Raises StoreError for another name."""
    named = step_and_stack(entry.path.removeprefix("samples/"))
    if named is None:
        raise StoreError(
            f"a manifest names the sample {entry.path!r}, which is no plain name: do not use these samples"
        )
    return named[0]


def _unusable(path: Path, fault: str) -> StoreError:
    return StoreError(f"sample file {path} {fault}; skip_bad=true uses the rest")
