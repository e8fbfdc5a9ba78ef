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


@pytest.mark.parametrize(
    ("score", "one", "averages"),
    [
        ("accuracy", (0.3, 0.9), [(0.25, 0.92), (0.35, 0.92), (0.25, 0.85), (0.35, 0.85)]),
        ("rmse", (-1.0, 0.2), [(-1.0, 0.2), (-0.9, 0.2), (-1.1, 0.3), (-0.9, 0.3)]),
    ],
)
def test_an_average_worse_than_one_sample_is_called_bad(score, one, averages):
    """By NLL, which may be negative, and by this score."""
    metrics = {"test__one_sample__nll": one[0], f"test__one_sample__{score}": one[1]}
    levels = [
        level("Average", **metrics, **{"test__bma__nll": nll, f"test__bma__{score}": value}) for nll, value in averages
    ]
    assert levels == ["ok", "look", "look", "bad"]


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
