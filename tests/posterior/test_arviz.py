"""Tests of `bdl.posterior.export` and `.diagnostics`: the tree against numbers by hand, and arviz_stats on it."""

import numpy as np
import pytest
import torch
import toys
from by_hand import NUMBERS_X, NUMBERS_Y, X, Y, probabilities

import bdl
from bdl.data import TensorSlices
from bdl.errors import ConfigError
from bdl.posterior.store import SampleStore
from bdl.schedules import EveryStep


@pytest.fixture(scope="module")
def tree(run):
    return bdl.Posterior.load(run, toys.plain()).to_arviz(TensorSlices(X, Y), parameters="*.bias")


def test_parameters_are_those_of_the_files(run, tree):
    records = SampleStore(run).records()
    assert set(tree["posterior"].dataset) == {n for n, _ in toys.plain().named_parameters() if n.endswith(".bias")}
    for name, values in tree["posterior"].dataset.items():
        stored = torch.stack([SampleStore(run).read(r)[name] for r in records], 1)  # (chains, draws, ...)
        np.testing.assert_array_equal(values, stored[:, : values.shape[1]])


def test_log_likelihoods_and_targets_are_right(run, tree):
    p = probabilities(run).double()  # (draws, chains, n, K)
    expected = p[..., torch.arange(len(Y)), Y].log().transpose(0, 1)
    values = tree["log_likelihood"].dataset["y"]
    np.testing.assert_allclose(values, expected[:, : values.shape[1]], atol=1e-5)
    np.testing.assert_array_equal(tree["observed_data"].dataset["y"], Y)


def test_stats_are_those_of_the_records(run, tree):
    stats, records = tree["sample_stats"].dataset, SampleStore(run).records()
    draws = stats["energy"].shape[1]
    assert np.isfinite(stats["energy"]).all() and draws == len(records)
    np.testing.assert_array_equal(stats["energy"], np.array([r.energy_full for r in records]).T)
    np.testing.assert_array_equal(stats["lr"][0], [r.lr for r in records])
    np.testing.assert_array_equal(stats["temperature"], np.ones((2, draws)))
    np.testing.assert_allclose(stats["weight"].sum(), 2)


def test_draws_of_y_follow_the_predicted_probabilities(run, posterior):
    """800 draws of each network for 5 items: the shares lie within 5 standard errors of the mean probabilities."""
    items = TensorSlices(X[:5].repeat(800, 1), Y[:5].repeat(800))
    drawn = posterior.to_arviz(items)["posterior_predictive"].dataset["y"].values.reshape(-1, 800, 5)
    p = posterior.predict(X[:5]).probs.numpy()
    for k in range(p.shape[1]):
        share = (drawn == k).mean((0, 1))
        assert (abs(share - p[:, k]) < 5 * np.sqrt(p[:, k] * (1 - p[:, k]) / (len(drawn) * 800))).all()


def test_projections_are_the_same_for_every_run_and_linear(run, posterior):
    first, again = (posterior.to_arviz(projections=3)["posterior"].dataset["projection"] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (2, len(SampleStore(run).records()), 3)
    chosen = bdl.Posterior.load(run, toys.plain()).to_arviz(parameters="*")["posterior"].dataset
    spread = np.concatenate([v.values.reshape(*v.shape[:2], -1) for v in chosen.values()], -1)
    # Random directions keep lengths on average: projections over sqrt(d) of d weights, here within a factor of 3
    assert 1 / 3 < np.std(first) / np.sqrt(np.square(spread).mean()) < 3


def test_arviz_stats_works_on_it(tmp_path):
    """Leave-one-out needs a tail of at least 5 draws."""
    import arviz_stats

    toys.sample(tmp_path, 60, EveryStep(0, 1))
    tree = bdl.Posterior.load(tmp_path, toys.plain()).to_arviz(TensorSlices(X, Y), parameters="*.bias")
    summary = arviz_stats.summary(tree)
    assert len(summary) == sum(v[0, 0].size for v in tree["posterior"].dataset.values())
    assert arviz_stats.loo(tree).n_data_points == len(Y)
    for statistic in (arviz_stats.rhat, arviz_stats.ess):
        assert all(np.isfinite(v).all() for v in statistic(tree).dataset.values())


def test_numbers_have_densities_and_draws(of_numbers):
    tree = of_numbers.to_arviz(TensorSlices(NUMBERS_X, NUMBERS_Y))
    mixture = of_numbers.predict(NUMBERS_X).log_density(NUMBERS_Y).double().numpy()
    log_p = tree["log_likelihood"].dataset["y"].values.reshape(-1, len(NUMBERS_X))
    np.testing.assert_allclose(np.log(np.exp(log_p).mean(0)), mixture, atol=1e-5)
    assert tree["posterior_predictive"].dataset["y"].shape[:3] == (*log_p.reshape(2, -1, len(NUMBERS_X)).shape,)


def test_a_pattern_that_matches_nothing_is_refused(posterior):
    with pytest.raises(ConfigError, match=r"parameters='conv\*' matches no parameter: there are"):
        posterior.to_arviz(parameters="conv*")
