"""Writes an experiment's pictures, `table.md` and `results.json`: all of them or none."""

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from torch import Tensor

from bdl.errors import ConfigError
from bdl.run.machine import provenance
from literature.experiment import Context, Experiment, Result, Table
from literature.figures import DPI, STYLE


def reproduce(experiment: Experiment, context: Context, out: Path) -> tuple[Result, Path]:
    """Run an experiment, then write all its files into `out/<name>/`. Raises ConfigError if `out` is not writable."""
    folder, partial = out / experiment.name, out / f".{experiment.name}.partial"
    _make(partial)  # an unwritable folder fails here, before a run of an hour
    started = time.perf_counter()
    try:
        with matplotlib.rc_context(STYLE):
            result = experiment.run(context)
            write(result, experiment, context, time.perf_counter() - started, partial)
        folder.mkdir(exist_ok=True)
        for file in partial.iterdir():
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return result, folder


def write(result: Result, experiment: Experiment, context: Context, seconds: float, folder: Path) -> None:
    """Write the files of a result. seconds: wall time of the run."""
    for name, figure in result.figures.items():
        if context.quick:  # the title describes a full run
            figure.text(0.99, 0.005, "quick run", ha="right", va="bottom", color="grey")
        figure.savefig(folder / f"{name}.png", dpi=DPI, metadata={"Software": None})
    (folder / "table.md").write_text(page(result, experiment, context), "utf-8")
    record = {
        "experiment": experiment.name,
        "source": experiment.source,
        "quick": context.quick,
        "seed": context.seed,
        "seconds": round(seconds, 1),
        **provenance(),
        "date": date.today().isoformat(),
        "numbers": plain(result.numbers),
    }
    (folder / "results.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def page(result: Result, experiment: Experiment, context: Context) -> str:
    """The text of table.md: every table with its note, and the pictures."""
    run = "" if experiment.collects else f" Seed {context.seed}."
    run += " Quick run: it tests the experiment; its numbers are not results." * context.quick
    parts = [f"# {experiment.title}", f"Source: {experiment.source}.{run}"]
    parts += [markdown(table) for table in result.tables]
    parts += [f"![{name}]({name}.png)" for name in result.figures]
    return "\n\n".join(parts) + "\n"


def markdown(table: Table) -> str:
    """A table with its title above and its note below."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    grid = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    return "\n\n".join([f"## {table.title}", grid, *([table.note] if table.note else [])])


def plain(value: Any) -> Any:
    """The value as JSON can hold it: lists for tensors and arrays, null for NaN, "inf" for infinities."""
    if isinstance(value, Tensor):
        return plain(value.detach().cpu().tolist())
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())


def _make(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)  # a killed run may have left one
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"can't write to {partial.parent}: {error.strerror}; choose another --out") from error
