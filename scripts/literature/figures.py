"""One style for all pictures. Experiments draw on a Figure from `canvas`; `reproduce` applies STYLE while they run."""

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bdl.posterior.plot.axes import BLUE, GREEN, GREY, ORANGE, PALE, PALETTE, PINK, RED, SKY, YELLOW
from bdl.posterior.report.figures import STYLE as REPORT

__all__ = ["BLUE", "GREEN", "GREY", "ORANGE", "PALE", "PALETTE", "PINK", "RED", "SKY", "YELLOW", "canvas", "label"]

DPI = 130
STYLE: dict[Any, Any] = {
    **REPORT,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "white"),  # read on dark pages too
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "figure.titlesize": 12.5,
    "figure.titleweight": "bold",
    "legend.fontsize": 9,
    "image.cmap": "viridis",
}
WIDTH = 3.6  # inches of one panel
LETTERS = 8  # an inch holds so many of a bold title


def canvas(
    title: str, rows: int = 1, columns: int = 1, *, width: float = WIDTH, height: float = 3.2, **options: Any
) -> tuple[Figure, Any]:
    """A figure whose title says what it shows, and its (rows, columns) array of axes.

    width, height: size of one panel, inches. options: passed to `Figure.subplots`.
    """
    figure = Figure((max(width * columns, 5.0), height * rows + 0.4), layout="constrained")
    figure.suptitle(textwrap.fill(title, int(LETTERS * figure.get_figwidth())), x=0.01, ha="left")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def label(ax: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Set a panel's title and axis labels, with units."""
    ax.set(title=title, xlabel=x, ylabel=y)
