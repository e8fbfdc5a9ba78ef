"""The lines of a picture as numbers, from which `zoom.js` draws the part of the x axis that a reader chooses."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

ZOOM_LEVELS = 65534  # steps from one end of an axis to the other; 65535 stands for a number that is not finite


def lines_of(figure: Figure) -> str:
    """JSON with the frame and the lines of each axis of a figure that has been drawn: its layout says where they are.

    An axis is {box: left, bottom, right, top as shares of the picture; x: its limits; name, log; lines}. A line is
    {x, y: numbers of 16 bits in base64; ends: smallest and largest y; colour, width, alpha, label}.
    """
    return json.dumps([_axis(ax) for ax in figure.axes], separators=(",", ":"))


def _axis(ax: Axes) -> dict[str, Any]:
    box, limits = ax.get_position(), ax.get_xlim()
    lines = [line for line in ax.get_lines() if line.get_transform() == ax.transData and line.get_linestyle() != "None"]
    return {
        "box": [round(float(v), 4) for v in (box.x0, box.y0, box.x1, box.y1)],
        "x": [float(v) for v in limits],
        "name": ax.get_ylabel(),
        "log": ax.get_yscale() == "log",
        "lines": [_line(line, limits) for line in lines],
    }


def _line(line: Line2D, limits: tuple[float, float]) -> dict[str, Any]:
    y = np.asarray(line.get_ydata(), dtype=float)
    finite = y[np.isfinite(y)]
    ends = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    label = str(line.get_label())
    return {
        "x": _levels(np.asarray(line.get_xdata(), dtype=float), limits),
        "y": _levels(y, ends),
        "ends": ends,
        "colour": to_hex(line.get_color()),
        "width": line.get_linewidth(),
        "alpha": line.get_alpha() or 1,
        "label": "" if label.startswith("_") else label,  # matplotlib names lines without a label _child0, ...
    }


def _levels(values: np.ndarray, ends: tuple[float, float]) -> str:
    """Values (n,) between the two ends as numbers 0 ... 65534 of 16 bits, little-endian, in base64."""
    low, high = ends
    share = (values - low) / ((high - low) or 1.0)
    levels = np.where(np.isfinite(share), np.rint(share * ZOOM_LEVELS), ZOOM_LEVELS + 1)
    return base64.b64encode(levels.astype("<u2").tobytes()).decode()
