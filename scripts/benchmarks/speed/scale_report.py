"""The panels of `bench.py scale` as a Markdown table and as a picture."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.speed.scale import Panel

COLUMNS = 2  # of a picture that is read on a telephone, too
WIDTH = 2.9  # inches of a panel
DRAWN = ("chains", "parameters", "tensors", "samples")  # `processes` has two points: one number, for the text
COLOURS = ("#1f6fb4", "#888888")
STYLE: dict = {
    "font.size": 9,
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
    """Small multiples with logarithmic axes, as a PNG. The title of a panel is what it says."""
    shown = [panel for panel in panels if panel.name in DRAWN]
    rows = -(-len(shown) // COLUMNS)
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH * min(len(shown), COLUMNS), 2.7 * rows), layout="constrained")
        axes = list(figure.subplots(rows, min(len(shown), COLUMNS), squeeze=False).flat)
        for ax, panel in zip(axes, shown, strict=False):
            draw_panel(ax, panel)
        for ax in axes[len(shown) :]:
            ax.set_axis_off()
        figure.supxlabel(machine, fontsize=8, color="#777777", x=0.995, ha="right")
        figure.savefig(path, dpi=120)


def message(panel: Panel) -> str:
    """What the curves of a panel say, in two lines."""
    curve, *floor = panel.curves
    least, most = short(curve.x[0]), short(curve.x[-1])
    if floor:
        return f"{most} {panel.xlabel}: bdl takes\n{curve.y[-1] / floor[0].y[-1]:.2f} of the floor's time"
    unit, beside = ("chains", "a chain alone") if panel.name == "chains" else ("samples", f"one of {least}")
    return f"One of {most} {unit} takes\n{curve.y[-1] / curve.y[0]:.2f} of {beside}"


def draw_panel(ax: Axes, panel: Panel) -> None:
    for curve, colour, style in zip(panel.curves, COLOURS, ("o-", "o--"), strict=False):
        ax.plot(curve.x, curve.y, style, color=colour, ms=4, lw=1.6, label=curve.name.partition(":")[0])
    ax.set(xscale="log", yscale="log", xlabel=panel.xlabel, ylabel=panel.ylabel)
    ax.set_title(message(panel), fontsize=9.5, weight="bold")
    low, high = (pick(y for curve in panel.curves for y in curve.y) for pick in (min, max))
    space = max(1.9, (10 * low / high) ** 0.5)  # the axis spans a decade at least: less would look like a steep climb
    ax.set_ylim(low / space, high * space * (3 if len(panel.curves) > 1 else 1))  # room for the legend
    ax.margins(x=0.12)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(short))
        axis.set_minor_formatter(NullFormatter())
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
