"""A run that is complete: the same command is answered with its metrics."""

from __future__ import annotations

import contextlib
import warnings

from bdl.disk.owner import owner_of
from bdl.errors import BdlWarning, StoreError
from bdl.posterior.report.terminal import print_summary
from bdl.run.directory import OWNER, RunDirectory
from bdl.run.records import METRICS
from bdl.run.stored import altered


def answer(directory: RunDirectory) -> None:
    """Say that the run is complete, and print its metrics. Warns of files that are not as the run left them.

    Raises ConfigError for damaged metrics.
    """
    metrics = directory.metrics
    assert metrics is not None
    with contextlib.suppress(StoreError, PermissionError):  # who may not write here gets the answer all the same
        owner = owner_of(directory.path / OWNER)
        if owner is not None and owner.is_dead():
            with directory.owned():  # sweeps what a command left that was killed at its very end
                pass
    for name, fault in altered(directory.path).items():
        again = "; remove it, and the same command makes it again" if name == METRICS else ""
        warnings.warn(f"{directory.path / name} {fault}{again}", BdlWarning, stacklevel=2)
    print(f"{directory.path} already holds this run, complete; another seed or hydra.run.dir makes a new one")
    print_summary(metrics)
