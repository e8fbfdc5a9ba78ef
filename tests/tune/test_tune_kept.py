"""Tests of `bdl.tune.kept`.

A promise that the samples do not keep is said in one line; one that nothing measures is not spoken of.
"""

import pytest

from bdl.advice import naming
from bdl.sklearn.base import ARGUMENTS
from bdl.tune.kept import PROMISES, Promised, broken_promises

GOOD = {"t_eff": 1.1, "temperature": 1.0, "energy/drift": 0.4, "energy/drift_t": 3.0, "energy_error": 1.3}


def test_a_run_that_keeps_all_promises():
    assert broken_promises(GOOD) == {} and broken_promises({}) == {}
    assert broken_promises({"t_eff": 0.22, "temperature": 0.2}) == {}
    assert broken_promises({"t_eff": 0.0, "temperature": 0.0}) == {}
    assert broken_promises({**GOOD, "kinetic_temperature": 1.3, "kinetic_temperature_se": 0.05}) == {}


def test_the_hottest_direction_counts_where_it_was_promised():
    """Two standard errors above 1.1 T and the 10 % that the error of a step may add."""
    hot = {**GOOD, "temperature/directions/hottest": 1.5, "temperature/directions/hottest_se": 0.1}
    assert broken_promises(hot) == {} and broken_promises(GOOD, Promised(heat=0.1)) == {}
    assert "the hottest direction has 1.5 T, not 1.21 T at most" in broken_promises(hot, Promised(heat=0.1))["heat"]
    assert broken_promises({**hot, "temperature/directions/hottest_se": 0.2}, Promised(heat=0.1)) == {}
    assert broken_promises(hot, Promised(heat=0.5)) == {}


@pytest.mark.parametrize(
    "name, measured, words",
    [
        ("heat", {"t_eff": 1.3}, "batches heat the chains by 30%, not 10% at most"),
        ("heat", {"t_eff": 0.26, "temperature": 0.2}, "by 30%"),
        (
            "heat",
            {"kinetic_temperature": 6.6, "kinetic_temperature_se": 0.1},
            "temperature is 6.6 T, not 1.2 T at most",
        ),
        ("rest", {"energy/drift": -0.5, "energy/drift_t": -6.0}, "moved by -0.5 standard deviations"),
        (
            "rest",
            {"ess/min": 30.0, "ess/within": 32.0, "chains": 8, "samples": 800},
            "samples are not at rest: each chain alone has made 4 independent draws: take about 7 times the length",
        ),
        ("energy_error", {"energy_error": 30.0}, "30 times the energy error"),
    ],
)
def test_a_broken_promise_is_one_line(name, measured, words):
    broken = broken_promises({**GOOD, **measured})
    assert list(broken) == [name] and name in PROMISES
    assert (
        broken[name].startswith("tune: a promise is not kept: ") and words in broken[name] and "\n" not in broken[name]
    )


def test_the_error_of_tested_steps_breaks_no_promise():
    assert not broken_promises(GOOD | {"energy_error": 30.0, "acceptance": 0.8})


def test_a_run_that_said_it_is_not_at_rest_breaks_the_promise():
    assert list(broken_promises(GOOD, Promised(at_rest=False))) == ["rest"]


def test_a_reader_in_python_is_told_of_arguments():
    with naming(ARGUMENTS):
        heat = broken_promises({**GOOD, "t_eff": 9.0})["heat"]
        rest = broken_promises(GOOD, Promised(at_rest=False))["rest"]
    assert heat.endswith("lower lr") and rest.endswith("take a longer run (steps)")
