"""SampleWriter: writes the kept states of a sampler, each once a new batch has given its energy."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bdl.disk.background import Background
from bdl.disk.manifest import Manifest
from bdl.posterior.seen_inputs import Record, read_inputs, write_inputs
from bdl.posterior.store import SampleStore
from bdl.posterior.tensors import FrozenPart
from bdl.samplers.sampler import Sampler
from bdl.snapshot import Snapshot, of_rows

PENDING = 2  # samples that a thread holds


class SampleWriter:
    """Writes the samples of one stack of chains to a store.

    A state waits for the next step, which measures its energy on a new batch. A run that is resumed from a checkpoint
    writes it then: `state_dict` says that it waits, and which samples the manifest listed.

    On an accelerator a thread hashes and writes the samples, of which at most PENDING are held. It has written all
    before anything else is written to the store, and before a checkpoint says what the manifest lists. Its errors are
    raised by the next method that is called here.

    Args:
        sampler: the one whose states are kept.
        writes: whether this process writes. Under ddp the others only follow.

    Attributes:
        waiting: the fields of the state that waits, its `tensors` and their `rows` among the chains; None without one.
    """

    def __init__(self, store: SampleStore, sampler: Sampler, writes: bool):
        self.store, self.sampler, self.writes = store, sampler, writes
        self.waiting: dict[str, Any] | None = None
        self._finished = False
        self._lost = len(sampler.survivors.lost)  # divergences that the store knows of
        self._last_hash: str | None = None  # the manifest's, if a run resumed from the present state
        self._background = Background(PENDING)

    def truncate(self, step: int, last_hash: str | None) -> None:
        """Remove the samples after `step`, and make sure that those before it are the ones the checkpoint knows."""
        self.store.truncate(self.sampler.stack, step, last_hash)
        self.store.write_excluded(self.sampler.stack, self.sampler.excluded())

    def begin(self, target: dict[str, Any], frozen: FrozenPart) -> None:
        """Write what describes the samples, see `SampleStore.write_target`. Raises StoreError for damaged `inputs`."""
        if self.sampler.steps > 0:
            read_inputs(self.store)  # which the first step of the run has written
        self.store.write_target(target, self.sampler.stack, frozen)
        self._last_hash = self._manifest.last_hash()

    def describe_inputs(self, record: Record) -> None:
        """Write what the run has seen of its inputs."""
        if self.writes and record:
            write_inputs(self._manifest, record)
            self._last_hash = self._manifest.last_hash()

    def state_dict(self) -> dict[str, Any]:
        self.settle()
        # The tensors of the waiting state are the module's, which the checkpoint holds already
        waiting = None if self.waiting is None else {k: v for k, v in self.waiting.items() if k != "tensors"}
        if self._last_hash is None:
            return {"pending": waiting}
        return {"pending": waiting, "manifest": {"kept": self._last_hash, "written": self._manifest.last_hash()}}

    def keep(self, now: Snapshot, cycle: int, tensors: dict[str, Tensor]) -> None:
        """Let a state wait. tensors: copies (rows, ...) of its chains."""
        self.waiting = {"tensors": tensors, "rows": now.rows, **now.fields(cycle)}

    def write(self, energy: Tensor | None, log_weight: Tensor | None) -> None:
        """Write the waiting state with its batch energy and log weight, () or (C,)."""
        if self.waiting is None:
            return
        fields, self.waiting = dict(self.waiting), None
        tensors, rows, chains = fields.pop("tensors"), fields.pop("rows"), self.sampler.chains
        # Where psi reads the full energy, the sampler's last evaluation may be some steps old
        at_full = self.sampler.reweighting.at_full_energy(fields["energy_full"], rows, self.sampler.settings())
        log_weight = at_full if at_full is not None else None if energy is None else log_weight
        if not self.writes:
            return
        of_each = {"energy_batch": of_rows(energy, chains, rows), "log_weight": of_rows(log_weight, chains, rows)}

        def write() -> None:
            self.store.write(tensors, **of_each, **fields)
            self._last_hash = self._manifest.last_hash()

        if self.sampler.chain.theta.device.type == "cpu":
            write()
        else:
            self._background.run(write)

    def leave_out_diverged(self) -> None:
        """Take chains that have diverged since then out of the waiting state, and tell the store of them."""
        excluded = self.sampler.excluded()
        if len(excluded) == self._lost:
            return
        self._lost = len(excluded)
        self.settle()
        if self.writes:
            self.store.write_excluded(self.sampler.stack, excluded)
        if self.waiting is not None:
            rows = [row for row, chain in enumerate(self.waiting["chains"]) if chain not in excluded]
            of_chains = {k: [v[row] for row in rows] for k, v in self.waiting.items() if isinstance(v, list)}
            tensors = {name: values[rows] for name, values in self.waiting["tensors"].items()}
            self.waiting = {**self.waiting, **of_chains, "tensors": tensors} if rows else None

    def finish(self) -> None:
        """Write the waiting state without its energy. A checkpoint made now still says that the state waits for one."""
        self.settle()
        waiting, last_hash = self.waiting, self._last_hash
        if not self._finished:
            self.write(None, None)
            self.write_weighting()
        self.waiting, self._last_hash, self._finished = waiting, last_hash, True

    def write_weighting(self) -> None:
        """Write psi, after all samples."""
        self.settle()
        if self.writes and (psi := self.sampler.psi()) is not None:
            self.store.write_weighting(self.sampler.stack, *psi)

    def settle(self) -> None:
        """Return when all samples so far are written. Raises the StoreError of one that could not be."""
        self._background.wait()

    def close(self) -> None:
        """Write what a thread holds, and let it end."""
        self._background.close()

    @property
    def _manifest(self) -> Manifest:
        return self.store.manifest(self.sampler.stack)
