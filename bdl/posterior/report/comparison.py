"""Methods side by side: a table in the terminal, in Markdown, as plain values, and one page with a picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from bdl.posterior.report.figures import BLUE, WIDE, as_uri, name_axes
from bdl.posterior.verdict import verdict

NLL, ERROR, ECE, RMSE, COVERAGE, ONE = (
    "test/bma/nll", "test/bma/accuracy", "test/bma/ece", "test/bma/rmse", "test/bma/coverage_90", "test/one_sample/nll",
)  # fmt: skip
CLASS_COLUMNS = {NLL: "NLL (nats)", ERROR: "error %", ECE: "ECE", ONE: "NLL of one network"}
VALUE_COLUMNS = {NLL: "NLL (nats)", RMSE: "RMSE", COVERAGE: "in 90 % interval, %", ONE: "NLL of one network"}
NOTE = (
    "Scores of the average over all networks of a run, on the test set; ± is the standard error over seeds. The best "
    "value is bold. The last score is that of a single network: the distance to the first one is what averaging buys. "
    "The time is that of the whole run, on the machine on which it ran."
)


@dataclass(frozen=True)
class Method:
    """The runs of one method."""

    label: str
    metrics: Sequence[Mapping[str, float]]  # of every run, as in metrics.json
    seconds: Sequence[float]  # of every run; empty where the time belongs to another row
    judged: bool = True  # whether there is a verdict on it

    @property
    def verdict(self) -> str:
        """The outcome, with the number of runs where they differ."""
        if not self.judged:
            return "–"
        outcomes = Counter(verdict(m).outcome for m in self.metrics)
        return ", ".join(name if len(outcomes) == 1 else f"{name} {count}" for name, count in outcomes.items())

    def score(self, name: str) -> tuple[float, float]:
        """Mean over the runs and its standard error, NaN where unknown; an accuracy as the error, shares in %."""
        values = np.array([m.get(name, math.nan) for m in self.metrics], dtype=float)
        values = 100 * (1 - values) if name == ERROR else 100 * values if name == COVERAGE else values
        return _mean_and_error(values)

    @property
    def time(self) -> tuple[float, float]:
        """Seconds: mean over the runs, and its standard error."""
        return _mean_and_error(np.array(self.seconds, dtype=float)) if len(self.seconds) else (math.nan, math.nan)


def columns_of(methods: Sequence[Method]) -> dict[str, str]:
    """The scores of the table, and their headings."""
    return VALUE_COLUMNS if any(RMSE in m for method in methods for m in method.metrics) else CLASS_COLUMNS


def best_of(methods: Sequence[Method], name: str) -> int | None:
    """The method with the best score: the smallest, or the coverage next to 90 %; None if there is but one score."""
    values = [method.score(name)[0] for method in methods]
    distances = [abs(v - 90) if name == COVERAGE else v for v in values]
    known = [i for i, value in enumerate(distances) if not math.isnan(value)]
    return min(known, key=distances.__getitem__) if len(known) > 1 else None


def rows_of(methods: Sequence[Method]) -> list[list[str]]:
    """The texts of the table: method, runs, verdict, scores, time."""
    return [
        [
            method.label, str(len(method.metrics)), method.verdict,
            *(shown(name, *method.score(name)) for name in columns_of(methods)), shown("time", *method.time),
        ]
        for method in methods
    ]  # fmt: skip


def headings(methods: Sequence[Method]) -> list[str]:
    return ["method", "seeds", "verdict", *columns_of(methods).values(), "time (s)"]


def shown(name: str, mean: float, error: float) -> str:
    """A score as text. One run has no standard error."""
    digits = {ERROR: 2, COVERAGE: 1, "time": 0}.get(name, 4)
    if math.isnan(mean):
        return "–"
    return f"{mean:,.{digits}f}" + ("" if math.isnan(error) else f" ± {error:,.{digits}f}")


def print_table(methods: Sequence[Method]) -> None:
    """Print the table; the best of every score is bold."""
    table = Table(box=None, pad_edge=False)
    for i, heading in enumerate(headings(methods)):
        table.add_column(heading, justify="left" if i in (0, 2) else "right")
    bold = _bold(methods)
    for i, row in enumerate(rows_of(methods)):
        table.add_row(*(f"[bold]{text}[/bold]" if (i, j) in bold else text for j, text in enumerate(row)))
    wanted = Console(width=10_000).measure(table).maximum
    Console(width=max(wanted, Console().width)).print(table)  # a terminal wraps lines better than rich cuts cells


def as_markdown(methods: Sequence[Method]) -> str:
    """The table in Markdown."""
    bold = _bold(methods)
    names = headings(methods)
    lines = [names, ["---" if i in (0, 2) else "---:" for i in range(len(names))]]
    for i, row in enumerate(rows_of(methods)):
        texts = [text.replace("|", "\\|") for text in row]
        lines.append([f"**{text}**" if (i, j) in bold else text for j, text in enumerate(texts)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def as_json(methods: Sequence[Method], runs: Sequence[str]) -> dict[str, Any]:
    """Plain values: for each method mean, standard error (null for one run) and the values of all runs."""

    def score(method: Method, name: str) -> dict[str, Any]:
        mean, error = (None if math.isnan(v) else v for v in method.score(name))
        values = [v if v is not None and math.isfinite(v) else None for v in (m.get(name) for m in method.metrics)]
        return {"mean": mean, "standard_error": error, "metric": name, "of_runs": values}

    return {
        "runs": list(runs),
        "methods": [
            {
                "method": method.label,
                "seeds": len(method.metrics),
                "verdict": method.verdict,
                "scores": {heading: score(method, name) for name, heading in columns_of(methods).items()},
                "seconds": [None if math.isnan(s) else s for s in method.seconds],
            }
            for method in methods
        ],
    }


def comparison_page(methods: Sequence[Method], facts: Mapping[str, str]) -> str:
    """The HTML text. It loads nothing: style and picture are part of it."""
    loader = PackageLoader("bdl.posterior", "report")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    return environment.get_template("comparison.html.jinja").render(
        style=resources.files("bdl.posterior.report").joinpath("style.css").read_text(),
        facts=facts,
        result=_in_short(methods),
        headings=headings(methods),
        rows=rows_of(methods),
        bold=_bold(methods),
        note=NOTE,
        picture=as_uri(picture, methods),
    )


def picture(methods: Sequence[Method]) -> Figure:
    """The first two scores of every method, with standard errors."""
    names = list(columns_of(methods).items())[:2]
    figure = Figure((WIDE, 1.1 + 0.34 * len(methods)), layout="constrained")
    places = np.arange(len(methods))[::-1]
    for ax, (name, heading) in zip(figure.subplots(1, 2, sharey=True), names, strict=True):
        scores = [method.score(name) for method in methods]
        mean, error = (np.array(values) for values in zip(*scores, strict=True))
        ax.errorbar(mean, places, xerr=np.nan_to_num(error), ls="", marker="o", ms=5, color=BLUE, capsize=3)
        ax.set_yticks(places, [method.label for method in methods])
        ax.set_ylim(-0.6, len(methods) - 0.4)
        name_axes(ax, heading, "")
    return figure


def _in_short(methods: Sequence[Method]) -> str:
    """Which method has the smallest NLL, in one sentence; empty for one method."""
    if (best := best_of(methods, NLL)) is None:
        return ""
    others = [m for i, m in enumerate(methods) if i != best and not math.isnan(m.score(NLL)[0])]
    second = min(others, key=lambda m: m.score(NLL)[0])
    gap = second.score(NLL)[0] - methods[best].score(NLL)[0]
    error = math.hypot(*(m.score(NLL)[1] for m in (second, methods[best])))
    pm = "" if math.isnan(error) else f" ± {error:.4f}"
    return f"The smallest NLL is that of {methods[best].label}, {gap:.4f}{pm} nats below {second.label}."


def _bold(methods: Sequence[Method]) -> set[tuple[int, int]]:
    """(row, column) of the best scores."""
    best = [(best_of(methods, name), j) for j, name in enumerate(columns_of(methods), 3)]
    return {(i, j) for i, j in best if i is not None}


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), float(error)
