"""What a run has recorded against its samples, for the doors through which they are read again."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from bdl.disk.files import SMALL_FILE, parse_json, read_file
from bdl.errors import BdlError, VerdictWarning
from bdl.posterior.verdict import Verdict, verdict

METRICS = "metrics.json"


def tell_doubt(runs: Sequence[Path]) -> None:
    """One VerdictWarning that names each run whose recorded verdict is not "trust"; silent where none is recorded."""
    judged = {run: found for run in runs if (found := recorded_verdict(run)) is not None}
    doubted = [f"{run}: {found.line}" for run, found in judged.items() if found.outcome != "trust"]
    if doubted:
        warnings.warn("; ".join(doubted), VerdictWarning, stacklevel=3)  # at the caller's caller


def recorded_verdict(run: Path) -> Verdict | None:
    """The verdict by the metrics.json of a run; None where there is none that can be read, which others refuse."""
    try:
        return verdict(parse_json(read_file(run / METRICS, SMALL_FILE)))
    except (BdlError, OSError, ValueError, TypeError, AttributeError):
        return None
