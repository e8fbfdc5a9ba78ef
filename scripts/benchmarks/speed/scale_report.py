"""The panels of `bench.py scale` as a Markdown table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.speed.scale import Panel

COLUMNS = 3
COLOURS = ("#1f6fb4", "#888888")
STYLE: dict = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8e8e8",
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def markdown(panels: Sequence[Panel], machine: str) -> str:
    """One table: a row per panel, curve and x."""
    lines = [f"Measured on {machine}.", "", "| what grows | | measured | value |", "|---|---|---|---|"]
    for panel in panels:
        for curve in panel.curves:
            for x, y in zip(curve.x, curve.y, strict=True):
                lines.append(f"| {panel.xlabel} | {x:,} | {curve.name}: {panel.ylabel} | {number(y)} |")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Three digits, or all digits before the point.

    >>> number(1423456.7), number(73.58), number(0.12345)
    ('1,423,457', '73.6', '0.123')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(panels: Sequence[Panel], machine: str, path: Path) -> None:
    """Small multiples with logarithmic axes, as a PNG. The numbers of the first and the last point are written out."""
    rows = -(-len(panels) // COLUMNS)
    with matplotlib.rc_context(STYLE):
        figure = Figure((3.7 * min(len(panels), COLUMNS), 3.3 * rows), layout="constrained")
        axes = list(figure.subplots(rows, min(len(panels), COLUMNS), squeeze=False).flat)
        for ax, panel in zip(axes, panels, strict=False):
            draw_panel(ax, panel)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        figure.supxlabel(machine, fontsize=8, color="#777777", x=0.995, ha="right")
        figure.savefig(path, dpi=120)


def draw_panel(ax: Axes, panel: Panel) -> None:
    for curve, colour, style in zip(panel.curves, COLOURS, ("o-", "o--"), strict=False):
        ax.plot(curve.x, curve.y, style, color=colour, ms=4, lw=1.6, label=curve.name)
        others = [other.y for other in panel.curves if other is not curve]
        for k in {0, len(curve.x) - 1}:
            if any(y[k] == curve.y[k] for y in others) and curve is not panel.curves[0]:
                continue
            above = all(curve.y[k] >= y[k] for y in others) if others else k == 0 or curve.y[k] >= curve.y[k - 1]
            place = {"xytext": (0, 7 if above else -7), "textcoords": "offset points", "ha": "center"}
            vertical = "bottom" if above else "top"
            ax.annotate(short(curve.y[k]), (curve.x[k], curve.y[k]), va=vertical, color=colour, **place)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_title(f"{panel.ylabel}\n", fontsize=10)
    ax.text(0, 1.03, panel.title, transform=ax.transAxes, color="#555555")
    ax.set_xlabel(panel.xlabel)
    low = min(y for curve in panel.curves for y in curve.y)
    high = max(y for curve in panel.curves for y in curve.y)
    space = max(
        1.9, (high / low) ** 0.12, (10 * low / high) ** 0.5
    )  # the axis spans a decade at least: less would look like a steep climb
    ax.set_ylim(low / space, high * space * (3 if len(panel.curves) > 1 else 1))  # room for the legend
    ax.margins(x=0.12)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(short))
        axis.set_minor_formatter(NullFormatter())
    longest = panel.curves[0].x
    if longest[-1] < 10 * longest[0]:
        ax.set_xticks(longest)
    if len(panel.curves) > 1:
        ax.legend(loc="upper left")


def short(value: float, _: object = None) -> str:
    """At most three digits and a letter for the size.

    >>> short(0.5), short(137.2), short(20000), short(1e8)
    ('0.5', '137', '20k', '100M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
