"""A run that has ended: what a killed command left undone at its very end, and the summary that it is answered with."""

from __future__ import annotations

import contextlib
import warnings

from bdl.errors import BdlWarning, StoreError
from bdl.owner import owner_of
from bdl.posterior.report.terminal import print_summary
from bdl.run.directory import OWNER, RunDirectory
from bdl.run.records import CHECKSUMS, METRICS
from bdl.run.stranger import altered


def answer(directory: RunDirectory) -> None:
    """Say that the run is complete, and print its metrics. Warns of files that are not as the run left them.

    Raises ConfigError for damaged metrics.
    """
    metrics = directory.metrics
    assert metrics is not None
    _complete(directory)
    for name, fault in altered(directory.path).items():
        again = "; remove it, and the same command makes it again" if name == METRICS else ""
        warnings.warn(f"{directory.path / name} {fault}{again}", BdlWarning, stacklevel=2)
    print(f"{directory.path} already holds this run, complete; another seed or hydra.run.dir makes a new one")
    print_summary(metrics)


def _complete(directory: RunDirectory) -> None:
    """After a kill or a full disk between metrics.json and the end: sweep what was left, and write the checksums.

    A lock that nobody holds any more tells of a kill. Who may not write here gets the answer all the same.
    """
    checksums = directory.path / CHECKSUMS
    with contextlib.suppress(StoreError, PermissionError):
        owner = owner_of(directory.path / OWNER)
        if not checksums.exists() or owner is not None and owner.is_dead():
            with directory.owned():
                if not checksums.exists():
                    directory.write_checksums()
                    print(f"{checksums} was missing and is written anew: what was altered before goes unnoticed")
