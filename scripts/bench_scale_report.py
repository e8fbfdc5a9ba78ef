"""The panels of `bench.py scale` as a Markdown table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from bench_scale import Panel
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

COLOURS = ("#1f6fb4", "#999999")
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
                lines.append(f"| {panel.xlabel} | {x:,} | {curve.name}: {panel.ylabel} | {y:,.4g} |")
    return "\n".join(lines) + "\n"


def draw(panels: Sequence[Panel], machine: str, path: Path) -> None:
    """Small multiples with logarithmic axes, as a PNG."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((3.5 * len(panels), 3.4), layout="constrained")
        for ax, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            draw_panel(ax, panel)
        figure.supxlabel(machine, fontsize=8, color="#777777", x=0.995, ha="right")
        figure.savefig(path, dpi=120)


def draw_panel(ax: Axes, panel: Panel) -> None:
    for curve, colour in zip(panel.curves, COLOURS, strict=False):
        ax.plot(curve.x, curve.y, "o-", color=colour, ms=4, lw=1.6, label=curve.name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_title(panel.title)
    ax.set_xlabel(panel.xlabel)
    ax.set_ylabel(panel.ylabel)
    low = min(y for curve in panel.curves for y in curve.y)
    high = max(y for curve in panel.curves for y in curve.y)
    if high < 10 * low:  # less than a decade would look like a steep climb
        ax.set_ylim(low / 2, max(high * 2, low * 5))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(short))
        axis.set_minor_formatter(NullFormatter())
    if len(panel.curves) > 1:
        ax.legend(loc="upper left")


def short(value: float, _: object = None) -> str:
    """1000 as 1k, 1000000 as 1M.

    >>> short(0.5), short(100), short(20000), short(1e8)
    ('0.5', '100', '20k', '100M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
