"""Drifts and slow directions: seen where they are, and rarely where they are not, with powers that are stated."""

import math

import numpy as np
import pytest

from bdl.posterior.stationarity import STATIONARITY_NAMES, stationarity, waves

RUNS = 40


def draws(seed: int, chains: int = 4, count: int = 250, slow: float = 1.0) -> np.ndarray:
    """(chains, draws, 8) stationary autoregressions of variance 1, whose draws are worth 1/slow independent ones."""
    c, rng = (slow - 1) / (slow + 1), np.random.default_rng(seed)
    x = rng.normal(size=(chains, count, 8))
    for t in range(1, count):
        x[:, t] = c * x[:, t - 1] + math.sqrt(1 - c**2) * x[:, t]
    return x


def items(latent: np.ndarray, seed: int) -> np.ndarray:
    """(chains, draws, 50) outputs that look at 8 directions."""
    loadings = np.random.default_rng([seed, 1]).normal(size=(8, 50))
    return latent @ (loadings / np.linalg.norm(loadings, axis=0))


def shares(name: str, limit: float, runs: list[dict[str, float]]) -> float:
    return float(np.mean([run[name] < limit for run in runs]))


@pytest.mark.parametrize(("chains", "count", "slow"), [(4, 250, 1), (8, 400, 4)])
def test_what_does_not_move_is_left_alone(chains, count, slow):
    runs = [stationarity(items(draws(seed, chains, count, slow), seed)) for seed in range(RUNS)]
    assert shares("drift/mean_p", 0.05, runs) <= 0.2 and shares("drift/spread_p", 0.05, runs) <= 0.2
    assert shares("drift/mean_most", 0.3, runs) > 0.9 and shares("slow/waves", 0.3, runs) == 1


def test_a_drift_of_one_direction_is_seen_in_4000_draws():
    """.3 standard deviations along one of 8 directions are .3/√8 = .106 of an item, root mean square."""
    runs = []
    for seed in range(RUNS):
        latent = draws(seed, count=1000)
        latent[:, :, 0] += np.linspace(1.5, 1.2, 1000)
        runs.append(stationarity(items(latent, seed)))
    assert shares("drift/mean_p", 0.01, runs) > 0.8
    assert np.mean([run["drift/mean"] for run in runs]) == pytest.approx(0.106, abs=0.02)
    assert np.mean([run["drift/mean_most"] > 0.106 for run in runs]) > 0.85


def test_a_drift_of_all_items_is_seen_in_1000_draws():
    ramp = np.linspace(0.6, 0.3, 250)[:, None]
    runs = [stationarity(items(draws(seed), seed) + ramp) for seed in range(RUNS)]
    assert shares("drift/mean_p", 0.01, runs) == 1


def test_a_width_that_changes_is_seen():
    ramp = np.linspace(1, 0.8, 250)[:, None]
    runs = [stationarity(items(draws(seed) * ramp, seed)) for seed in range(RUNS)]
    assert shares("drift/spread_p", 0.01, runs) > 0.8


@pytest.mark.parametrize("frozen", [1, 4])
def test_directions_along_which_chains_of_one_start_hardly_move(frozen):
    """Each needs 100 runs of this length for one independent draw."""
    for seed in range(RUNS):
        latent = draws(seed)
        steps = np.random.default_rng([seed, 2]).normal(size=latent[..., :frozen].shape) / math.sqrt(50 * 250)
        latent[..., :frozen] = np.cumsum(steps, 1)
        found = stationarity(items(latent, seed))
        assert found["slow/waves"] > 0.6 and found["slow/share"] < 0.1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [1.0, 3e5])
def test_rounding_of_float32_is_no_slow_direction(dtype, offset):
    """12 linear models of 12 weights, independent draws: their 200 outputs have rank 12, and the rest is rounding.

    Where 100,000 standard deviations are added to all outputs, rounding has more than 1e-9 of the variance. The
    control: a weight that moves slowly in each chain is seen beside the same rounding.
    """
    for seed in range(12):
        rng = np.random.default_rng(seed)
        weights, inputs = rng.normal(size=(4, 200, 12)).astype("f4"), rng.normal(size=(12, 200)).astype("f4")
        outputs = (weights @ inputs + np.float32(offset)).astype(dtype)
        assert stationarity(outputs)["slow/waves"] < 0.3
        weights[..., 0] = 1 + 0.1 * np.cumsum(rng.normal(size=(4, 200)), 1) / math.sqrt(200)
        kept = (weights @ inputs + np.float32(offset)).astype(dtype)
        assert stationarity(kept)["slow/waves"] > 0.6


def test_an_output_that_moves_by_rounding_is_no_slow_direction():
    """It is 1,000 in two chains, and the next float32 in the others. The control moves 1,000 times as far."""
    outputs = items(draws(0), 0)
    for step, slow in ((2**-14, False), (2**-4, True)):
        outputs[..., 0] = 1000 + step * (np.arange(4) > 1)[:, None]
        outputs[:, :100, 0] = 1000
        assert (stationarity(outputs)["slow/waves"] > 0.5) is slow


def test_waves_are_an_orthogonal_transform():
    x = np.random.default_rng(0).normal(size=(2, 16, 3))
    assert np.square(waves(x, 16)).sum() == pytest.approx(np.square(x).sum())


def test_what_cannot_be_measured_is_nan():
    assert all(math.isnan(value) for value in stationarity(draws(0, count=10)).values())
    assert all(math.isnan(value) for value in stationarity(np.ones((4, 100, 3))).values())
    few = stationarity(draws(0, chains=2))
    assert [name for name in STATIONARITY_NAMES if math.isnan(few[name])] == ["slow/waves", "slow/share"]
