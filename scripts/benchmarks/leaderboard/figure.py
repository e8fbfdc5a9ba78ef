"""The leaderboard as curves and as a Markdown table."""

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.lines
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.leaderboard.methods import EXACT, GRADIENT, METHODS, NONE

COLOURS = {EXACT: "#1f6fb4", GRADIENT: "#d9822b", NONE: "#888888"}
FAMILIES = {
    EXACT: "samplers on all the data", GRADIENT: "samplers on batches", NONE: "approximations and ensembles"
}  # fmt: skip
STYLE: dict = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#eeeeee",
}  # fmt: skip
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


def table(record: dict[str, Any]) -> str:
    """A table for each problem: the best first, by the distance of the longest run."""
    parts = ["# Leaderboard", about(record), "![The nearest runs of each family of methods](leaderboard.png)"]
    for entry in record["problems"].values():
        if entry["runs"]:
            parts += [f"## {entry['title']}", of_reference(entry), "\n".join(rows(entry))]
    return "\n\n".join(parts) + "\n"


def about(record: dict[str, Any]) -> str:
    if "device" not in record:
        return ""
    return (
        f"`bench.py leaderboard`, bdl {record['bdl']}, torch {record['torch']}, one thread on {record['device']}, "
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
    """Each method's run of the most passes that every method was tried with, and the run before."""
    tried: dict[str, int] = {}
    for run in entry["runs"]:
        tried[run["method"]] = max(tried.get(run["method"], 0), run["passes"])
    shared = min(tried.values())
    runs = [run for run in entry["runs"] if run["passes"] <= shared]
    found = curves(entry | {"runs": runs})
    yield "| method | works on | before: distance, NLL at core-seconds | distance | NLL | core-seconds |"
    yield "|---|---|---|---|---|---|"
    for method in sorted(found, key=lambda m: found[m][-1][1]):
        curve = found[method]
        seconds, distance, nll = curve[-1]
        before = f"{curve[-2][1]:.4f}, {curve[-2][2]:.4f} at {curve[-2][0]:.1f}" if len(curve) > 1 else "–"
        title, kind = METHODS[method].title, METHODS[method].kind
        longer = " (longer runs failed)" if failed(entry, method, shared) else ""
        yield f"| {title}{longer} | {kind} | {before} | {distance:.4f} | {nll:.4f} | {seconds:.1f} |"
    for method in (m for m in METHODS if m in tried and m not in found):
        yield f"| {METHODS[method].title} | {METHODS[method].kind} | – | failed | – | – |"


def failed(entry: dict[str, Any], method: str, passes: int) -> bool:
    """Whether all runs of a method with so many passes diverged."""
    runs = [run for run in entry["runs"] if run["method"] == method and run["passes"] == passes]
    return all(run["distance"] is None for run in runs)


def draw(record: dict[str, Any], path: Path) -> None:
    """A panel for each problem, as a PNG."""
    entries = [entry for entry in record["problems"].values() if curves(entry)]
    if not entries:
        return
    columns = min(2, len(entries))
    lines = -(-len(entries) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure((4.9 * columns, 3.4 * lines + 0.9), layout="constrained")
        for ax, entry in zip(figure.subplots(lines, columns, squeeze=False).flat, entries, strict=False):
            panel(ax, entry)
        handles = [matplotlib.lines.Line2D([], [], color=COLOURS[k], lw=3, label=v) for k, v in FAMILIES.items()]
        handles.append(matplotlib.lines.Line2D([], [], color="#444444", lw=1.5, ls=":", label="as near as can be seen"))
        figure.suptitle(
            "How far predictions are from the posterior's (lower is better)", fontweight="bold", fontsize=14
        )
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=11)
        figure.savefig(path, dpi=120)


def panel(ax: Axes, entry: dict[str, Any]) -> None:
    """All runs as points, and a line through the nearest that each family reached by that time."""
    found = curves(entry)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ends: dict[str, tuple[float, str]] = {}
    for kind, colour in COLOURS.items():
        runs = [(*point[:2], METHODS[m].title) for m, curve in found.items() if METHODS[m].kind == kind
                for point in curve]  # fmt: skip
        if runs:
            x, y, _ = zip(*runs, strict=True)
            ax.plot(x, y, "o", color=colour, ms=3, alpha=0.25, mew=0)
            steps = nearest(runs)
            seconds, distance, title = steps[-1]
            ax.step(*zip(*[(*step[:2],) for step in steps], (max(x), distance), strict=True), where="post",
                    color=colour, lw=2.5)  # fmt: skip
            ax.plot(seconds, distance, "o", color=colour, ms=6)
            ends[title.replace(", ", ",\n")] = (distance, colour)
    # two long runs of different kernels are this far from each other: nobody can be seen to be nearer
    ax.axhline(max(entry["reference"]["between"], 1e-6), color="#444444", lw=1.5, ls=":")
    ax.set_title(entry["title"].replace(", ", "\n", 1), loc="left", fontsize=11)
    ax.set_ylabel("total variation" if entry.get("of_classes") else "W1, in sd of y")
    ax.set_xlabel("core-seconds")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    name_ends(ax, ends)


def nearest(runs: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """The runs (core-seconds, distance, title) that are nearer than all that took less time."""
    kept: list[tuple[float, float, str]] = []
    for run in sorted(runs):
        if not kept or run[1] < kept[-1][1]:
            kept.append(run)
    return kept


def name_ends(ax: Axes, ends: dict[str, tuple[float, str]]) -> None:
    """Write the names of lines to the right, in the order of their ends (distance, colour), without overlap."""
    low, high = ax.get_ylim()
    free = -1.0
    for title, (distance, colour) in sorted(ends.items(), key=lambda item: item[1][0]):
        half = 0.0425 * (1 + title.count("\n"))  # half the height of the words, as a share of the axes
        place = max(free + half, math.log(distance / low) / math.log(high / low))
        free = place + half
        ax.annotate(title, (1.02, place), xycoords="axes fraction", color=colour, fontsize=10, fontweight="bold",
                    va="center", annotation_clip=False)  # fmt: skip
