"""What an experiment leaves on disk: its pictures, `table.md` and `results.json`, all of them or none."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from torch import Tensor

from bdl.errors import ConfigError
from bdl.run.provenance import provenance
from literature.experiment import Context, Experiment, Result, Table
from literature.figures import DPI, STYLE


def reproduce(experiment: Experiment, context: Context, out: Path) -> tuple[Result, Path]:
    """Run it and write into `out/<name>/`, once everything is there. Raises ConfigError for an `out` it can't use."""
    folder, partial = out / experiment.name, out / f".{experiment.name}.partial"
    _make(partial)  # before the run: an unwritable folder should not cost an hour
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
    for name, figure in result.figures.items():
        if context.quick:  # its title says what a full run shows
            figure.text(0.99, 0.005, "quick run", ha="right", va="bottom", color="grey")
        figure.savefig(folder / f"{name}.png", dpi=DPI, metadata={"Software": None})
    (folder / "table.md").write_text(page(result, experiment, context), "utf-8")
    found = {
        "experiment": experiment.name,
        "source": experiment.source,
        "quick": context.quick,
        "seed": context.seed,
        "seconds": round(seconds, 1),
        **provenance(),
        "numbers": plain(result.numbers),
    }
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def page(result: Result, experiment: Experiment, context: Context) -> str:
    """table.md: every table, its note, and the pictures."""
    run = "" if experiment.collects else f" Seed {context.seed}."
    run += " Quick run: it shows that the experiment works, not its numbers." * context.quick
    parts = [f"# {experiment.title}", f"Source: {experiment.source}.{run}"]
    parts += [markdown(table) for table in result.tables]
    parts += [f"![{name}]({name}.png)" for name in result.figures]
    return "\n\n".join(parts) + "\n"


def markdown(table: Table) -> str:
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    grid = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    return "\n\n".join([f"## {table.title}", grid, *([table.note] if table.note else [])])


def plain(value: Any) -> Any:
    """What JSON can hold: lists for tensors and arrays, null for NaN, "inf" for infinities."""
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
    shutil.rmtree(partial, ignore_errors=True)  # left by a run that was killed
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"can't write to {partial.parent}: {error.strerror}; choose another --out") from error
