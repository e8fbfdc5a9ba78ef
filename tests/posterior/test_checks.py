"""Tests of `bdl.posterior.notes`: the checks beside the verdict, at their thresholds."""

import math

import numpy as np
import pytest

from bdl.posterior.energy_histogram import EnergyHistogram
from bdl.posterior.judgements import Check, or_nan
from bdl.posterior.notes import notes


def checks(metrics: dict, histogram: EnergyHistogram | None = None, warnings: tuple[str, ...] = ()) -> list[Check]:
    return notes(or_nan(metrics), histogram, warnings)


def level(name: str, **metrics: float | None) -> str:
    """The level of one check; `__` in a keyword stands for `/` in the name of a metric."""
    flat = {k.replace("__", "/"): v for k, v in metrics.items()}
    return next(c.level for c in checks(flat) if c.name.startswith(name))


def test_confidence_is_judged_by_the_calibration_error():
    assert [level("Calibration", test__bma__ece=e) for e in (0.01, 0.05, 0.2)] == ["ok", "look", "bad"]


def test_an_average_worse_than_one_sample_is_called_bad():
    def average(nll: float, accuracy: float) -> str:
        one = {"test__one_sample__nll": 0.3, "test__one_sample__accuracy": 0.9}
        return level("Average", **one, test__bma__nll=nll, test__bma__accuracy=accuracy)

    assert [average(0.25, 0.92), average(0.35, 0.92), average(0.25, 0.85), average(0.35, 0.85)] == [
        "ok", "look", "look", "bad",
    ]  # fmt: skip


def test_numbers_are_judged_by_rmse_and_nll_may_be_negative():
    def average(nll: float, rmse: float) -> str:
        one = {"test__one_sample__nll": -1.0, "test__one_sample__rmse": 0.2}
        return level("Average", **one, test__bma__nll=nll, test__bma__rmse=rmse)

    assert [average(-1.0, 0.2), average(-0.9, 0.2), average(-1.1, 0.3), average(-0.9, 0.3)] == [
        "ok", "look", "look", "bad",
    ]  # fmt: skip


def test_intervals_are_judged_by_the_calibration_of_quantiles():
    def of(error: float, inside: float) -> list[str]:
        metrics = {"test/bma/quantile_error": error, "test/bma/coverage_90": inside}
        check = next(c for c in checks(metrics) if c.name == "Calibration of intervals")
        return [check.level, check.value, next((w for w in ("narrow", "wide") if w in check.words), "")]

    assert of(0.03, 0.91) == ["ok", "90 % hold 91.0 %", ""]
    assert of(0.08, 0.8)[::2] == ["look", "narrow"] and of(0.2, 0.99)[::2] == ["bad", "wide"]


@pytest.mark.parametrize(
    ("low", "frozen", "expected"),
    [(-5.0, True, "ok"), (-5.0, False, "look"), (1.0, True, "look")],
)
def test_bins_that_miss_energies_and_a_psi_that_still_changes(low, frozen, expected):
    energies = np.random.default_rng(0).normal(size=1000)
    h = EnergyHistogram(np.linspace(low, 6, 11), np.zeros(10), energies, 1.0, 1.0, frozen=frozen)
    assert next(c.level for c in checks({}, h) if c.name == "Energy bins") == expected


def test_warnings_are_one_check():
    last = checks({}, None, ("a", "b"))[-1]
    assert (last.level, last.value, last.words) == ("look", "2", "a\nb")


def test_absent_numbers_read_as_nan_and_are_not_added():
    numbers = or_nan({"a": None, "b": 2})
    assert math.isnan(numbers["a"]) and numbers["b"] == 2 and math.isnan(numbers["c"])
    assert list(numbers) == ["a", "b"]


@pytest.mark.parametrize(("rate", "expected"), [(0.05, "look"), (0.3, "ok"), (0.8, "ok"), (0.99, "look")])
def test_acceptance_is_judged(rate: float, expected: str):
    assert level("Acceptance", acceptance=rate) == expected


@pytest.mark.parametrize(("lowest", "expected"), [(0.0, "look"), (0.2, "ok")])
def test_the_least_swap_rate_is_judged(lowest: float, expected: str):
    assert level("Swap rates", swap_rate__0=0.5, swap_rate__1=lowest) == expected


def test_samplers_without_acceptance_or_swaps_skip_their_checks():
    names = {c.name for c in checks({"temperature": 1.0})}
    assert not names & {"Acceptance", "Swap rates"}
