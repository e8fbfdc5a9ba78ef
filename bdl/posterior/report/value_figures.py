"""The pictures of predictions of numbers: intervals against data, residuals, quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bdl.posterior.report.figures import BLUE, GREY, HALF, ORANGE, RED, WIDE, name_axes
from bdl.posterior.value_evaluation import Values

SHOWN = 120  # items with an interval: more would touch each other
NORMAL_90 = 1.645  # 90 % of a normal law lie within so many standard deviations


def intervals(values: Values) -> Figure:
    """Predicted means with their 90 % intervals, sorted, and the data; y outside its interval is marked."""
    chosen = np.linspace(0, len(values.y) - 1, min(SHOWN, len(values.y))).astype(int)
    order = np.argsort(values.mean, kind="stable")[chosen]
    y, mean, low, high = (v[order] for v in (values.y, values.mean, values.low, values.high))
    place, outside = np.arange(len(order)), (y < low) | (y > high)
    everyone = len(order) == len(values.y)
    items = f"all {len(order):,} test items" if everyone else f"{len(order):,} of {len(values.y):,} test items"
    figure = Figure((WIDE, 3.8), layout="constrained")
    ax = figure.subplots()
    ax.vlines(place, low, high, color=BLUE, lw=4 if len(order) > 60 else 7, alpha=0.28, label="90 % interval")
    ax.plot(place, mean, color=BLUE, ls="", marker="_", ms=6, mew=1.6, label="predicted mean")
    dot: dict[str, Any] = {"ls": "", "marker": "o"}
    ax.plot(place[~outside], y[~outside], color="black", ms=3.6, label="data, inside", **dot)
    ax.plot(place[outside], y[outside], color=RED, mec="white", mew=0.4, ms=5.5, label="data, outside", **dot)
    ax.set_xlim(-1, len(order))
    ax.set_xticks([])
    ax.legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1), columnspacing=1.4, handlelength=1.2)
    name_axes(ax, f"{items}, sorted by predicted mean", values.name)
    return figure


def residuals(values: Values) -> Figure:
    """(y - mean) / std against the predicted mean, with the band that should hold 90 %."""
    z = (values.y - values.mean) / values.std
    figure = Figure((HALF, 3.9), layout="constrained")
    ax, side = figure.subplots(1, 2, sharey=True, width_ratios=[4, 1])
    ax.axhspan(-NORMAL_90, NORMAL_90, color=BLUE, alpha=0.12, lw=0, label="should hold 90 %")
    ax.axhline(0, color=GREY, lw=0.8)
    ax.plot(values.mean, z, color=BLUE, ls="", marker="o", ms=2.6, alpha=0.55, mew=0, rasterized=True)
    reach = max(3.5, float(np.quantile(np.abs(z), 0.995)) * 1.1)
    ax.set_ylim(-reach, reach)
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1))
    bins = np.linspace(-reach, reach, 32)
    side.hist(z, bins, density=True, orientation="horizontal", color="#c9d8e6")
    grid = np.linspace(-reach, reach, 200)
    side.plot(np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), grid, color="black", lw=1, ls="--")
    side.set_xticks([])
    name_axes(ax, f"predicted {values.name}", "(data - mean) / predicted std")
    name_axes(side, "share; dashed:\nnormal", "")
    return figure


def quantiles(shares: Mapping[str, tuple[np.ndarray, np.ndarray]], items: int) -> Figure:
    """Share of the data below the predicted q-quantiles, against q, of each named (q, shares)."""
    figure = Figure((HALF, 3.9), layout="constrained")
    ax = figure.subplots()
    q = np.linspace(0, 1, 101)
    error = 2 * np.sqrt(q * (1 - q) / max(items, 1))  # two standard errors of a share
    ax.fill_between(q, q - error, q + error, color=GREY, alpha=0.15, lw=0, label="calibrated, 2 s.e.")
    ax.plot(q, q, color=GREY, lw=0.8, ls=":")
    for (name, (at, share)), colour, marker in zip(shares.items(), (ORANGE, BLUE), "so", strict=False):
        ax.plot(at, share, color=colour, marker=marker, ms=4, lw=1.3, label=name)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.legend(loc="upper left")
    name_axes(ax, "quantile that is predicted", "share of the data below it")
    return figure
