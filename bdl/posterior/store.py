"""Samples on disk: one safetensors file per kept step and stack, and the files that describe them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from bdl.disk.files import parse_json, write_atomically
from bdl.disk.manifest import Manifest, checked_file, digest, manifests_of, read_listed
from bdl.disk.owner import sweep_leftovers
from bdl.display import Shown, count_of
from bdl.errors import BdlWarning, StoreError
from bdl.likelihoods import law_note
from bdl.posterior.checked_files import CheckedFiles
from bdl.posterior.index import Index, Record, sample_files
from bdl.posterior.tensors import (
    FROZEN,
    FrozenPart,
    as_bytes,
    file_parts,
    frozen_names,
    read_whole,
    stacked_tensors,
)
from bdl.snapshot import Sampled, Snapshot, describe_target

COPIED = ("config.yaml", "preprocessing.json")  # files of a run that commands read
# The fields of Record where a file has no cycle, no weighting and no known energy
UNWEIGHTED: dict[str, Any] = dict(
    cycle=0, zeta=0.0, energy_batch=None, energy_full=None, log_weight=None, psi_frozen=False
)
HOT = 1000.0  # T_eff at T = 1, of batch noise: no step size that suits a mean loss comes near it


class SampleStore(Shown):
    """The folder `samples/` of a run directory: one writer per stack, any number of readers.

    A file is written to a temporary name, synced and renamed. Then its line is written to the index, and last its line
    to the manifest of the stack: a sample that no manifest lists counts as not written.

    skip_bad: samples whose line in the index or in the manifest is damaged or lost are left out, with a warning.
    """

    def __init__(self, run_dir: str | Path, skip_bad: bool = False):
        self.run_dir, self.skip_bad = Path(run_dir), skip_bad
        self.folder = self.run_dir / "samples"
        self._indices: dict[int, Index] = {}  # one for each stack
        self._files = CheckedFiles(self.folder)
        self._frozen: FrozenPart | None = None  # the part of the network that `append` writes once

    def shown(self) -> tuple[str, Mapping[str, str]]:
        title = f"SampleStore of {self.run_dir}"
        try:
            with warnings.catch_warnings(action="ignore", category=BdlWarning):
                records = self.records()
        except StoreError as error:
            return title, {"samples": str(error)}
        networks, size = sum(len(r.chains) for r in records), sum(r.bytes for r in records) / 2**20
        steps = f"{records[0].step:,} to {records[-1].step:,}"
        return title, {
            "samples": f"{count_of(networks, 'network')} in {count_of(len(records), 'file')}, {size:.1f} MiB",
            "steps": steps,
        }

    def write(self, tensors: Mapping[str, Tensor], **fields: Any) -> Record:
        """Write one file of tensors (C, ...) and its lines; returns the line of the index.

        fields: the fields of Record, except file, bytes and sha256; those of UNWEIGHTED are these if left out.

        Raises StoreError if the disk is full or not writable. Earlier samples stay valid.
        """
        name, parts = f"{fields['step']:08d}-{fields['stack']}.safetensors", file_parts(tensors)
        record = Record(**UNWEIGHTED | fields, file=name, bytes=sum(map(len, parts)), sha256=digest(*parts))
        index = self.index(record.stack)
        write_atomically(self.folder / name, *parts, make_folder=not index.manifest.entries())
        index.append(record)
        return record

    def index(self, stack: int) -> Index:
        return self._indices.setdefault(stack, Index(self.run_dir, stack, self.skip_bad))

    def manifest(self, stack: int) -> Manifest:
        """What lists the samples of a stack, and the files that describe them."""
        return self.index(stack).manifest

    def append(self, sampler: Sampled, net: nn.Module, loss: Any = None) -> Record:
        """Keep the present state of a `bdl.Sampler` in a loop that you wrote; call it after a step.

        The first call also writes `target.json`, and every call psi of a weighting. The energy of a state is recorded
        where `sampler.full_loss` gives it, because its energy on a new batch is known after the next step only. The
        first call warns of another law: batch noise that no mean loss has, as of a sum, and weighted or smoothed data.

        Args:
            sampler: moves the network's parameters.
            net: the network, or a `bdl.ChainStack`.
            loss: a likelihood or a loss of torch, from which predictions know what the outputs mean.

        Raises StoreError if the folder holds samples of this stack at this step or later, or the disk is full;
        DivergedError if the state is not finite.
        """
        now = sampler.snapshot()
        stack, last = now.stack, self.index(now.stack).last_step()
        if last >= now.step:
            raise StoreError(
                f"{self.folder} holds samples up to step {last}, and this sampler is at step {now.step}: choose "
                f"another folder; to continue a run from there, call store.truncate({stack}, {now.step - 1}) first"
            )
        recorded = self.target() if any(index.manifest.samples() for index in self._stacks()) else None
        names = None if recorded is None else frozen_names(recorded)
        self._frozen = self._frozen or FrozenPart(net, sampler, names)
        if recorded is not None:
            self.refuse_other_frozen(self._frozen, recorded)
        tensors = stacked_tensors(net, sampler.chains, self._frozen.tensors)
        if last < 0:
            _warn_of_other_laws(sampler, now, loss)
            self.write_target(describe_target(sampler, loss, tensors, net), stack, self._frozen)
        if (psi := sampler.psi()) is not None:
            self.write_weighting(stack, *psi)
        self.write_excluded(stack, sampler.excluded())
        which = slice(None) if len(now.rows) == (sampler.chains or 1) else now.rows
        kept = {name: tensor[which] for name, tensor in tensors.items()}  # views: nothing moves while they are written
        return self.write(kept, log_weight=now.log_weight, **now.fields())

    def write_target(self, target: Mapping[str, Any], stack: int = 0, frozen: FrozenPart | None = None) -> None:
        """Write target.json, see `describe_target`.

        stack: the stack of the writer. frozen: what no sample holds, which gets a file of its own.
        """
        if frozen is not None and frozen.tensors:
            self._write(stack, FROZEN, "frozen", *frozen.file_parts())
            target = {**target, **frozen.entry()}
        self._write(stack, "target.json", "target", json.dumps(target, indent=1, sort_keys=True).encode())

    def write_weighting(self, stack: int, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Write `weighting-<stack>.safetensors`: bin edges, log psi, zeta and T per chain.

        about: `energy`, which psi was fitted on (batch, ema or full), and `weighting`, its class (AdaptiveWeight).
        """
        data = as_bytes(tensors, {"about": json.dumps(about, sort_keys=True)})
        self._write(stack, f"weighting-{stack}.safetensors", "weighting", data)

    def weighting(self, stack: int) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """What `write_weighting` wrote; None for a stack without a weighting. Raises StoreError for a damaged file."""
        name = f"weighting-{stack}.safetensors"
        if (data := self._read(name)) is None:
            return None
        try:
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            return safetensors.torch.load(data), json.loads(header["__metadata__"]["about"])
        except Exception as error:  # the parsers may raise anything
            raise StoreError(f"{self.folder / name} is no whole safetensors file ({error}): repeat the run") from error

    def write_excluded(self, stack: int, steps: Mapping[int, int]) -> None:
        """Write the numbers of the chains whose samples do not count, with the steps at which they diverged."""
        if steps:
            self._write(stack, f"excluded-{stack}.json", "excluded", json.dumps(dict(steps), indent=1).encode())

    def excluded(self, stack: int) -> dict[int, int]:
        """The step of divergence of every chain of a stack whose samples do not count. Raises StoreError if damaged."""
        steps = self._read_json(f"excluded-{stack}.json")
        return {int(number): step for number, step in (steps or {}).items()}

    def truncate(self, stack: int, step: int, last_hash: str | None = None) -> None:
        """Remove the samples of a stack after `step`: a run that resumes there writes them again.

        last_hash: the last hash of the manifest at that step. Raises StoreError, and removes nothing, if no line of the
        manifest has it, or if samples up to there are missing.
        """
        sweep_leftovers(self.folder)
        self.index(stack).truncate(step, last_hash)

    def has_files(self, stack: int) -> bool:
        """Whether there are sample files of a stack, listed or not."""
        return any(of_stack == stack for _, of_stack in sample_files(self.folder))

    def records(self) -> list[Record]:
        """All records of all stacks, sorted by step, then by stack. Raises StoreError without records."""
        if not (records := [record for index in self._stacks() for record in index.records()]):
            what = "the run kept none, or this is not a run directory"
            if sample_files(self.folder):
                what = "its sample files are in no manifest, or their lines are lost: restore manifest and index"
            raise StoreError(f"no samples in {self.folder}: {what}")
        return sorted(records, key=lambda r: (r.step, r.stack))

    def warn_of_unlisted(self) -> None:
        """Warn of sample files that no manifest lists: their lines were lost, or a run is about to write them."""
        listed = {entry.path for index in self._stacks() for entry in index.manifest.samples()}
        unlisted = [p.name for p in sample_files(self.folder).values() if f"samples/{p.name}" not in listed]
        if unlisted:
            which = f"{len(unlisted)} sample files in {self.folder} are in no manifest and are left out"
            remedy = "restore the manifest, or give the command of the run in another folder"
            warnings.warn(f"{which}, {unlisted[0]} first: {remedy}", BdlWarning, stacklevel=2)

    def read(self, record: Record) -> dict[str, Tensor]:
        """The tensors (C, ...) of one record. Raises StoreError if the file is missing, cut short or altered."""
        return self._files.read(record)

    def target(self) -> dict[str, Any]:
        """target.json: N, prior, loss, data, model, ... of the run. Raises StoreError if it cannot be read."""
        if (target := self._read_json("target.json")) is None:
            raise StoreError(
                f"{self.run_dir} is not a run directory, or its manifest was lost: none lists samples/target.json"
            )
        return target

    def has_target(self) -> bool:
        return any(index.manifest.versions("samples/target.json") for index in self._stacks())

    def frozen(self, present: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The tensors of the part of the network that is not sampled, {} where everything is.

        present: tensors by name. Those that are equal are returned in place of a copy. Raises StoreError.
        """
        if not frozen_names(self.target()):
            return {}
        path = self.folder / FROZEN
        read = partial(read_whole, path, present)
        tensors = checked_file([index.manifest for index in self._stacks()], f"samples/{FROZEN}", read)
        if tensors is None:
            raise StoreError(f"{path} is in no manifest: restore the manifest")
        return tensors

    def refuse_other_frozen(self, part: FrozenPart, recorded: Mapping[str, Any]) -> None:
        """Raise StoreError, which names the first tensor, if this is not the frozen part that target.json knows."""
        if part.differs_from(recorded):
            name = part.first_difference(self.frozen())
            raise StoreError(
                f"the frozen part of the network is not that of the samples in {self.folder}: {name} differs; sample "
                "in another folder, or restore it. If it changes by itself, put its module into eval mode, or let it "
                'train by frozen="train"'
            )

    def _stacks(self) -> list[Index]:
        return [self.index(manifest.stack) for manifest in manifests_of(self.run_dir) if manifest.stack is not None]

    def _write(self, stack: int, name: str, kind: str, *parts: bytes | memoryview) -> None:
        self.manifest(stack).write(f"samples/{name}", kind, *parts)

    def _read(self, name: str) -> bytes | None:
        """The bytes of a file, None where no manifest lists it. Raises StoreError if it is lost or altered."""
        return read_listed([index.manifest for index in self._stacks()], f"samples/{name}")

    def _read_json(self, name: str) -> dict[str, Any] | None:
        """A mapping, None where no manifest lists the file. Raises StoreError for a damaged one."""
        if (data := self._read(name)) is None:
            return None
        try:
            content = parse_json(data)
            if not isinstance(content, dict):
                raise ValueError("it is no mapping")
            return content
        except ValueError as error:
            raise StoreError(f"{self.folder / name} is damaged ({error}): restore it") from error


def _warn_of_other_laws(sampler: Sampled, now: Snapshot, loss: Any) -> None:
    """Warn of `law_note`, and of batch noise as strong as a loss that adds up a batch of b makes it: b² times."""
    if (note := law_note(loss)) is not None:
        warnings.warn(note, BdlWarning, stacklevel=3)
    ratio = sampler.noise_ratio.double().cpu()  # NaN where unknown
    temperature = torch.as_tensor(now.temperature).double()
    worst = float(ratio.nan_to_num(0.0).max())
    if worst * float(temperature.max()) > HOT * max(1.0, float(temperature.max())):
        warnings.warn(
            f"noise_ratio = {worst:.2g}: mini-batches heat the chain to about {worst:.2g} T. If the closure returns "
            "the sum of a batch's losses, return their mean, which bdl multiplies by num_data; otherwise lower lr",
            BdlWarning,
            stacklevel=3,
        )
