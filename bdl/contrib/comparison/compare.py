"""The command `bdl compare`: runs side by side on the terminal, as Markdown, JSON and CSV, and on one page."""

from __future__ import annotations

import html
import math
import os
import re
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from omegaconf import DictConfig
from rich.markup import escape
from rich.table import Table

from bdl.contrib.comparison.compared_runs import ComparedRun, data_difference, find_runs
from bdl.contrib.comparison.comparison import (
    ComparedMethod,
    Comparison,
    compare_runs,
    heading,
    in_short,
    loss,
    mean_and_error,
    shown,
)
from bdl.disk.files import write_atomically
from bdl.display import count_of, print_whole
from bdl.errors import BdlWarning, ConfigError, printable
from bdl.posterior.plot.axes import BLUE, name_axes
from bdl.posterior.report.figures import WIDE, as_uri
from bdl.posterior.report.page import MARKS, render
from bdl.run.directory import output_folder
from bdl.run.records import write_json
from bdl.run.spreadsheet import without_formulas

DRAWN = 2  # scores in the picture
SPECIAL = re.compile(r"[\\`*\[\]~|!]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.")  # what Markdown reads as more than text


def compare(cfg: DictConfig) -> None:
    """Print the table; write comparison.html, .md, .json and .csv, and runs.csv."""
    if not cfg.runs:
        raise ConfigError("runs is empty: runs=outputs names a folder above runs, runs=[outputs/a,outputs/b] runs")
    runs, named = find_runs(cfg.runs)
    if difference := data_difference(runs):
        if named:
            raise ConfigError(f"runs on different data are not compared: {difference}")
        warnings.warn(f"runs on different data: their scores are not compared: {difference}", BdlWarning, stacklevel=2)
    comparison = compare_runs(runs, cfg.metrics, same_data=difference is None)
    first = Path(cfg.runs if isinstance(cfg.runs, str) else cfg.runs[0]).expanduser()
    out = output_folder(
        cfg.out or None, (runs[0].path if "*" in str(first) else first) / "comparison", "the comparison"
    )
    write_atomically(out / "comparison.md", as_markdown(comparison).encode())
    write_json(out / "comparison.json", as_json(comparison))
    write_atomically(out / "comparison.csv", _csv(methods_table(comparison)))
    write_atomically(out / "runs.csv", _csv(runs_table(comparison, out)))
    write_atomically(out / "comparison.html", comparison_page(comparison, out).encode())
    print_table(comparison)
    if sentence := in_short(comparison):
        print(printable(sentence))
    print(f"page: {out / 'comparison.html'}")


def print_table(comparison: Comparison) -> None:
    """Print the table; the best of every score is bold."""
    table = Table(box=None, pad_edge=False)
    for title, words in zip(comparison.headings, comparison.words, strict=True):
        table.add_column(shown_text(title), justify="left" if words else "right")
    for i, row in enumerate(comparison.texts):
        table.add_row(
            *(f"[bold]{t}[/]" if (i, j) in comparison.best else t for j, t in enumerate(map(shown_text, row)))
        )
    print_whole(table)


def shown_text(text: str) -> str:
    """A stranger's text as rich takes it: no styles, and nothing that a terminal obeys."""
    return escape(printable(text))


def as_markdown(comparison: Comparison) -> str:
    """The table in Markdown. Names of folders and values of settings stand in it as plain text."""
    lines = [list(map(plain, comparison.headings)), ["---" if words else "---:" for words in comparison.words]]
    for i, row in enumerate(comparison.texts):
        lines.append([f"**{plain(text)}**" if (i, j) in comparison.best else plain(text) for j, text in enumerate(row)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def plain(text: str) -> str:
    """Markdown that shows the text: a stranger's makes no HTML, links, pictures, emphasis or lines of its own."""
    return SPECIAL.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Plain values: for each method the metrics, as mean, standard error (null for one run) and values of its runs."""

    def numbers(method: ComparedMethod, name: str) -> dict[str, Any]:
        mean, error = map(_finite, method.scores[name])
        of_runs = [_finite(run.metrics.get(name, math.nan)) for run in method.finished]
        return {"mean": mean, "standard_error": error, "of_runs": of_runs}

    methods = [
        {
            "method": m.label,
            "settings": {key: m.settings[key] for key in comparison.columns},
            "verdict": m.verdict if m.judged else None,
            "runs": [str(run.path) for run in m.finished],
            "unfinished": [str(run.path) for run in m.runs if not run.metrics],
            "metrics": {name: numbers(m, name) for name in comparison.metrics},
        }
        for m in comparison.methods
    ]
    return {"same_data": comparison.same_data, "methods": methods}


def methods_table(comparison: Comparison) -> pd.DataFrame:
    """One line per method: its settings, the numbers of runs, and mean and standard error of each metric."""
    rows = []
    for m in comparison.methods:
        scores = {n + end: v for n in comparison.metrics for end, v in zip(("", " s.e."), m.scores[n], strict=True)}
        counts = {"runs": len(m.runs), "finished": len(m.finished)}
        rows.append({**m.settings, **counts, "verdict": m.verdict, **scores})
    return pd.DataFrame(rows)


def runs_table(comparison: Comparison, out: Path) -> pd.DataFrame:
    """One line per run: its settings, seed, verdict and metrics, and its folder seen from `out`."""
    rows = []
    for method, run in ((m, run) for m in comparison.methods if m.judged for run in m.runs):
        verdict = run.verdict.outcome if run.verdict else "not finished"
        metrics = {name: run.metrics.get(name, math.nan) for name in comparison.metrics}
        row = {**method.settings, "seed": run.seed, "verdict": verdict, **metrics}
        rows.append(row | {"run": os.path.relpath(run.path, out)})
    return pd.DataFrame(rows)


def comparison_page(comparison: Comparison, out: Path) -> str:
    """The HTML text. It loads nothing; its links lead to the runs' own reports, seen from the folder `out`."""
    ranked = [n for n in comparison.metrics if not n.startswith("val/") and not math.isnan(loss(n, 0.0))]
    drawn = ranked[:DRAWN] if comparison.same_data else []
    runs = [(m.label, run) for m in comparison.methods if m.judged for run in m.runs]
    data = {str(run.data["_target_"]).rpartition(".")[2] for _, run in runs if "_target_" in run.data}
    return render(
        "comparison.html.jinja",
        comparison=comparison,
        about=f"{count_of(len(runs), 'run')}{' on ' if data else ''}{', '.join(sorted(data))}",
        words=len(comparison.columns) + 1,
        result=in_short(comparison),
        marks=MARKS,
        metrics=list(map(heading, comparison.metrics)),
        drawn=" and ".join(map(heading, drawn)),
        picture=as_uri(picture, comparison, drawn) if drawn else "",
        runs=[_run_of(comparison, label, run, out) for label, run in runs],
    )


def picture(comparison: Comparison, names: list[str]) -> Figure:
    """The given metrics of every method, with standard errors."""
    methods = comparison.methods
    figure = Figure((WIDE, 1.1 + 0.34 * len(methods)), layout="constrained")
    places = np.arange(len(methods))[::-1]
    for ax, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        mean, error = np.array([shown(name, *m.scores[name]) for m in methods]).T
        ax.errorbar(mean, places, xerr=np.nan_to_num(error), ls="", marker="o", ms=5, color=BLUE, capsize=3)
        ax.set_yticks(places, [method.label for method in methods])
        ax.set_ylim(-0.6, len(methods) - 0.4)
        name_axes(ax, heading(name), "")
    return figure


def _run_of(comparison: Comparison, label: str, run: ComparedRun, out: Path) -> dict[str, Any]:
    """What the page shows of one run. link: None for a run without a report."""
    report = run.path / "report.html"
    return {
        "method": label,
        "seed": run.seed,
        "verdict": run.verdict,
        "metrics": [mean_and_error(n, run.metrics.get(n, math.nan), math.nan) for n in comparison.metrics],
        "name": run.path.name,
        "link": quote(os.path.relpath(report, out)) if report.exists() else None,
    }


def _csv(table: pd.DataFrame) -> bytes:
    return without_formulas(table).to_csv(index=False).encode()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
