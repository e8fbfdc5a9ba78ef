"""The leaderboard as curves and as a Markdown table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.lines
from leaderboard_methods import EXACT, GRADIENT, METHODS, NONE
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

COLOURS = {EXACT: "#1f6fb4", GRADIENT: "#d9822b", NONE: "#888888"}
FAMILIES = {
    EXACT: "samplers on all the data", GRADIENT: "samplers on batches", NONE: "approximations and ensembles"
}  # fmt: skip
STYLE: dict = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#eeeeee",
}  # fmt: skip
NAMED = {"hmc", "mclmc", "sghmc", "ensemble", "swag", "laplace"}  # methods whose curves carry their names
Curve = list[tuple[float, float, float]]  # (core-seconds, distance, NLL), from short runs to long ones


def curves(entry: dict[str, Any]) -> dict[str, Curve]:
    """The medians over seeds by method, in the order of METHODS."""
    found: dict[str, Curve] = {}
    for method in METHODS:
        runs = [run for run in entry["runs"] if run["method"] == method and run["distance"] is not None]
        lengths = sorted({run["passes"] for run in runs})
        groups = [[run for run in runs if run["passes"] == length] for length in lengths]
        keys = ("core_seconds", "distance", "nll")
        if groups:
            found[method] = [tuple(statistics.median(r[k] for r in group) for k in keys) for group in groups]  # type: ignore[misc]
    return found


# ---- the table -------------------------------------------------------------------------------------------------------


def table(record: dict[str, Any]) -> str:
    """A table for each problem: the best first, by the distance of the longest run."""
    parts = ["# Leaderboard", about(record)]
    for entry in record["problems"].values():
        if entry["runs"]:
            parts += [f"## {entry['title']}", of_reference(entry), "\n".join(rows(entry))]
    return "\n\n".join(parts) + "\n"


def about(record: dict[str, Any]) -> str:
    if "device" not in record:
        return ""
    return (
        f"`scripts/leaderboard.py`, bdl {record['bdl']}, torch {record['torch']}, one thread on {record['device']}, "
        f"{record['date']}. Distances are means over test items: of the total variation of class probabilities, or of "
        "W1 between predictive distributions, in standard deviations of y. Core-seconds leave out predictions. "
        "Samplers on batches take all rows of a table of up to 2,048, and find their step size within the time."
    )


def of_reference(entry: dict[str, Any]) -> str:
    known = entry["reference"]
    each = [
        f"{METHODS[k].title} ({known[k]['chains']} chains, {known[k]['passes']:,} gradients each, R-hat "
        f"{known[k]['rhat']:.3f}, ESS {known[k]['ess']:,.0f}, NLL {known[k]['nll']:.4f})"
        for k in ("hmc", "mclmc")
        if k in known
    ]
    return (
        f"Reference: {METHODS[known['kernel']].title}, of {' and '.join(each)}, which lie {known['between']:.4f} apart."
    )


def rows(entry: dict[str, Any]) -> Iterator[str]:
    """Method, then the longest run that every method has done, and the one before."""
    every = curves(entry)
    shared = min((len(curve) for method, curve in every.items() if not METHODS[method].fewest), default=None)
    found = {method: curve if METHODS[method].fewest else curve[:shared] for method, curve in every.items()}
    yield "| method | works on | before: distance, NLL at core-seconds | distance | NLL | core-seconds |"
    yield "|---|---|---|---|---|---|"
    for method in sorted(found, key=lambda m: found[m][-1][1]):
        curve = found[method]
        seconds, distance, nll = curve[-1]
        before = f"{curve[-2][1]:.4f}, {curve[-2][2]:.4f} at {curve[-2][0]:.1f}" if len(curve) > 1 else "–"
        title, kind = METHODS[method].title, METHODS[method].kind
        yield f"| {title} | {kind} | {before} | {distance:.4f} | {nll:.4f} | {seconds:.1f} |"


# ---- the picture -----------------------------------------------------------------------------------------------------


def draw(record: dict[str, Any], path: Path) -> None:
    """A panel for each problem, as a PNG."""
    entries = [entry for entry in record["problems"].values() if curves(entry)]
    if not entries:
        return
    columns = min(2, len(entries))
    lines = -(-len(entries) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure((max(7.5, 5.4 * columns), 3.7 * lines + 0.7), layout="constrained")
        for ax, entry in zip(figure.subplots(lines, columns, squeeze=False).flat, entries, strict=False):
            panel(ax, entry)
        handles = [matplotlib.lines.Line2D([], [], color=COLOURS[k], lw=2, label=v) for k, v in FAMILIES.items()]
        handles.append(matplotlib.lines.Line2D([], [], color="#444444", lw=1, ls=":", label="two references apart"))
        figure.suptitle("How far predictions lie from those of the posterior (lower is better)", fontweight="bold")
        figure.legend(handles=handles, loc="outside lower center", ncols=2 * columns, frameon=False)
        figure.savefig(path, dpi=120)


def panel(ax: Axes, entry: dict[str, Any]) -> None:
    found = curves(entry)
    best = {
        min((m for m in found if METHODS[m].kind == kind), key=lambda m: found[m][-1][1], default="")
        for kind in COLOURS
    }
    named = (NAMED | best) & set(found)
    for method, curve in found.items():
        x, y, _ = zip(*curve, strict=True)
        strong = method in named
        ax.plot(x, y, "o-", color=COLOURS[METHODS[method].kind], ms=3.5 if strong else 2, lw=2 if strong else 0.8,
                alpha=1 if strong else 0.45)  # fmt: skip
    ax.axhline(max(entry["reference"]["between"], 1e-6), color="#444444", lw=1, ls=":")
    ax.set_xscale("log")
    ax.set_yscale("log")
    name_ends(ax, {METHODS[m].title: (found[m][-1][0], found[m][-1][1], COLOURS[METHODS[m].kind]) for m in named})
    ax.set_title(entry["title"], loc="left", fontsize=9, fontweight="bold")
    ax.set_ylabel("total variation" if entry.get("of_classes") else "W1, in sd of y")
    ax.set_xlabel("core-seconds")
    ax.margins(x=0.02)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def name_ends(ax: Axes, ends: dict[str, tuple[float, float, str]]) -> None:
    """Write the names of curves in a column to the right, in the order of their ends, without overlap."""
    low, high = ax.get_ylim()

    place = -1.0
    for title, (_, y, colour) in sorted(ends.items(), key=lambda item: item[1][1]):
        place = max(place + 0.062, math.log(y / low) / math.log(high / low))
        ax.annotate(
            title, (1.01, place), xycoords="axes fraction", color=colour, fontsize=8, va="center", annotation_clip=False
        )
