"""The pictures of a report: which of them there are numbers for, and what their captions say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from bdl.posterior.diagnostics import ConvergenceRow
from bdl.posterior.energy_histogram import EnergyHistogram, weighting_sentences
from bdl.posterior.evaluation import Curve
from bdl.posterior.report.text import Word
from bdl.posterior.value_evaluation import Values

ENERGY = (
    "Thin lines: energy of each step; thick lines: its running mean. In equilibrium the chains overlap and do not "
    "drift."
)
SCHEDULE = (
    "T_eff = T (1 + noise_ratio) is the temperature that injected noise and batch noise reach together. Shaded: the "
    "range over chains."
)
CURVE = (
    "While NLL still falls, more samples improve the average. If one chain's average stays above all chains' average "
    "at the same number of networks, the chains have reached different modes, and more chains improve it."
)
RELIABILITY = (
    "On the dotted line confidence equals accuracy; below it the network is overconfident. Bars: standard errors."
)
INTERVALS = "Each bar is the range that should hold the item's value in 9 of 10 cases. Red points lie outside of it."
RESIDUALS = (
    "Points far outside the band are surprises. A slope or a funnel means that the network misses a trend or misjudges "
    "its error."
)
QUANTILES = (
    "On the dotted line the prediction is right. A curve that is steeper in the middle means intervals that are too "
    "wide, a flatter one intervals that are too narrow."
)
HISTOGRAM = (
    "psi should lie close to the dashed line. The multiplier scales the gradient: above 1 it pulls the chain to low "
    "energy."
)

# The checks that these pictures show
AVERAGES = ("Monte Carlo error", "Average against one sample")
TEMPERATURES = ("Temperature", "T_eff", "Kinetic temperature", "Configurational temperature")
WIDTHS = ("Width against residuals", "Calibration of intervals")
WEIGHTING = ("ESS of importance weights", "Energy bins")


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows. Only the title is required: the page omits or marks what is absent or NaN."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)  # data, model, sampler, N, T, prior, ... in this order
    explain: str = ""  # `sampler.explain()`
    metrics: Mapping[str, float] = field(default_factory=dict)  # names and numbers as in metrics.json
    trace: Mapping[str, np.ndarray] = field(default_factory=dict)  # step (n,); other columns (n,) or (n, C)
    kept_steps: np.ndarray | Sequence[int] = ()  # (k,)
    histogram: EnergyHistogram | None = None
    reliability: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # name -> probs (n, K), labels (n,)
    values: Values | None = None  # for predictions of numbers
    curve: Curve | None = None
    text: Sequence[Word] = ()  # the first test tokens
    classes: Sequence[tuple[str, Sequence[str]]] = ()  # name -> items, recall, precision, IoU and AUC as texts
    command: str = ""  # the command that makes the run
    convergence: Sequence[ConvergenceRow] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Picture:
    """One picture of the page."""

    title: str
    draw: Callable[..., Any]  # makes the matplotlib Figure
    arguments: tuple[Any, ...]
    caption: str
    size: str = ""  # "half": two of them stand side by side
    checks: Sequence[str] = ()  # names of the verdict's checks that are seen here

    @property
    def uri(self) -> str:
        """An SVG in a data URI."""
        from bdl.posterior.report.figures import as_uri  # it imports matplotlib, which takes a second

        return as_uri(self.draw, *self.arguments)

    @property
    def png(self) -> bytes:
        from bdl.posterior.report.figures import drawn

        return drawn(self.draw, self.arguments, "png", {})


def pictures_of(data: ReportData) -> list[Picture]:
    """The pictures for which there are numbers: none of them is an empty frame."""
    from bdl.posterior.plot.predictions import has_reliability
    from bdl.posterior.report import figures  # it imports matplotlib, which takes a second

    trace = data.trace if len(data.trace.get("step", ())) > 1 else {}
    h, curve, v = data.histogram, data.curve, data.values
    pictures = []
    if v is not None:
        of = f", first of {v.targets} targets" if v.targets > 1 else ""
        shares = (v.shares, len(v.y))
        pictures += [
            Picture(f"Predictions against data{of}", figures.intervals, (v,), INTERVALS),
            Picture(f"Residuals{of}", figures.residuals, (v,), RESIDUALS, "half"),
            Picture("Calibration of quantiles", figures.quantiles, shares, QUANTILES, "half", WIDTHS),
        ]
    if known(trace.get("energy", ())):
        energies = (trace["step"], trace["energy"], np.asarray(data.kept_steps))
        pictures.append(Picture("Energy", figures.energy_trace, energies, ENERGY, checks=["Energy"]))
    if any(moves(trace.get(name, ())) for name in ("lr", "temperature", "t_eff", "kinetic_temperature", "multiplier")):
        title = "Learning rate and temperature"
        pictures.append(Picture(title, figures.schedule, (trace,), SCHEDULE, checks=TEMPERATURES))
    if curve is not None and len(curve.samples) > 1:
        title = f"{'RMSE' if curve.of_numbers else 'Accuracy'} and NLL against the number of networks"
        pictures.append(Picture(title, figures.learning_curve, (curve,), CURVE, checks=AVERAGES))
    if any(has_reliability(*each) for each in data.reliability.values()):
        shown = (data.reliability,)
        pictures.append(
            Picture("Reliability", figures.reliability, shown, RELIABILITY, "half", ["Calibration error (ECE)"])
        )
    if h is not None:
        state = "has settled and is frozen" if h.frozen else "still changes"
        did = " ".join(weighting_sentences(data.metrics))
        caption = f"{did} zeta = {h.zeta:g}, T = {h.temperature:g}; psi {state}. {HISTOGRAM}".strip()
        pictures.append(Picture("Energy histogram and weighting", figures.histogram, (h,), caption, "half", WEIGHTING))
    return pictures


def moves(values: Any) -> bool:
    """Whether the values are more than one finite number repeated: a picture of a constant says nothing."""
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    return bool(finite.size) and float(np.ptp(finite)) > 1e-9 * float(np.abs(finite).max())


def known(values: Any) -> bool:
    """Whether any of the values is a finite number."""
    return bool(np.isfinite(np.asarray(values, dtype=float)).any())
