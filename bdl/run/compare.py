"""The command `bdl compare`: runs side by side on the terminal, as Markdown, JSON and CSV, and on one page."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bdl.disk.files import write_atomically
from bdl.errors import BdlWarning, ConfigError
from bdl.posterior.verdict import verdict
from bdl.run.compared_runs import data_difference, find_runs
from bdl.run.comparison import Comparison, compare_runs, in_short
from bdl.run.comparison_page import comparison_page
from bdl.run.records import write_json


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
    out = Path(cfg.out).expanduser() if cfg.out else (runs[0].path if "*" in str(first) else first) / "comparison"
    write_atomically(out / "comparison.md", as_markdown(comparison).encode())
    write_json(out / "comparison.json", as_json(comparison))
    write_atomically(out / "comparison.csv", methods_table(comparison).to_csv(index=False).encode())
    write_atomically(out / "runs.csv", runs_table(comparison, out).to_csv(index=False).encode())
    write_atomically(out / "comparison.html", comparison_page(comparison, out).encode())
    print_table(comparison)
    if sentence := in_short(comparison):
        print(sentence)
    print(f"page: {out / 'comparison.html'}")


def print_table(comparison: Comparison) -> None:
    """Print the table; the best of every score is bold."""
    table = Table(box=None, pad_edge=False)
    for heading, left in zip(comparison.headings, _left(comparison), strict=True):
        table.add_column(escape(heading), justify="left" if left else "right")
    for i, row in enumerate(comparison.texts):
        table.add_row(*(f"[bold]{escape(t)}[/]" if (i, j) in comparison.best else escape(t) for j, t in enumerate(row)))
    wanted = Console(width=10_000).measure(table).maximum
    Console(width=max(wanted, Console().width)).print(table)  # a terminal wraps lines better than rich wraps cells


def as_markdown(comparison: Comparison) -> str:
    """The table in Markdown."""
    lines = [comparison.headings, ["---" if left else "---:" for left in _left(comparison)]]
    for i, row in enumerate(comparison.texts):
        texts = [text.replace("|", "\\|") for text in row]
        lines.append([f"**{text}**" if (i, j) in comparison.best else text for j, text in enumerate(texts)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Plain values: for each method the metrics, as mean, standard error (null for one run) and values of its runs."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    methods = [
        {
            "method": m.label,
            "settings": dict(zip(comparison.columns, m.settings[1:], strict=True)),
            "verdict": m.verdict if m.judged else None,
            "runs": [str(run.path) for run in m.finished],
            "unfinished": [str(run.path) for run in m.runs if not run.metrics],
            "metrics": {
                name: {
                    "mean": number(m.scores[name][0]),
                    "standard_error": number(m.scores[name][1]),
                    "of_runs": [number(run.metrics.get(name, math.nan)) for run in m.finished],
                }
                for name in comparison.metrics
            },
        }
        for m in comparison.methods
    ]
    return {"same_data": comparison.same_data, "methods": methods}


def methods_table(comparison: Comparison) -> pd.DataFrame:
    """One line per method: its settings, the numbers of runs, and mean and standard error of each metric."""
    return pd.DataFrame(
        {
            **_named(comparison, m.settings),
            "runs": len(m.runs),
            "finished": len(m.finished),
            "verdict": m.verdict,
            **{
                k: v for name in comparison.metrics for k, v in zip((name, f"{name} s.e."), m.scores[name], strict=True)
            },
        }
        for m in comparison.methods
    )


def runs_table(comparison: Comparison, out: Path) -> pd.DataFrame:
    """One line per run: its settings, seed, verdict and metrics, and its folder seen from `out`."""
    return pd.DataFrame(
        {
            **_named(comparison, m.settings),
            "seed": run.seed,
            "verdict": verdict(run.metrics).outcome if run.metrics else "not finished",
            **{name: run.metrics.get(name, math.nan) for name in comparison.metrics},
            "run": os.path.relpath(run.path, out),
        }
        for m in comparison.methods
        if m.judged
        for run in m.runs
    )


def _named(comparison: Comparison, settings: Sequence[str]) -> dict[str, str]:
    return dict(zip(("method", *comparison.columns), settings, strict=True))


def _left(comparison: Comparison) -> list[bool]:
    """Whether a column holds words: the settings, and the verdict."""
    last = len(comparison.columns)
    return [j <= last or j == last + 2 for j in range(len(comparison.headings))]
