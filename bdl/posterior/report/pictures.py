"""The pictures of a report: which of them there are numbers for, and what their captions say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from bdl.collector import paused
from bdl.posterior.diagnostics import ConvergenceRow
from bdl.posterior.energy_histogram import EnergyHistogram, weighting_sentences
from bdl.posterior.evaluation import Curve
from bdl.posterior.judge_law import COLDEST_DIRECTION, HOTTEST_DIRECTION, KINETIC, T_EFF
from bdl.posterior.judge_weights import TOLERATED_HEAT
from bdl.posterior.report.text import Word
from bdl.posterior.target_values import Values

# What a reader who has never seen the picture looks for, and what its parts are
ENERGY = (
    "Each line is a chain. In a good run the lines lie over each other and stay level.",
    "The energy U is the loss of all training data and of the prior together. Thin lines: as measured; thick lines: "
    "running means; ticks at the bottom: steps of kept samples. Drag over the picture to look closer.",
)
SCHEDULE = {
    "lr": "The learning rate follows its schedule.",
    "temperature": "The kinetic temperature should lie close to the line T. Where there is none, T_eff should.",
    "multiplier": "The multiplier is the factor by which the weighting changes the gradient.",
}
TEMPERATURE = (
    "T_eff = T (1 + noise_ratio) is the temperature that the noise of mini-batches makes of T, as a mean over "
    "directions; single ones may be far hotter. The kinetic temperature is the mean that the momenta show, which a "
    "thermostat sets. Shaded: the range over chains."
)
DIRECTIONS = (
    "In a good run all points lie in the green band. Points to the right of it are directions sampled too hot.",
    "Measured at kept samples by gradients of all training data, which no thermostat controls. Batch noise 1 is the "
    "direction in which the gradients of batches vary most. A tensor's name stands for its steep directions, and "
    "“spread of” for its coordinates alike. Bars: two standard errors.",
)
CURVE = (
    "Averages of more networks predict better, until the lines are level: then more samples would change nothing.",
    "If the average of one chain stays worse than the average of as many networks of all chains, the chains have "
    "reached different modes, and more chains improve the predictions.",
)
RELIABILITY = (
    "Of all items that get a confidence of 80 %, 80 % should be right: the points should lie on the dotted line.",
    "Below the dotted line the network is overconfident. Bars: standard errors. The lower picture shows how many "
    "items get which confidence.",
)
INTERVALS = (
    "Each bar should hold its point in 9 of 10 cases. Red points lie outside of their bars.",
    "Items are sorted by their predicted mean.",
)
RESIDUALS = (
    "9 of 10 points should lie in the blue band, without a slope and without a funnel.",
    "A slope means that the network misses a trend, a funnel that it misjudges its error.",
)
QUANTILES = (
    "Half of the data should lie below the predicted median, and so on: the points should lie on the dotted line.",
    "A curve that is steeper in the middle means intervals that are too wide, a flatter one intervals that are too "
    "narrow.",
)
HISTOGRAM = (
    "Bars: the energies that the chains visit. Blue line: the energies of the target distribution, by importance "
    "weights. The red line should lie close to the dashed one.",
    "The multiplier scales the gradient: above 1 it pulls the chain to low energy.",
)

LIMITS = (1 / TOLERATED_HEAT, TOLERATED_HEAT)  # of the ratio of a temperature to T
DIRECTIONS_SHOWN = 20  # directions in a picture
TARGETS_SHOWN = 8  # targets with pictures

# The checks that these pictures show
AVERAGE_CHECKS = ("Monte Carlo error", "Average against one sample")
TEMPERATURE_CHECKS = ("Temperature", T_EFF, KINETIC, "Configurational temperature")
DIRECTIONAL = (HOTTEST_DIRECTION, COLDEST_DIRECTION)
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
    values: Sequence[Values] = ()  # of each target, for predictions of numbers
    curve: Curve | None = None
    text: Sequence[Word] = ()  # the first test tokens
    classes: Sequence[tuple[str, Sequence[str]]] = ()  # name -> items, recall, precision, IoU, AUC and AP as texts
    class_columns: Sequence[str] = ()  # the names of several columns of classes
    folder: str = ""  # see `Summary`
    command: str = ""  # the command that makes the run
    convergence: Sequence[ConvergenceRow] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Picture:
    title: str
    draw: Callable[..., Any]  # makes the matplotlib Figure
    arguments: tuple[Any, ...]
    lead: str  # what to look for, in one sentence
    caption: str  # what its parts are
    size: str = ""  # "half": two of them stand side by side
    checks: Sequence[str] = ()  # names of the verdict's checks that are seen here
    zooms: bool = False  # can a reader look closer at a part of its x axis?

    @cached_property
    def embedded(self) -> tuple[str, str]:
        """An SVG in a data URI; and what the page needs to draw a part of it, as JSON, empty where it does not zoom."""
        from bdl.posterior.report.figures import drawn, uri_of  # they import matplotlib, which takes a second
        from bdl.posterior.report.zoom import lines_of

        figure, svg = drawn(self.draw, self.arguments, "svg", {"Date": None})
        return uri_of(svg), lines_of(figure) if self.zooms else ""

    @property
    def png(self) -> bytes:
        from bdl.posterior.report.figures import drawn

        return drawn(self.draw, self.arguments, "png", {})[1]


def pictures_of(data: ReportData) -> list[Picture]:
    """The pictures for which there are numbers, so that no picture is an empty frame."""
    from bdl.posterior.plot.predictions import has_reliability

    with paused():
        from bdl.posterior.report import figures  # it imports matplotlib, which takes a second

    trace = data.trace if len(data.trace.get("step", ())) > 1 else {}
    h, curve = data.histogram, data.curve
    pictures = []
    for v in data.values[:TARGETS_SHOWN]:
        of, shares = f": {v.units.name}" if len(data.values) > 1 else "", (v.shares, len(v.y))
        pictures += [
            Picture(f"Predictions against data{of}", figures.intervals_figure, (v,), *INTERVALS),
            Picture(f"Residuals{of}", figures.residuals_figure, (v,), *RESIDUALS, "half"),
            Picture(f"Calibration of quantiles{of}", figures.quantiles_figure, shares, *QUANTILES, "half", WIDTHS),
        ]
    if moves(trace.get("energy", ())):
        energies = (trace["step"], trace["energy"], np.asarray(data.kept_steps))
        pictures.append(Picture("Energy", figures.traces_figure, energies, *ENERGY, checks=["Energy"], zooms=True))
    if hot_to_cold := directions_of(data.metrics):
        arguments = (hot_to_cold, LIMITS)
        pictures.append(
            Picture("Temperature by direction", figures.directions_figure, arguments, *DIRECTIONS, checks=DIRECTIONAL)
        )
    if rows := rows_that_move(trace):
        pictures.append(schedule_picture(trace, rows))
    if curve is not None and len(curve.samples) > 1:
        title = f"{'RMSE' if curve.of_numbers else 'Accuracy'} and NLL against the number of networks"
        pictures.append(Picture(title, figures.learning_curve_figure, (curve,), *CURVE, checks=AVERAGE_CHECKS))
    if any(has_reliability(*each) for each in data.reliability.values()):
        shown, check = (data.reliability,), ["Calibration error (ECE)"]
        pictures.append(Picture("Reliability", figures.reliability_figure, shown, *RELIABILITY, "half", check))
    if h is not None:
        state = "has settled and is frozen" if h.frozen else "still changes"
        did, (lead, parts) = " ".join(weighting_sentences(data.metrics)), HISTOGRAM
        caption = f"{did} zeta = {h.zeta:g}, T = {h.temperature:g}; psi {state}. {parts}".strip()
        title = "Energy histogram and weighting"
        pictures.append(Picture(title, figures.energy_weights_figure, (h,), lead, caption, "half", WEIGHTING))
    return pictures


def directions_of(metrics: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """(name, ratio to T, its standard error) of the directions that were measured, the hottest first.

    Of more than DIRECTIONS_SHOWN directions the hottest and the coldest.
    """
    t, prefix = metrics.get("temperature", 0.0), "temperature/direction/"
    measured = {k.removeprefix(prefix): v / t for k, v in metrics.items() if k.startswith(prefix)} if t else {}
    rows = [
        (name_of_direction(name), ratio, measured.get(f"{name}_se", 0.0))
        for name, ratio in measured.items()
        if not name.endswith("_se") and ratio > 0
    ]
    rows.sort(key=lambda row: -row[1])
    return (
        rows if len(rows) <= DIRECTIONS_SHOWN else [*rows[: DIRECTIONS_SHOWN // 2], *rows[-(DIRECTIONS_SHOWN // 2) :]]
    )


def name_of_direction(direction: str) -> str:
    """A direction in words.

    >>> name_of_direction("noise_1"), name_of_direction("spread/0.weight"), name_of_direction("all")
    ('batch noise 1', 'spread of 0.weight', 'all directions')
    """
    kind, _, tensor = direction.rpartition("/")
    words = "all directions" if tensor == "all" else tensor.replace("noise_", "batch noise ")
    return f"spread of {words}" if kind else words


def rows_that_move(trace: Mapping[str, Any]) -> list[str]:
    """Which rows of `figures.SCHEDULE` change along the run: a picture of a constant says nothing."""
    from bdl.posterior.report.figures import SCHEDULE_ROWS as rows

    return [name for name, columns in rows.items() if any(moves(trace.get(column, ())) for column in columns)]


def schedule_picture(trace: Mapping[str, Any], rows: Sequence[str]) -> Picture:
    """Learning rate, temperatures and multiplier, as far as they change."""
    from bdl.posterior.report.figures import schedule_figure

    names = {"lr": "learning rate"}
    title = " and ".join(names.get(row, row) for row in rows).capitalize()
    lead, hot = " ".join(SCHEDULE[row] for row in rows), "temperature" in rows
    checks = TEMPERATURE_CHECKS if hot else ()
    return Picture(title, schedule_figure, (trace, rows), lead, TEMPERATURE if hot else "", checks=checks, zooms=True)


def moves(values: Any) -> bool:
    """Whether the values are more than one finite number repeated: a picture of a constant says nothing."""
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    return bool(finite.size) and float(np.ptp(finite)) > 1e-9 * float(np.abs(finite).max())
