"""Calibration of a run: its fit on the validation items, its scores on test items, and its file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.posterior.calibration import ConformalIntervals, ConformalSets, TemperatureScaling, conformal_least
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.evaluation import PosteriorEvaluation
from bdl.posterior.prediction import Prediction

Calibration = TemperatureScaling | ConformalSets | ConformalIntervals
SHOWN = 20  # classes of which each has a number in metrics.json
CALIBRATIONS = {"temperature": TemperatureScaling, "sets": ConformalSets, "intervals": ConformalIntervals}


@dataclass(frozen=True)
class CalibrationRequest:
    """What `calibrate=` asks for: conformal sets or intervals of a level, or temperature scaling.

    by: "class" for sets that keep the level for the items of each class by themselves.
    groups: (n,) of the items of each split that depend on each other, see `conformal_threshold`; {} for others.

    Raises ConfigError for a level outside (0, 1), and for classes of temperature scaling.
    """

    method: Literal["conformal", "temperature"]
    level: float = 0.9
    by: Literal["class"] | None = None
    groups: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in ("conformal", "temperature"):
            raise ConfigError(f"calibrate must be conformal or temperature, got {self.method!r}")
        if not 0 < self.level < 1:
            raise ConfigError(f"calibrate.level must be a probability between 0 and 1, got {self.level}")
        if self.by is not None and (self.method, self.by) != ("conformal", "class"):
            raise ConfigError(f"calibrate.by={self.by}: conformal sets may be by class, nothing else by anything")

    @classmethod
    def of(cls, section: Mapping[str, Any] | None) -> CalibrationRequest | None:
        """That of the section `calibrate` of a configuration; None without one."""
        return None if section is None else cls(**section)

    @property
    def words(self) -> str:
        """The request as one writes it on a command line."""
        level = "" if self.level == 0.9 else f" calibrate.level={self.level}"
        by = "" if self.by is None else f" calibrate.by={self.by}"
        return f"calibrate={self.method}{level}{by}"

    def check(self, outputs: str, has_val: bool, has_test: bool, items: int | None, units: str = "items") -> None:
        """Raise ConfigError where nothing can be fitted, or nothing judged by rows that the fit has not seen.

        outputs: of the likelihood. items: of the validation split, where that is known; or its groups, as `units` says.
        """
        name = f"calibrate={self.method}"
        if not (has_val and has_test):
            raise ConfigError(
                f"{name} is fitted on validation items and judged on test items, and the data have no "
                f"{'test' if has_val else 'validation'} items: data.val_fraction=0.2 holds some out for validation, "
                "data.test_fraction=0.2 for the test"
            )
        if self.method == "temperature" and outputs == "values":
            raise ConfigError(f"{name} scales probabilities of classes: for numbers, calibrate=conformal")
        if self.by is not None and outputs == "values":
            raise ConfigError("calibrate.by=class makes sets by class, and the run predicts numbers: leave it out")
        if self.method == "conformal" and outputs == "labels":
            raise ConfigError(
                f"{name} makes sets of classes and intervals of numbers: for labels, calibrate=temperature"
            )
        least = conformal_least(self.level)
        if self.method == "conformal" and items is not None and items < least:
            raise ConfigError(
                f"calibrate.level={self.level} needs at least {least} validation {units}, and there are {items}: raise "
                "data.val_fraction or lower the level"
            )

    def on(self, groups: Mapping[str, Tensor]) -> CalibrationRequest:
        """The same for items with these groups."""
        return replace(self, groups=groups)

    def fit(self, evaluations: Mapping[str, PosteriorEvaluation]) -> tuple[Calibration, dict[str, float]]:
        """Fit the average over all networks on the split "val", and score it on "test". The numbers are for metrics."""
        (prediction, y), groups = average(evaluations["val"]), self.groups.get("val")
        if self.method == "temperature":
            calibration: Calibration = TemperatureScaling.fit(prediction, y)
        else:
            if isinstance(evaluations["val"], ClassEvaluation):
                calibration = ConformalSets.fit(prediction, y, self.level, groups, self.by == "class")
            else:
                calibration = ConformalIntervals.fit(prediction, y, self.level, groups)
        scores = calibration_metrics(calibration, evaluations["test"], self.groups.get("test"))
        numbers = fitted_numbers(calibration, evaluations["val"].items, groups)
        return calibration, numbers | {f"test/{name}": value for name, value in scores.items()}


def average(evaluation: PosteriorEvaluation) -> tuple[Any, Tensor]:
    """The prediction of the average over all networks, and what it predicts. A label is an item of two classes."""
    if not isinstance(evaluation, ClassEvaluation):
        return evaluation.bma, evaluation.y
    zeros = evaluation.bma.new_zeros(len(evaluation.bma))  # no calibration reads uncertainties
    return Prediction(evaluation.bma, zeros, zeros, zeros, torch.zeros_like(evaluation.bma)), evaluation.labels


def calibration_metrics(
    calibration: Calibration, evaluation: PosteriorEvaluation, groups: Tensor | None = None
) -> dict[str, float]:
    """Scores of calibrated predictions of items that the fit has not seen. groups: see `conformal_threshold`.

    conformal/coverage: the share of y in their sets or intervals; with groups, the mean of the groups' shares.
    conformal/size: classes in a set, the mean. conformal/empty: the share of sets without a class.
    conformal/coverage/class_<k>: the share of the items of class k; with more than SHOWN classes of the lowest alone.
    conformal/lowest_class: the number of the class with the lowest share.
    conformal/width: the mean width of an interval, in the units of y.
    bma_scaled/...: the scores of the average with its temperature.
    """
    prediction, y = average(evaluation)
    if isinstance(calibration, TemperatureScaling):
        scores = evaluation.scores(calibration(prediction))
        return {f"bma_scaled/{name}": value for name, value in scores.items()}
    if isinstance(calibration, ConformalSets):
        sets = calibration(prediction)
        held = _mean(sets.gather(1, y.long()[:, None]).double(), groups)
        sizes = sets.sum(1).double()
        shares = {"conformal/coverage": held, "conformal/size": sizes.mean().item()}
        return shares | {"conformal/empty": (sizes == 0).double().mean().item()} | _by_class(sets, y.long())
    low, high = calibration(prediction)
    columns = y.reshape(low.shape).to(low)
    held = _mean(torch.where(columns.isnan(), torch.nan, (low <= columns) & (columns <= high)).double(), groups)
    return {"conformal/coverage": held, "conformal/width": (high - low).double().mean().item()}


def _by_class(sets: Tensor, y: Tensor) -> dict[str, float]:
    """Coverage of the items of each class, from sets (n, K) and labels (n,)."""
    inside = sets.gather(1, y[:, None])[:, 0].double()
    shares = {k: inside[y == k].mean().item() for k in y.unique().tolist()}
    lowest = min(shares, key=lambda k: shares[k])
    shown = shares if sets.shape[1] <= SHOWN else {lowest: shares[lowest]}
    by_class = {f"conformal/coverage/class_{k}": share for k, share in shown.items()}
    return {**by_class, "conformal/lowest_class": lowest, "conformal/lowest_items": int((y == lowest).sum())}


def _mean(values: Tensor, groups: Tensor | None) -> float:
    """The mean of values (n, k), in which each group has the same weight. NaN does not count."""
    if groups is None:
        return values.nanmean().item()
    means = []
    for column in values.T:
        seen = ~column.isnan()
        codes = groups.to(seen.device)[seen].unique(return_inverse=True)[1]
        weights = 1 / codes.bincount().double()
        means.append(((weights / len(weights))[codes] @ column[seen]).item())
    return sum(means) / len(means)


def fitted_numbers(calibration: Calibration, items: int, groups: Tensor | None = None) -> dict[str, float]:
    """What was fitted, and on how many items, or on how many groups of them."""
    name = "temperature" if isinstance(calibration, TemperatureScaling) else "level"
    counted = {} if groups is None or name == "temperature" else {"calibration/groups": len(groups.unique())}
    if isinstance(calibration, ConformalSets) and isinstance(calibration.threshold, tuple):
        counted["calibration/by_class"] = 1
    return {f"calibration/{name}": getattr(calibration, name), "calibration/items": items, **counted}


def sentence(metrics: Mapping[str, float], class_names: Sequence[str] = ()) -> str:
    """What the metrics say of a calibration; empty without a calibration."""
    items = metrics.get("calibration/items", math.nan)
    if math.isnan(items):
        return ""
    fit = f"fitted on {items:,.0f} validation items"
    if "calibration/temperature" in metrics:
        temperature = metrics["calibration/temperature"]
        way = "less sure" if temperature > 1 else "surer"
        return f"temperature scaling with T = {temperature:.3g}, which makes the average {way}, {fit}"
    level, held = metrics["calibration/level"], metrics["test/conformal/coverage"]
    size, width = metrics.get("test/conformal/size"), metrics.get("test/conformal/width")
    of = f"{width:.4g} wide" if size is None else f"{size:.2f} classes each{_of_classes(metrics, class_names)}"
    kind = "sets" if size is not None else "intervals"
    kind += " by class" if "calibration/by_class" in metrics else ""
    promise, test = f"conformal {kind} of level {100 * level:g} %", f"{100 * held:.1f} % of the test items"
    if (groups := metrics.get("calibration/groups")) is None:
        return f"{promise} hold {test}, {of}; {fit}"
    return f"{promise} for items of new groups hold {test}, the mean over groups, {of}; {fit} of {groups:,.0f} groups"


def _of_classes(metrics: Mapping[str, float], names: Sequence[str]) -> str:
    """The share of empty sets, and of the class that the sets hold least."""
    if (k := metrics.get("test/conformal/lowest_class")) is None:
        return ""
    number, empty = int(k), metrics["test/conformal/empty"]
    name = names[number] if number < len(names) else str(number)
    share, items = metrics[f"test/conformal/coverage/class_{number}"], metrics["test/conformal/lowest_items"]
    least = f", {100 * share:.1f} % of the {items:,.0f} test items of class {name}, the least of all classes"
    if share < metrics["calibration/level"] and "calibration/by_class" not in metrics:
        least += " (calibrate.by=class promises the level for each)"
    return f"{f', {100 * empty:.1f} % of them empty' if empty else ''}{least}"


def to_plain(calibration: Calibration) -> dict[str, Any]:
    kind = next(name for name, kind in CALIBRATIONS.items() if isinstance(calibration, kind))
    values = {name: v.tolist() if isinstance(v, Tensor) else v for name, v in vars(calibration).items()}
    return {"kind": kind, **values}


def from_plain(plain: Mapping[str, Any]) -> Calibration:
    """Raises ConfigError for what `to_plain` has not written."""
    values = {name: value for name, value in plain.items() if name != "kind"}
    try:
        if isinstance(values.get("threshold"), list):
            values["threshold"] = tuple(map(float, values["threshold"]))
        if "margin" in values:
            values["margin"] = torch.tensor(values["margin"], dtype=torch.float64)
        return CALIBRATIONS[plain["kind"]](**values)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"this is no calibration ({error}): bdl evaluate RUN calibrate=... makes it again") from error
