"""The results of a sweep in one table and one page. See conf/gather.yaml."""

from __future__ import annotations

import math
import os
from pathlib import Path
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bdl.errors import ConfigError
from bdl.files import write_atomically
from bdl.posterior.report.page import MARKS
from bdl.run.sweep_table import Run, Sweep, arrange, count_of, mean_and_error, read_all, verdicts_of


def gather(cfg: DictConfig) -> None:
    """Write sweep.csv (a row per setting), runs.csv (a row per run) and sweep.html, and print the first."""
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(f"{missing[0]} has no value: folder=outputs names the folder of a sweep")
    folder = Path(cfg.folder).expanduser()
    runs = read_all(folder)
    sweep = arrange(runs, cfg.metrics)
    out = Path(cfg.out).expanduser() if cfg.out else folder
    write_atomically(out / "sweep.csv", rows_table(sweep).to_csv(index=False).encode())
    write_atomically(out / "runs.csv", runs_table(sweep, out).to_csv(index=False).encode())
    write_atomically(out / "sweep.html", page(folder.resolve().name, sweep, out).encode())
    print_sweep(sweep)
    print(f"page: {out / 'sweep.html'}")


def rows_table(sweep: Sweep) -> pd.DataFrame:
    """One line per setting: the settings, the numbers of runs, and mean and s.e. of each metric."""
    return pd.DataFrame(
        {
            **dict(zip(sweep.columns, row.settings, strict=True)),
            "runs": len(row.runs),
            "finished": len(row.finished),
            **{k: v for name in sweep.metrics for k, v in ((name, row.mean[name]), (f"{name} s.e.", row.error[name]))},
        }
        for row in sweep.rows
    )


def runs_table(sweep: Sweep, out: Path) -> pd.DataFrame:
    """One line per run: the settings, seed, verdict, metrics, and its folder seen from `out`."""
    return pd.DataFrame(
        {
            **dict(zip(sweep.columns, row.settings, strict=True)),
            "seed": run.seed,
            "verdict": "not finished" if run.verdict is None else run.verdict.outcome,
            **{name: (run.metrics or {}).get(name, math.nan) for name in sweep.metrics},
            "run": os.path.relpath(run.path, out),
        }
        for row in sweep.rows
        for run in row.runs
    )


def print_sweep(sweep: Sweep) -> None:
    table = Table(box=None, pad_edge=False)
    for column in (*sweep.columns, "runs", *sweep.metrics, "verdicts"):
        table.add_column(escape(column), justify="left" if column in (*sweep.columns, "verdicts") else "right")
    for row in sweep.rows:
        cells = [mean_and_error(row.mean[name], row.error[name]) for name in sweep.metrics]
        table.add_row(*map(escape, row.settings), count_of(row), *cells, verdicts_of(row))
    wanted = Console(width=10_000).measure(table).maximum
    Console(width=max(wanted, Console().width)).print(table)  # a terminal wraps lines better than rich wraps cells


def page(title: str, sweep: Sweep, out: Path) -> str:
    """One self-contained page with both tables. Its links lead to the runs' own reports, seen from `out`."""
    loader = PackageLoader("bdl.posterior", "report")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    style = environment.get_template("style.css").render()
    template = environment.get_template("sweep.html.jinja")
    functions = {"count_of": count_of, "verdicts_of": verdicts_of, "shown": mean_and_error}
    return template.render(
        title=title,
        sweep=sweep,
        style=style,
        marks=MARKS,
        link=lambda run: report_of(run, out),
        nan=math.nan,
        **functions,
    )


def report_of(run: Run, out: Path) -> str | None:
    """The address of a run's report, seen from the page; None where it has none."""
    path = run.path / "report.html"
    return quote(os.path.relpath(path, out)) if path.exists() else None
