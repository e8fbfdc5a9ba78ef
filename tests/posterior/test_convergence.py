"""The Monte Carlo error of averages, mixing of predictions and energies, and errors of traces, on known laws."""

import math

import numpy as np
import pytest
from repeats import slow_where

from bdl.posterior.diagnostics import mixing, repeat_error, trace_error


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("chains", slow_where(lambda chains: chains != 4, [2, 4, 16]))
def test_twice_the_error_bounds_the_average_in_95_of_100_runs(chains):
    """Each item is a run of its own here: 4,000 runs, whose share inside has the standard error .0034."""
    averages = normal(chains, 4000, 1)
    inside = [
        abs(averages[:, [i]].mean()) <= 1.96 * repeat_error(averages[:, [i]], 1.0, averages[:1])["mcse/worst"]
        for i in range(4000)
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=4 * 0.0034)


def test_errors_are_in_units_of_scale_and_the_worst_part_counts():
    averages = normal(8, 100, 3)
    plain, half = (
        repeat_error(averages, 1.0, averages[:1]),
        repeat_error(averages, np.full((100, 3), 2.0), averages[:1]),
    )
    assert half == pytest.approx({name: value / 2 for name, value in plain.items()})
    one = repeat_error(averages[..., :1], 1.0, averages[:1])
    assert one["mcse/most"] < plain["mcse/most"] <= plain["mcse/worst"]


def test_the_error_of_one_chain_comes_from_its_draws():
    draws = normal(1, 2000, 10)
    error = repeat_error(draws.mean(1)[..., None], 1.0, draws)["mcse/most"]
    assert error == pytest.approx(2000**-0.5, rel=0.2)
    few = repeat_error(draws[:, :3].mean(1)[..., None], 1.0, draws[:, :3])
    assert all(math.isnan(value) for value in few.values())


def test_chains_apart_have_far_fewer_draws_together_than_alone():
    draws = normal(4, 400, 3)
    together = mixing(draws)
    assert 0.5 < together["ess/within"] / together["ess/min"] < 2
    draws[2:, :, 1] += 2
    apart = mixing(draws)
    assert apart["ess/within"] > 1000 and apart["ess/min"] < 20 and apart["rhat/max"] > 1.3


def test_slow_chains_count_in_the_average_as_much_as_fast_ones():
    """4 chains of 2,000 independent draws and 4 whose draws are worth an eighth: 8² / (4/2000 + 4/250) = 3,556."""
    draws = normal(8, 2000, 1)
    c = 7 / 9  # (1 + c) / (1 - c) = 8
    for t in range(1, 2000):
        draws[:4, t] = c * draws[:4, t - 1] + math.sqrt(1 - c**2) * draws[:4, t]
    found = mixing(draws)
    assert found["ess/within"] == pytest.approx(3556, rel=0.2)  # each ESS is known to about 10 %; their sum is 9,000
    assert found["ess/within"] / found["ess/min"] < 2


def test_drift_is_measured_in_deviations_and_in_standard_errors():
    draws, energies = normal(4, 400, 1), 3 * normal(4, 400, seed=1)
    assert abs(mixing(draws, energies)["energy/drift_t"]) < 5.8  # 99 % of Student's law with 3 degrees of freedom
    energies[:, 200:] -= 6
    falling = mixing(draws, energies)
    assert falling["energy/drift"] == pytest.approx(-2, abs=4 * 0.05) and falling["energy/drift_t"] < -10
    assert falling["rhat/energy"] > 1.2 and falling["ess/energy"] < 40


def test_what_cannot_be_measured_is_nan():
    assert all(math.isnan(value) for value in mixing(normal(2, 3, 2), normal(2, 3)).values())
    assert math.isnan(mixing(normal(4, 100, 1))["rhat/energy"])


def test_the_error_of_a_trace_counts_slow_rows_less():
    rows = normal(1000, 4)
    assert trace_error(rows) == pytest.approx(4000**-0.5, rel=4 / math.sqrt(2 * 39))
    assert trace_error(np.repeat(rows[:200], 5, 0)) == pytest.approx(800**-0.5, rel=4 / math.sqrt(2 * 39))
    rows[3, 1] = math.nan
    assert trace_error(rows) > 0 and math.isnan(trace_error(rows[:3]))
