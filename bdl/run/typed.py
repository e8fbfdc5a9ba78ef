"""Commands as the person at the terminal types them, and what follows a run of a table."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bdl.advice import override
from bdl.posterior.calibrated import CalibrationRequest
from bdl.posterior.judge_rest import duration
from bdl.posterior.report.next_steps import changed, without


def typed(command: str, argv0: str | None = None, whole: Sequence[str] | None = None) -> list[str]:
    """The first words of a bdl command, as this process was started.

    argv0, whole: `sys.argv[0]` and `sys.orig_argv`, unless given.

    >>> typed("predict", "scripts/train.py", [".venv/bin/python", "scripts/train.py", "seed=1"])
    ['.venv/bin/python', 'scripts/predict.py']
    >>> typed("train", "bdl train", ["python3", "-m", "bdl", "train"])
    ['python3', '-m', 'bdl', 'train']
    """
    argv0, whole = argv0 or sys.argv[0], sys.orig_argv if whole is None else whole
    script = Path(argv0)
    if script.name == "train.py" and argv0 in whole:
        return [whole[0], str(script.with_name(f"{command}.py"))]
    if argv0 == "bdl train" and len(whole) > 2:
        if list(whole[1:3]) == ["-m", "bdl"]:
            return [whole[0], "-m", "bdl", command]
        if Path(whole[1]).name == "bdl" and shutil.which("bdl") is None:  # by its path, from outside its environment
            return [whole[1], command]
    return ["bdl", command]


def calibration(folder: Path, request: CalibrationRequest) -> str:
    """The command that calibrates the run in a folder as asked."""
    return f"{shlex.join(typed('evaluate'))} {override('runs', str(folder))} {request.words}"


def after_table(command: str, folder: Path, final: bool, seconds: float | None) -> list[str]:
    """The lines that say what one does next with the posterior of a table: predict, and before it sample all rows.

    command: that of the run. final: whether a posterior of all rows is there, or cannot be.
    seconds: that the run took; None where it is not known.
    """
    run, predict = override("run", str(folder)), shlex.join(typed("predict"))
    lines = [f"next: predict new rows: {predict} {run} input=new.csv output=predictions.csv"]
    if not final:
        again = f"{changed(without(command, 'hydra.run.dir'), 'refit=all')} {override('hydra.run.dir', str(folder))}"
        time = "" if seconds is None else f" (about {duration(seconds)})"
        lines.append(f"or first let the posterior see all rows{time}: {again}")
    return lines
