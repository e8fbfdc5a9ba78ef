"""Tests of `bdl.posterior.stacking` and `.stacking_file`: the weights are optimal, and follow the evidence."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import toys
from by_hand import NUMBERS_X, NUMBERS_Y, X, Y, probabilities
from scipy import optimize, stats

import bdl
from bdl.data import TensorSlices
from bdl.errors import BdlWarning, ConfigError, StoreError
from bdl.posterior.stacking import (
    FEWEST_DRAWS,
    judged_gains,
    leave_one_out,
    mixture_log_density,
    stacking_weights,
)
from bdl.posterior.stacking_file import write_stacking


@pytest.mark.parametrize("pull", [0.0, 0.5, 3.0])
def test_weights_are_those_that_a_general_optimiser_finds(pull):
    random = np.random.default_rng(0)
    log_p = random.normal(size=(4, 60)) + np.array([[0.0], [0.3], [-0.5], [-2.0]])

    def loss(z):
        w = np.exp(z - np.logaddexp.reduce(z))
        return -(mixture_log_density(log_p, w).sum() + pull * np.log(w).sum()) / 60

    best = optimize.minimize(loss, np.zeros(4), tol=1e-12)
    weights = stacking_weights(log_p, pull)
    assert weights.sum() == pytest.approx(1) and loss(np.log(weights + 1e-300)) <= best.fun + 1e-6
    np.testing.assert_allclose(weights, np.exp(best.x - np.logaddexp.reduce(best.x)), atol=2e-3)


def test_the_weights_of_a_mixture_come_back():
    """Rows of .7 N(-2, 1) + .3 N(2, 1), of which each chain knows one component and the third knows neither."""
    random = np.random.default_rng(1)
    y = np.where(random.random(4000) < 0.7, -2.0, 2.0) + random.normal(size=4000)
    log_p = np.array([stats.norm.logpdf(y, mean) for mean in (-2.0, 2.0, 8.0)])
    weights = stacking_weights(log_p, 0.0)
    error = np.sqrt(0.7 * 0.3 / 4000)  # of the share of rows, which the components' overlap widens by a little
    np.testing.assert_allclose(weights, [0.7, 0.3, 0.0], atol=4 * error)
    gains = judged_gains(log_p)
    assert gains.mean() - 5 * gains.std() / np.sqrt(4000) > 0


def test_chains_that_are_alike_get_no_gain():
    """Negative control: where only chance tells chains apart, rows that did not give the weights see no gain."""
    random = np.random.default_rng(2)
    gains = np.array([judged_gains(random.normal(size=(6, 200))).mean() for _ in range(40)])
    assert gains.mean() - 3 * gains.std() / np.sqrt(40) < 0
    pulled, free = (stacking_weights(random.normal(size=(6, 200)), pull) for pull in (100.0, 0.0))
    assert np.ptp(pulled) < np.ptp(free)


def test_leave_one_out_densities_against_exact_ones():
    """y_i ~ N(θ, 1) with a flat prior: without y_i the prediction is N(mean of the others, 1 + 1 / (n - 1))."""
    random = np.random.default_rng(3)
    y = random.normal(size=40)
    draws = y.mean() + random.normal(size=4000) / np.sqrt(40)
    found, k = leave_one_out(stats.norm.logpdf(y, draws[:, None]))
    others = (y.sum() - y) / 39
    exact = stats.norm.logpdf(y, others, np.sqrt(1 + 1 / 39))
    np.testing.assert_allclose(found, exact, atol=0.01)
    in_sample = stats.norm.logpdf(y, y.mean(), np.sqrt(1 + 1 / 40))
    assert np.abs(found - exact).mean() < 0.2 * np.abs(in_sample - exact).mean() and (k < 0.7).all()


def test_the_stacked_average_against_one_by_hand(run, posterior):
    stacking = posterior.stack(TensorSlices(X, Y))
    w, p = torch.tensor(stacking.weights), probabilities(run)
    by_hand = (w.view(-1, 1, 1) * p.mean(0)).sum(0)
    torch.testing.assert_close(posterior.predict(X, "stacking").probs, by_hand.float())
    evaluation = posterior.evaluate(TensorSlices(X, Y))
    torch.testing.assert_close(evaluation.bma_stacked, by_hand.float())
    scores = evaluation.metrics()
    assert scores["bma/nll"] - scores["bma_stacked/nll"] == pytest.approx(scores["stacking/gain"], abs=1e-5)
    log_p = p.mean(0)[:, torch.arange(len(Y)), Y].log().numpy()
    np.testing.assert_allclose(stacking.weights, stacking_weights(log_p), rtol=1e-4)


def test_the_stacked_average_of_numbers(of_numbers):
    of_numbers.stack(TensorSlices(NUMBERS_X, NUMBERS_Y))
    evaluation = of_numbers.evaluate(TensorSlices(NUMBERS_X, NUMBERS_Y))
    mixture = of_numbers.predict(NUMBERS_X, "stacking")
    torch.testing.assert_close(
        evaluation.stacked_losses(), -mixture.log_density(NUMBERS_Y).double(), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(evaluation.bma_stacked.mean, mixture.mean)


def test_weights_are_read_back_with_the_run(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for seed, folder in enumerate(folders):
        toys.sample(folder, 16, seed=seed)
    both: Any = bdl.Posterior.load(folders, toys.plain())
    write_stacking(both.stored, both.stack(TensorSlices(X, Y)))
    turned: Any = bdl.Posterior.load(folders[::-1], toys.plain())
    assert [*turned.stacking.weights] == [*both.stacking.weights[2:], *both.stacking.weights[:2]]
    alone: Any = bdl.Posterior.load(folders[0], toys.plain())
    assert alone.stacking is None  # weights beside another run's chains are not its own
    with pytest.raises(ConfigError, match="weights=stacking stores them"):
        alone.predict(X, "stacking")
    path = write_stacking(alone.stored, alone.stack(TensorSlices(X, Y)))
    torch.testing.assert_close(
        bdl.Posterior.load(folders[0], toys.plain()).predict(X, "stacking").probs, alone.predict(X, "stacking").probs
    )
    path.write_text(path.read_text().replace('"items": ', '"items": 1'))
    with pytest.raises(StoreError, match="was altered"):
        _ = bdl.Posterior.load(folders[0], toys.plain()).stacking
    write_stacking(alone.stored, None)
    assert bdl.Posterior.load(folders[0], toys.plain()).stacking is None


def test_weights_of_earlier_samples_or_other_chains_are_named(tmp_path):
    toys.sample(tmp_path, 16)
    posterior = bdl.Posterior.load(tmp_path, toys.plain())
    stacking = posterior.stack(TensorSlices(X, Y))
    path = write_stacking(posterior.stored, stacking)
    write_stacking(posterior.stored, type(stacking).from_plain({**stacking.to_plain(), "step": 6}))
    with pytest.warns(BdlWarning, match="up to step 6, and there are samples up to step"):
        assert bdl.Posterior.load(tmp_path, toys.plain()).stacking is not None
    posterior.stored.names = [[0, 0, 5], [0, 0, 6]]
    write_stacking(posterior.stored, stacking)
    assert json.loads(path.read_text())["chains"] == [[0, 0, 5], [0, 0, 6]]
    with pytest.warns(BdlWarning, match="weights of other chains"):
        assert bdl.Posterior.load(tmp_path, toys.plain()).stacking is None


def test_what_cannot_be_stacked_is_one_line(posterior):
    few = f"needs {FEWEST_DRAWS} samples of each chain, and one has 8"
    with pytest.raises(ConfigError, match=few):
        posterior.stack(TensorSlices(X, Y), held_out=False)
    thin = posterior.thin(2, X)
    with pytest.raises(ConfigError, match="thinned"):
        thin.stack(TensorSlices(X, Y))
    assert thin.stacking is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("draws, equal", [(25, 8), (25, 24), (100, 60), (25, 2), (4, 1)])
def test_draws_that_repeat_have_leave_one_out_densities_too(draws, equal):
    """Steps that are refused keep a state as it was; a fit of the tail of equal densities raised, or divided by 0."""
    random = np.random.default_rng(4)
    logs = random.normal(size=(draws, 6))
    logs[:equal] = logs.min(0) - 0.1
    found, k = leave_one_out(logs)
    by_hand = np.log(draws) - np.log(np.exp(-logs).sum(0))
    np.testing.assert_allclose(found, by_hand, atol=0.2)
    if equal > 4 or draws < 25:
        assert np.isinf(k).all()
        np.testing.assert_allclose(found, by_hand)


@pytest.mark.parametrize("spread", [1e-8, 1.0, 1e3])
@pytest.mark.parametrize("repeats", [1, 4, 7])
def test_leave_one_out_densities_are_numbers_whatever_the_spread_and_the_repeats(spread, repeats):
    """For some of these the smoothed weights are no numbers, and the average over chains would be none either."""
    random = np.random.default_rng(0)
    for draws in (25, 40, 100):
        logs = spread * random.normal(size=(draws, 50))[np.arange(draws) // repeats]
        found, k = leave_one_out(logs)
        assert np.isfinite(found).all() and not np.isnan(k).any()
        assert (found >= logs.min(0) - 1e-9 * spread).all() and (found <= logs.max(0) + 1e-9 * spread).all()
