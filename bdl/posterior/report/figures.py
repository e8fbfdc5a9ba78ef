"""The pictures of a report: each function makes a matplotlib Figure from arrays, and `as_uri` embeds it in a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from torch import Tensor

from bdl.posterior.energy_histogram import EnergyHistogram
from bdl.posterior.evaluation import Curve
from bdl.posterior.metrics import reliability_bins
from bdl.posterior.value_evaluation import Values

BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, GREY = PALETTE = (  # Okabe & Ito 2008: distinct to colour-blind readers
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#6B6B6B",
)  # fmt: skip
STYLE = matplotlib.rc_params_from_file(Path(__file__).with_suffix(".mplstyle"), use_default_template=False)
WIDE, HALF = 10.6, 5.2  # inches; an inch is 100 px on the page
POINTS = 1200  # rows of a trace that are drawn: a page is about as many pixels wide
ENOUGH = 10  # items that a bin of confidence needs to be drawn: fewer have no meaningful accuracy
NAMED = 8  # up to this many chains are named in the legend
SHOWN = 120  # items with an interval: more would touch each other
NORMAL_90 = 1.645  # 90 % of a normal law lie within so many standard deviations


def as_uri(draw: Callable[..., Figure], *arguments: Any) -> str:
    """The figure of `draw(*arguments)` as an SVG in a data URI."""
    return "data:image/svg+xml;base64," + base64.b64encode(drawn(draw, arguments, "svg", {"Date": None})).decode()


def drawn(draw: Callable[..., Figure], arguments: Sequence[Any], form: str, metadata: dict[str, Any]) -> bytes:
    """The figure of `draw(*arguments)` as a file of the form "svg" or "png"."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        draw(*arguments).savefig(buffer, format=form, dpi=120, metadata=metadata)
    return buffer.getvalue()


def energy_trace(step: np.ndarray, energy: np.ndarray, kept: np.ndarray) -> Figure:
    """Energy (n,) or (n, C) of each chain, nats, along the steps (n,), and the steps `kept` (k,) of samples."""
    step, energy = _thinned(step, energy)
    figure = Figure((WIDE, 3.6), layout="constrained")
    ax = figure.subplots()
    for c, values in enumerate(energy.T):
        colour = PALETTE[c % len(PALETTE)]
        # As paths these lines take megabytes; drawn below all running means they share one bitmap
        ax.plot(step, values, color=colour, lw=0.5, alpha=0.25, zorder=1.5, rasterized=True)
        label = f"chain {c}" if energy.shape[1] <= NAMED else "one line per chain" if c == 0 else None
        ax.plot(*_running_mean(step, values), color=colour, lw=1.5, label=label)
    if len(kept):
        line = {"ls": "", "marker": "|", "ms": 7, "mew": 0.8, "color": "black"}
        ax.plot(kept, np.full(len(kept), 0.012), transform=ax.get_xaxis_transform(), label="kept sample", **line)
    _frame_late(ax, step, energy)
    ax.legend(ncols=NAMED + 1, loc="lower right", bbox_to_anchor=(1, 1), columnspacing=1.2, handlelength=1.4)
    name_axes(ax, "step", "energy U (nats)")
    return figure


def schedule(trace: Mapping[str, np.ndarray]) -> Figure:
    """Learning rate, temperatures and multiplier along the run; trace: `step` (n,), other columns (n,) or (n, C)."""
    rows = [
        ("learning rate", {"lr": (BLUE, "learning rate")}),
        ("temperature", {"kinetic_temperature": (SKY, "kinetic temperature"), "t_eff": (RED, "T_eff, with batch noise"),
                         "temperature": ("black", "T, as configured")}),
        ("multiplier", {"multiplier": (GREEN, "gradient multiplier")}),
    ]  # fmt: skip
    known = {c for c, values in trace.items() if np.isfinite(np.asarray(values, dtype=float)).any()}
    rows = [(name, columns) for name, columns in rows if known & columns.keys()]
    figure = Figure((WIDE, 0.7 + 1.5 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), sharex=True, squeeze=False)[:, 0]
    for ax, (name, columns) in zip(axes, rows, strict=True):
        for column, (colour, label) in columns.items():
            if column in known:
                _band(ax, *_thinned(trace["step"], trace[column]), colour, label)
        _log_if_wide(ax)
        name_axes(ax, "", name)
        if len(columns) > 1:
            ax.legend(ncols=len(columns), loc="lower right", bbox_to_anchor=(1, 0.98), handlelength=1.4)
    name_axes(axes[-1], "step", rows[-1][0])
    return figure


def histogram(h: EnergyHistogram) -> Figure:
    """Above: the recent energies, and psi. Below: the gradient multiplier."""
    figure = Figure((HALF, 4.2), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True, height_ratios=[3, 2])
    shares = np.full(len(h.finite), 1 / max(len(h.finite), 1))
    top.hist(h.finite, h.edges, weights=shares, color="#c9d8e6", label="recent energies")
    name_axes(top, "", "share of energies")
    _psi(top.twinx(), h, np.sort(h.finite))
    # The multiplier is constant between neighbouring centres; the bin edges lie in the middle of these segments
    knots = np.concatenate([h.edges[:1], h.centres, h.edges[-1:]])
    u, values = np.repeat(knots, 2)[1:-1], np.repeat(h.multiplier_at(h.edges), 2)
    bottom.plot(u, values, color=GREEN, lw=1.2)
    _log_if_wide(bottom)
    bottom.axhline(1, color=GREY, lw=0.8, ls=":")
    name_axes(bottom, f"energy U, {h.kind} (nats)", "multiplier")
    return figure


def reliability(predictions: Mapping[str, tuple[Tensor, Tensor]]) -> Figure:
    """Above: accuracy against confidence of each named (probs (n, K), labels (n,)). Below: the share of items."""
    figure = Figure((HALF, 4.2), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    top.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=":", label="calibrated")
    start = 1.0
    colours = (ORANGE, BLUE, GREEN, PINK)
    for (name, (probs, labels)), colour, marker in zip(predictions.items(), colours, "so^D", strict=False):
        confidence, accuracy, count = (t.numpy() for t in reliability_bins(probs, labels))
        error = np.sqrt(accuracy * (1 - accuracy) / np.maximum(count, 1))  # standard error of a proportion
        shown = count >= ENOUGH
        style = {"color": colour, "marker": marker, "ms": 4, "lw": 1.3, "elinewidth": 0.8}
        top.errorbar(confidence[shown], accuracy[shown], error[shown], label=name, **style)
        bottom.stairs(count / count.sum(), np.linspace(0, 1, len(count) + 1), color=colour, lw=1.3)
        start = min(start, (count > 0).argmax() / len(count))
    top.set(xlim=(start, 1.01), ylim=(max(0, start - 0.1), 1.02))
    top.legend(loc="upper left")
    name_axes(top, "", "accuracy")
    name_axes(bottom, "confidence: probability of the predicted class", "share of items")
    return figure


def has_reliability(probs: Tensor, labels: Tensor) -> bool:
    """Whether any bin of confidence has enough items to be drawn."""
    return bool((reliability_bins(probs, labels)[2] >= ENOUGH).any())


def learning_curve(curve: Curve) -> Figure:
    """Accuracy or RMSE, and negative log-likelihood of averages, against the number of networks in the average."""
    figure = Figure((WIDE, 3.1), layout="constrained")
    score, nll = figure.subplots(1, 2)
    unit = 1 if curve.of_numbers else 100
    _averages(score, curve.samples, unit * np.asarray(curve.score), unit * np.asarray(curve.chain_score))
    _averages(nll, curve.samples, np.asarray(curve.nll), np.asarray(curve.chain_nll))
    name_axes(score, "networks in the average", "RMSE of the mean" if curve.of_numbers else "accuracy (%)")
    name_axes(nll, "networks in the average", "negative log-likelihood (nats)")
    nll.legend(loc="upper right")
    return figure


def _averages(ax: Axes, samples: Sequence[int], all_chains: np.ndarray, one_chain: np.ndarray) -> None:
    """Scores `all_chains` (s,) against samples (s,); `one_chain`, (s,) or empty, has 1, 2, ... s networks."""
    total = np.asarray(samples, dtype=float)
    size = 3 if len(total) <= 40 else 0  # markers would hide a long curve
    if len(one_chain) and total[0] > 1:  # total[0] = number of chains, since a round adds one network of each
        label = "one chain's average (mean)"
        ax.plot(total / total[0], one_chain, color=ORANGE, marker="s", ms=size, lw=1.3, label=label)
    ax.plot(total, all_chains, color=BLUE, marker="o", ms=size, lw=1.5, label="average of all chains")
    if total[-1] > 20:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _psi(ax: Axes, h: EnergyHistogram, energies: np.ndarray) -> None:
    """psi, scaled to a maximum of 1, and the fixed point that the recent energies (n,), sorted, imply for it."""
    ax.grid(False)
    ax.spines["right"].set_visible(True)
    top = h.log_psi.max()
    u = np.concatenate([h.edges[:1], h.centres, h.edges[-1:]])
    ax.plot(u, np.exp(h.log_psi_at(u) - top), color=RED, lw=1.5, label="psi")
    if h.cumulative and h.zeta > 0 and len(energies):
        # Importance weights give G, the CDF under exp(-U/T), in logarithms because it spans hundreds of nats
        log_g = np.logaddexp.accumulate(h.zeta * h.log_psi_at(energies))
        floor = log_g[max(np.searchsorted(energies, h.edges[1]) - 1, 0)]
        log_g = np.maximum(log_g, floor)
        reached = log_g + np.log1p((1 / h.zeta - 1) * np.exp(floor - log_g))  # log of G_1 / zeta + G - G_1
        label = "fixed point for these energies"
        ax.plot(energies, np.exp((reached - reached[-1]) / h.zeta), color="black", lw=1, ls="--", label=label)
    ax.set_ylim(0, 1.05)
    ax.set_ylabel("psi")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, handlelength=1.6)


def _band(ax: Axes, step: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    """Mean over chains of values (n, C), and with several chains the range from the lowest to the highest."""
    masked = np.ma.masked_invalid(values)
    ax.plot(step, masked.mean(1).filled(np.nan), color=colour, lw=1.4, label=label)
    if values.shape[1] > 1:
        low, high = (np.ma.filled(m, np.nan) for m in (masked.min(1), masked.max(1)))
        ax.fill_between(step, low, high, color=colour, alpha=0.2, lw=0)


def _thinned(step: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most POINTS evenly spaced rows of step (n,) and of values (n, C); infinite values become NaN."""
    step, values = np.asarray(step), np.asarray(values, dtype=float)
    stride = -(-len(step) // POINTS)
    values = values.reshape(len(step), -1)[::stride]
    return step[::stride], np.where(np.isfinite(values), values, np.nan)


def _running_mean(step: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(step, mean) of values (n,) over a centred window of a sixtieth of the run, which averages over batch noise."""
    width = max(1, len(step) // 60)
    offset = (width - 1) // 2
    mean = np.convolve(values, np.ones(width) / width, "valid")
    return step[offset : offset + len(mean)], mean


def _frame_late(ax: Axes, step: np.ndarray, energy: np.ndarray) -> None:
    """Limit the y axis to the energies after the first tenth, if the burn-in spans a much larger range."""
    late = energy[step >= step[0] + 0.1 * (step[-1] - step[0])]
    if np.isnan(late).all():
        return
    low, high = np.nanmin(late), np.nanmax(late)
    margin = 0.08 * (high - low) or 1.0
    if np.nanmax(energy) > high + (high - low):
        ax.set_ylim(low - margin, high + margin)
        text = f"the run starts above this frame, at {np.nanmax(energy):,.0f} nats"
        ax.text(0.08, 0.97, text, transform=ax.transAxes, va="top", fontsize=8.5, color="#555555")


def _log_if_wide(ax: Axes) -> None:
    """Use a log axis if all drawn values are positive and span more than a factor of 20."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in ax.get_lines()] or [np.ones(1)])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > 20 * values.min():
        ax.set_yscale("log")


def name_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_ylabel(y)
    if x:
        ax.set_xlabel(x)
    if x == "step":
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


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
    name_axes(ax, f"{items}, sorted by predicted mean", values.units.name)
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
    name_axes(ax, f"predicted {values.units.name}", "(data - mean) / predicted std")
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
