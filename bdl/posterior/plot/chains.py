"""Pictures of chains: their traces, R-hat over items, what the average gains by samples, energies under a weighting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from bdl.errors import ConfigError
from bdl.posterior import diagnostics
from bdl.posterior.energy_histogram import EnergyHistogram
from bdl.posterior.evaluation import Curve, PosteriorEvaluation
from bdl.posterior.plot.axes import BLUE, GREEN, GREY, ORANGE, PALE, PALETTE, RED, axis_or_new, log_if_wide, name_axes
from bdl.posterior.predict import Posterior
from bdl.posterior.store import SampleStore
from bdl.posterior.traces import read_traces, side_by_side

PlottedRun = Posterior | str | Path  # a posterior, of whose runs the first counts, or a run directory
Trace = Mapping[str, Any]  # `step` (n,), other columns (n,) or (n, C)
ROWS_DRAWN = 1200  # rows of a trace that are drawn: a page is about as many pixels wide
NAMED = 8  # up to this many chains are named in the legend
COLUMN_NAMES = {"energy": "energy U (nats)", "t_eff": "T_eff", "lr": "learning rate"}  # names of columns
MIXED = 1.01  # largest R-hat of chains that agree (Vehtari et al. 2021)


def traces(
    run: PlottedRun | Trace, ax: Axes | None = None, *, column: str = "energy", kept: Sequence[int] = ()
) -> Axes:
    """One column of a run's trace along its steps: thin lines for the chains, thick lines for their running means.

    run: a run, whose `Monitor` has left a trace, or the trace itself, with the steps `kept` of samples.

    column: "energy" (nats), "t_eff", "kinetic_temperature", "lr", "multiplier", or another that the trace has.

    Raises ConfigError for a run without a trace, and for a column that it lacks.
    """
    if not isinstance(run, Mapping):
        store = store_of(run)
        records = store.records()
        run, kept = trace_of(store), sorted({record.step for record in records})
    if column not in run:
        raise ConfigError(f"the trace has no column {column}: it has {', '.join(sorted(run))}")
    ax = axis_or_new(ax, 10.6)
    step, values = thinned_rows(run["step"], run[column])
    for c, each in enumerate(values.T):
        colour = PALETTE[c % len(PALETTE)]
        # As paths these lines take megabytes; drawn below all running means they share one bitmap
        ax.plot(step, each, color=colour, lw=0.5, alpha=0.25, zorder=1.5, rasterized=True)
        label = f"chain {c}" if values.shape[1] <= NAMED else "one line per chain" if c == 0 else None
        ax.plot(*_running_mean(step, each), color=colour, lw=1.5, label=label)
    if len(kept):
        line: dict[str, Any] = {"ls": "", "marker": "|", "ms": 7, "mew": 0.8, "color": "black"}
        ax.plot(kept, np.full(len(kept), 0.012), transform=ax.get_xaxis_transform(), label="kept sample", **line)
    _frame_late(ax, step, values)
    ax.legend(ncols=NAMED + 1, loc="lower right", bbox_to_anchor=(1, 1), columnspacing=1.2, handlelength=1.4)
    name_axes(ax, "step", COLUMN_NAMES.get(column, column.replace("_", " ")))
    return ax


def rhat(evaluation: PosteriorEvaluation, ax: Axes | None = None) -> Axes:
    """How many of the predictions that R-hat compares have which R-hat; the line at 1.01 bounds chains that agree.

    evaluation: `posterior.evaluate(loader)`, of two or more chains of four draws each.

    Raises ConfigError where R-hat is not defined for any of them.
    """
    values = diagnostics.rhat(evaluation.quantities)
    values = values[np.isfinite(values)]
    if not len(values):
        raise ConfigError("R-hat needs two chains or more, of four draws or more, whose predictions differ")
    ax = axis_or_new(ax)
    bins = np.linspace(min(1.0, values.min()), max(1.02, values.max()), 31).tolist()
    ax.hist(values, bins, color=PALE)
    share = float((values <= MIXED).mean())
    ax.axvline(MIXED, color=RED, lw=1.2, ls="--", label=f"{MIXED}: {100 * share:.0f} % are below")
    ax.legend(loc="upper right")
    name_axes(ax, "R-hat of a prediction", f"of {len(values)} predictions")
    return ax


def learning_curve(
    evaluation: PosteriorEvaluation | Curve, ax: Axes | None = None, *, score: Literal["nll", "score"] = "nll"
) -> Axes:
    """A score of averages against the number of networks in them, over all chains and within one.

    score: "nll", the negative log-likelihood in nats, or "score", the accuracy in per cent, or for numbers the RMSE.
    """
    curve, ax = evaluation if isinstance(evaluation, Curve) else evaluation.curve, axis_or_new(ax)
    if score == "nll":
        all_chains, one_chain, name = curve.nll, curve.chain_nll, "negative log-likelihood (nats)"
    else:
        unit = 1 if curve.of_numbers else 100
        all_chains, one_chain = unit * np.asarray(curve.score), unit * np.asarray(curve.chain_score)
        name = "RMSE of the mean" if curve.of_numbers else "accuracy (%)"
    _averages(ax, curve.samples, np.asarray(all_chains), np.asarray(one_chain))
    ax.legend(loc="best")
    name_axes(ax, "networks in the average", name)
    return ax


def energy_weights(run: PlottedRun | EnergyHistogram, ax: Axes | None = None) -> Axes:
    """The recent energies under a weighting, psi, and what importance weights make of the energies: exp(-U/T).

    Raises ConfigError for a run without a weighting.
    """
    h, ax = _histogram_of(run), axis_or_new(ax)
    edges = h.edges.tolist()
    shares = np.full(len(h.finite), 1 / max(len(h.finite), 1))
    ax.hist(h.finite, edges, weights=shares, color=PALE, label="recent energies")
    if len(h.finite):
        log_w = h.zeta * h.log_psi_at(h.finite)
        w = np.exp(log_w - log_w.max())
        ax.hist(h.finite, edges, weights=w / w.sum(), histtype="step", color=BLUE, lw=1.2, label="reweighted")
    name_axes(ax, f"energy U, {h.kind} (nats)", "share of energies")
    of_psi = ax.twinx()
    _psi(of_psi, h, np.sort(h.finite))
    handles, labels = (a + b for a, b in zip(*(each.get_legend_handles_labels() for each in (ax, of_psi)), strict=True))
    of_psi.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, handlelength=1.6)
    return ax


def multiplier(run: PlottedRun | EnergyHistogram, ax: Axes | None = None) -> Axes:
    """The factor by which a weighting multiplies the gradient, against the energy. Raises as `energy_weights` does."""
    h, ax = _histogram_of(run), axis_or_new(ax)
    # The multiplier is constant between neighbouring centres; the bin edges lie in the middle of these segments
    knots = np.concatenate([h.edges[:1], h.centres, h.edges[-1:]])
    u, values = np.repeat(knots, 2)[1:-1], np.repeat(h.multiplier_at(h.edges), 2)
    ax.plot(u, values, color=GREEN, lw=1.2)
    log_if_wide(ax)
    ax.axhline(1, color=GREY, lw=0.8, ls=":")
    name_axes(ax, f"energy U, {h.kind} (nats)", "multiplier")
    return ax


def store_of(run: PlottedRun) -> SampleStore:
    return run.stores[0] if isinstance(run, Posterior) else SampleStore(run)


def trace_of(store: SampleStore) -> dict[str, np.ndarray]:
    """The trace of all chains of a run. Raises ConfigError without one."""
    written = read_traces(store.run_dir, sorted({record.stack for record in store.records()}))
    if not written:
        raise ConfigError(f"{store.run_dir} has no trace: runs of `bdl train` and of bdl.sample(test=...) leave one")
    return {name: column.numpy() for name, column in side_by_side(written).items()}


def _histogram_of(run: PlottedRun | EnergyHistogram) -> EnergyHistogram:
    if isinstance(run, EnergyHistogram):
        return run
    store = store_of(run)
    if not (histograms := EnergyHistogram.read_all(store, store.records()[0].stack)):
        raise ConfigError(f"{store.run_dir} was sampled without a weighting, so that its energies have no psi")
    return histograms[0]


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


def mean_and_range(ax: Axes, step: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    """Mean over chains of values (n, C), and with several chains the range from the lowest to the highest."""
    masked = np.ma.masked_invalid(values)
    ax.plot(step, masked.mean(1).filled(np.nan), color=colour, lw=1.4, label=label)
    if values.shape[1] > 1:
        low, high = (np.ma.filled(m, np.nan) for m in (masked.min(1), masked.max(1)))
        ax.fill_between(step, low, high, color=colour, alpha=0.2, lw=0)


def thinned_rows(step: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most ROWS_DRAWN evenly spaced rows of step (n,) and of values (n, C); infinite values become NaN."""
    step, values = np.asarray(step), np.asarray(values, dtype=float)
    stride = -(-len(step) // ROWS_DRAWN)
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
