"""Tests of `bdl.posterior.judge_modes`, `.modes`: chains in modes and slow chains get words by their trend."""

import numpy as np
import pytest
from scipy.signal import lfilter

from bdl.posterior.diagnostics import mixing, repeat_error, rhat_trend
from bdl.posterior.judge_modes import FALLS
from bdl.posterior.modes import modes_seen
from bdl.posterior.verdict import Verdict, verdict


def outputs(chains: int, draws: int, independent: float, apart: float = 0.0, modes: int = 0, seed: int = 0):
    """(chains, draws, 30) outputs of networks: sums of 8 directions, each an autoregression of so many independent
    draws; modes lie `apart` standard deviations from each other, and chain c sits in mode c % modes."""
    rng = np.random.default_rng(seed)
    rho = max(0.0, (draws - independent) / (draws + independent))
    noise = rng.normal(size=(chains, draws, 8))
    noise[:, 0] /= np.sqrt(1 - rho**2)
    theta = np.sqrt(1 - rho**2) * lfilter([1], [1, -rho], noise, axis=1)
    loadings = rng.normal(size=(8, 30))
    centres = apart * rng.normal(size=(modes or 1, 1, 30)) / np.sqrt(2)
    places = centres[np.arange(chains) % modes] if modes else 0.0
    return theta @ (loadings / np.linalg.norm(loadings, axis=0)) + places


def judged(draws: np.ndarray) -> Verdict:
    good = {"temperature": 1.0, "kinetic_temperature": 1.0, "temperature/change": 1.0}
    count = {"chains": len(draws), "samples": draws[..., 0].size, "test/bma/rmse": 1.0}
    return verdict(good | count | mixing(draws) | repeat_error(draws.mean(1)[..., None], 1.0, draws[:1]))


@pytest.mark.parametrize(("chains", "draws"), [(4, 250), (10, 100)])
def test_rhat_falls_for_slow_chains_and_stays_for_modes(chains, draws):
    slow = [rhat_trend(outputs(chains, draws, 4, seed=s)) for s in range(10)]
    stay = [rhat_trend(outputs(chains, draws, 30, 2.0, chains, seed=s)) for s in range(10)]
    assert np.mean(slow) == pytest.approx(1, abs=0.3)  # R-hat - 1 falls as 1/draws
    assert np.mean(stay) == pytest.approx(0, abs=0.15) and max(stay) < FALLS
    assert np.mean(np.array(slow) > FALLS) >= 0.9


@pytest.mark.parametrize("seed", range(4))
def test_modes_and_slow_chains_of_the_same_rhat_get_their_words(seed):
    """R-hat is about 1.5 in both. The control: chains of one mode that have many draws get neither word."""
    modes, slow = judged(outputs(10, 100, 30, 0.7, 10, seed)), judged(outputs(10, 100, 3.5, seed=seed))
    assert modes.metrics["rhat/max"] == pytest.approx(slow.metrics["rhat/max"], abs=0.35)
    assert modes.outcome == "ensemble over modes" and "more samples would not help" in modes.line
    assert slow.outcome in ("more samples", "not at rest") and "over modes" not in slow.line
    one_mode = judged(outputs(10, 400, 200, seed=seed))
    assert one_mode.outcome in ("trust", "more samples") and one_mode.metrics["rhat/max"] < 1.05


@pytest.mark.parametrize("independent", [6, 9, 11, 20])
def test_one_trend_has_one_word(independent):
    """Whether each chain alone has made 9 or 11 independent draws decides nothing where R-hat does not fall."""
    assert judged(outputs(10, 100, independent, 2.0, 10)).outcome == "ensemble over modes"


def test_rhat_that_falls_names_the_length():
    m = {"chains": 10, "samples": 1000, "temperature": 1.0, "kinetic_temperature": 1.0, "rhat/max": 1.45}
    m |= {"ess/min": 80.0, "ess/within": 120.0, "ess/tail_min": 150.0, "mcse/most": 0.01, "mcse/worst": 0.02}
    falling, staying = verdict(m | {"rhat/trend": 1.0}), verdict(m | {"rhat/trend": 0.1})
    assert falling.outcome == "more samples" and falling.needed == 9000  # 0.45 / 0.05 times the length
    assert any("R-hat - 1 falls about as 1/steps: 9 times the length" in c.words for c in falling.checks)
    assert staying.outcome == "ensemble over modes" and np.isnan(staying.needed)


def test_stacked_weights_are_named():
    m = {"chains": 10, "samples": 1000, "temperature": 1.0, "kinetic_temperature": 1.0, "rhat/max": 1.9}
    m |= {"ess/min": 15.0, "ess/within": 200.0, "mcse/most": 0.01, "rhat/trend": 0.1, "modes/seen": 7.0}
    assert "10 chains form 7 groups" in verdict(m).line and "all chains count alike" in verdict(m).line
    assert "groups" not in verdict(m | {"modes/seen": 1.0}).line
    stacked = m | {"stacking/chains": 3.2, "test/stacking/gain": 0.12, "test/stacking/gain_se": 0.03}
    assert "(stacking, +0.120 ± 0.03 nats a test item)" in verdict(stacked).line


@pytest.mark.parametrize("modes", [1, 3, 12])
def test_groups_of_chains_are_the_modes(modes):
    assert modes_seen(outputs(12, 200, 100, 6.0, modes)) == modes


def test_modes_that_cannot_be_counted():
    assert np.isnan(modes_seen(np.zeros((4, 10, 3)))) and np.isnan(modes_seen(outputs(1, 50, 50)))
    assert np.isnan(modes_seen(outputs(4, 3, 3)))
