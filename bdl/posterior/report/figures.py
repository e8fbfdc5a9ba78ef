"""The figures of a report, drawn by the functions of `bdl.plot`; `as_uri` embeds one in a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from bdl.posterior.energy_histogram import EnergyHistogram
from bdl.posterior.evaluation import Curve
from bdl.posterior.metrics import reliability_bins
from bdl.posterior.plot import chains, predictions
from bdl.posterior.plot.axes import BLUE, GREEN, GREY, ORANGE, PALE, PINK, RED, SKY, log_if_wide, name_axes
from bdl.posterior.target_values import Values

STYLE = matplotlib.rc_params_from_file(Path(__file__).with_suffix(".mplstyle"), use_default_template=False)
WIDE, HALF = 10.6, 5.2  # inches; an inch is 100 px on the page
NORMAL_90 = 1.645  # 90 % of a normal law lie within so many standard deviations


def as_uri(draw: Callable[..., Figure], *arguments: Any) -> str:
    """The figure of `draw(*arguments)` as an SVG in a data URI."""
    return uri_of(drawn(draw, arguments, "svg", {"Date": None})[1])


def uri_of(svg: bytes) -> str:
    """An SVG as a data URI."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def drawn(
    draw: Callable[..., Figure], arguments: Sequence[Any], form: str, metadata: dict[str, Any]
) -> tuple[Figure, bytes]:
    """The figure of `draw(*arguments)`, whose parts then have their places, and its file of the form "svg" or "png"."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure = draw(*arguments)
        figure.savefig(buffer, format=form, dpi=120, metadata=metadata)
    return figure, buffer.getvalue()


def traces_figure(step: np.ndarray, energy: np.ndarray, kept: np.ndarray) -> Figure:
    """Energy (n,) or (n, C) of each chain, nats, along the steps (n,), and the steps `kept` (k,) of samples."""
    figure = Figure((WIDE, 3.6), layout="constrained")
    chains.traces({"step": step, "energy": energy}, figure.subplots(), kept=list(kept))
    return figure


# Rows of the picture of the schedule: columns of the trace, with their colours and names
SCHEDULE_ROWS = {
    "lr": {"lr": (BLUE, "learning rate")},
    "temperature": {"kinetic_temperature": (SKY, "kinetic temperature"), "t_eff": (RED, "T_eff, mean over directions"),
                    "temperature": ("black", "T, as configured")},
    "multiplier": {"multiplier": (GREEN, "gradient multiplier")},
}  # fmt: skip


def schedule_figure(trace: Mapping[str, np.ndarray], rows: Sequence[str] = tuple(SCHEDULE_ROWS)) -> Figure:
    """The named rows of `SCHEDULE_ROWS` along the run; trace: `step` (n,), other columns (n,) or (n, C)."""
    known = {c for c, values in trace.items() if np.isfinite(np.asarray(values, dtype=float)).any()}
    rows = [row for row in rows if known & SCHEDULE_ROWS[row].keys()]
    figure = Figure((WIDE, 0.7 + 1.5 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), sharex=True, squeeze=False)[:, 0]
    for ax, row in zip(axes, rows, strict=True):
        for column, (colour, label) in SCHEDULE_ROWS[row].items():
            if column in known:
                chains.mean_and_range(ax, *chains.thinned_rows(trace["step"], trace[column]), colour, label)
        log_if_wide(ax)
        name_axes(ax, "", "learning rate" if row == "lr" else row)
        if len(SCHEDULE_ROWS[row]) > 1:
            ax.legend(ncols=len(SCHEDULE_ROWS[row]), loc="lower right", bbox_to_anchor=(1, 0.98), handlelength=1.4)
    name_axes(axes[-1], "step", axes[-1].get_ylabel())
    return figure


def energy_weights_figure(h: EnergyHistogram) -> Figure:
    """Above: the recent energies, and psi. Below: the gradient multiplier."""
    figure = Figure((HALF, 4.2), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True, height_ratios=[3, 2])
    chains.energy_weights(h, top).set_xlabel("")
    chains.multiplier(h, bottom)
    return figure


def reliability_figure(named: Mapping[str, tuple[Tensor, Tensor]]) -> Figure:
    """Above: accuracy against confidence of each named (probs (n, K), labels (n,)). Below: the share of items."""
    figure = Figure((HALF, 4.2), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    for (name, (probs, labels)), color, marker in zip(named.items(), (ORANGE, BLUE, GREEN, PINK), "so^D", strict=False):
        predictions.reliability(probs, labels, top, label=name, color=color, marker=marker)
        count = reliability_bins(probs, labels)[2].numpy()
        bottom.stairs(count / count.sum(), np.linspace(0, 1, len(count) + 1), color=color, lw=1.3)
    top.set_xlabel("")
    name_axes(bottom, "confidence: probability of the predicted class", "share of items")
    return figure


def learning_curve_figure(curve: Curve) -> Figure:
    """Accuracy or RMSE, and negative log-likelihood of averages, against the number of networks in the average."""
    figure = Figure((WIDE, 3.1), layout="constrained")
    score, nll = figure.subplots(1, 2)
    chains.learning_curve(curve, score, score="score").legend().remove()  # one legend is enough
    chains.learning_curve(curve, nll).legend(loc="upper right")
    return figure


def directions_figure(rows: Sequence[tuple[str, float, float]], limits: tuple[float, float]) -> Figure:
    """T along each direction of the law: rows of (name, ratio to T, its standard error), the hottest first.

    limits: between which a ratio passes. Bars are two standard errors long on either side.
    """
    names, ratio, error = zip(*rows, strict=True)
    places, ratio, error = np.arange(len(rows))[::-1], np.asarray(ratio), np.nan_to_num(np.asarray(error))
    figure = Figure((WIDE, 0.9 + 0.24 * len(rows)), layout="constrained")
    ax = figure.subplots()
    ax.axvspan(*limits, color=GREEN, alpha=0.14, lw=0, label="right")
    ax.axvline(1, color="black", lw=1, label="T, as asked for")
    hot, cold = ratio - 2 * error > limits[1], ratio + 2 * error < limits[0]
    for these, colour, label in ((~hot & ~cold, BLUE, "measured"), (hot, RED, "too hot"), (cold, SKY, "too cold")):
        if these.any():
            low = np.minimum(2 * error[these], 0.95 * np.abs(ratio[these]))  # a bar on a log axis cannot reach 0
            ax.errorbar(
                ratio[these], places[these], xerr=[low, 2 * error[these]], color=colour, ls="", marker="o", ms=5,
                lw=1.6, label=label,
            )  # fmt: skip
    ax.set_xscale("log")
    ax.set_xlim(min(0.5, 0.8 * float(ratio[ratio > 0].min())), max(2.0, 1.3 * float((ratio + 2 * error).max())))
    ticks = [
        t
        for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
        if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]
    ]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set_yticks(places, names)
    ax.set_ylim(-0.7, len(rows) - 0.3)
    name_axes(ax, "temperature that was sampled, in units of T", "")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=5, handlelength=1.4)
    return figure


def intervals_figure(values: Values) -> Figure:
    """Predicted means with their 90 % intervals, sorted, and the data; y outside its interval is marked."""
    figure, v = Figure((WIDE, 3.8), layout="constrained"), values
    predictions.draw_intervals(figure.subplots(), v.y, v.mean, v.low, v.high, 0.9, v.units.name)
    return figure


def residuals_figure(values: Values) -> Figure:
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
    side.hist(z, bins, density=True, orientation="horizontal", color=PALE)
    grid = np.linspace(-reach, reach, 200)
    side.plot(np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), grid, color="black", lw=1, ls="--")
    side.set_xticks([])
    name_axes(ax, f"predicted {values.units.name}", "(data - mean) / predicted std")
    name_axes(side, "share; dashed:\nnormal", "")
    return figure


def quantiles_figure(shares: Mapping[str, tuple[np.ndarray, np.ndarray]], items: int) -> Figure:
    """Share of the data below the predicted q-quantiles, against q, of each named (q, shares)."""
    figure = Figure((HALF, 3.9), layout="constrained")
    ax = figure.subplots()
    for (name, (q, share)), color, marker in zip(shares.items(), (ORANGE, BLUE), "so", strict=False):
        predictions.draw_quantiles(ax, np.asarray(q), np.asarray(share), items, name, color, marker)
    return figure
