"""What all pictures share: colours, axes with names, a new axis where the caller gives no axis."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, GREY = PALETTE = (  # Okabe & Ito 2008: distinct to colour-blind readers
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#6B6B6B",
)  # fmt: skip
PALE = "#c9d8e6"  # the colour of histograms


def axis_or_new(ax: Axes | None, width: float = 5.2, height: float = 3.6) -> Axes:
    """The axis, or the axis of a new pyplot figure of this size in inches, which a notebook shows."""
    if ax is not None:
        return ax
    from matplotlib import pyplot  # it chooses a backend, which reports never need

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def name_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_ylabel(y)
    if x:
        ax.set_xlabel(x)
    if x == "step":
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def log_if_wide(ax: Axes) -> None:
    """Use a log axis if all drawn values are positive and span more than a factor of 20."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in ax.get_lines()] or [np.ones(1)])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > 20 * values.min():
        ax.set_yscale("log")
