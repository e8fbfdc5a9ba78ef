"""The states of an exact continuation as the samples of a run, which Posterior.load and the commands read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from bdl.disk.files import read_file
from bdl.disk.manifest import Manifest
from bdl.engine.functional import replace_tensors
from bdl.errors import StoreError
from bdl.law.exact import ExactPotential
from bdl.posterior.index import Record
from bdl.posterior.predict import Posterior
from bdl.posterior.store import COPIED, SampleStore
from bdl.posterior.tensors import FrozenPart, frozen_names

KEPT = 50  # states of a chain at most


class ContinuedSamples:
    """A folder of samples that go on where those of a run end, drawn by HMC over all data.

    Their steps count trajectories from the last step of the run on. target.json says `continued`, so that they are
    never merged with the samples of the run itself, which may follow another law.

    Raises StoreError if the folder holds samples.
    """

    def __init__(self, folder: Path, posterior: Posterior):
        self.store, self.posterior = SampleStore(folder), posterior
        if self.store.has_target():
            raise StoreError(f"{folder} holds samples already: move or remove it")

    def writer(
        self, potential: ExactPotential, last: Record, trajectories: int
    ) -> Callable[[int, Tensor, Tensor], None]:
        """What writes states of one stack after a trajectory: those of the second half, KEPT of them at most.

        last: the record at which the chains began.
        """
        self._write_target(last.stack)
        names, first = list(self.posterior.read_record(last)), trajectories // 2 + 1
        every = -(-(trajectories - first + 1) // KEPT)

        def write(number: int, theta: Tensor, energies: Tensor) -> None:
            if number >= first and (trajectories - number) % every == 0:
                tensors = {name: t.cpu() for name, t in potential.tensors(theta, names).items()}
                self.store.write(
                    tensors, step=last.step + number, stack=last.stack, chains=last.chains, cycle=last.cycle,
                    lr=last.lr, temperature=last.temperature, energy_full=energies.tolist(), precision=last.precision,
                )  # fmt: skip

        return write

    def finish(self) -> None:
        """Copy the files of the run that commands read."""
        folder, run = self.store.run_dir, self.posterior.stores[0].run_dir
        for name in COPIED:
            if (run / name).exists():
                Manifest(folder).write(name, name.partition(".")[0], read_file(run / name))

    def _write_target(self, stack: int) -> None:
        names = frozen_names(self.posterior.target)
        net = self.posterior.net
        whole = replace_tensors(copy.deepcopy(net), self.posterior.frozen) if names else net
        target = {**self.posterior.target, "caveat": None, "continued": "HMC over all data from the last samples"}
        self.store.write_target(target, stack, FrozenPart(whole, names=names) if names else None)
