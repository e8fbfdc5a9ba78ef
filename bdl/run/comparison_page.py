"""The page of `bdl compare`: a sentence, the table of methods, a picture, and the runs with links to their reports."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from matplotlib.figure import Figure

from bdl.posterior.report.figures import BLUE, WIDE, as_uri, name_axes
from bdl.posterior.report.page import MARKS, render
from bdl.posterior.verdict import verdict
from bdl.run.compared_runs import ComparedRun
from bdl.run.comparison import HEADINGS, Comparison, in_short, loss, mean_and_error, shown

DRAWN = 2  # scores in the picture


def comparison_page(comparison: Comparison, out: Path) -> str:
    """The HTML text. It loads nothing; its links lead to the runs' own reports, seen from the folder `out`."""
    ranked = [n for n in comparison.metrics if not n.startswith("val/") and not math.isnan(loss(n, 0.0))]
    drawn = ranked[:DRAWN] if comparison.same_data else []
    return render(
        "comparison.html.jinja",
        comparison=comparison,
        about=_about([run for m in comparison.methods if m.judged for run in m.runs]),
        words=len(comparison.columns) + 1,
        result=in_short(comparison),
        marks=MARKS,
        metrics=[HEADINGS.get(name, name) for name in comparison.metrics],
        drawn=" and ".join(HEADINGS.get(name, name) for name in drawn),
        picture=as_uri(picture, comparison, drawn) if drawn else "",
        runs=[_run_of(comparison, m.label, run, out) for m in comparison.methods if m.judged for run in m.runs],
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
        name_axes(ax, HEADINGS.get(name, name), "")
    return figure


def _about(runs: Sequence[ComparedRun]) -> str:
    data = {str(run.data["_target_"]).rpartition(".")[2] for run in runs if "_target_" in run.data}
    return f"{len(runs)} runs{' on ' if data else ''}{', '.join(sorted(data))}"


def _run_of(comparison: Comparison, label: str, run: ComparedRun, out: Path) -> dict[str, Any]:
    """What the page shows of one run. link: None for a run without a report."""
    report = run.path / "report.html"
    return {
        "method": label,
        "seed": run.seed,
        "verdict": verdict(run.metrics) if run.metrics else None,
        "metrics": [mean_and_error(n, run.metrics.get(n, math.nan), math.nan) for n in comparison.metrics],
        "name": run.path.name,
        "link": quote(os.path.relpath(report, out)) if report.exists() else None,
    }
