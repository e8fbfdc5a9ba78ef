"""Tests of `bdl.contrib.simulation.ranks` and `.prior_draws`."""

import pytest
import torch
from scipy import stats

import bdl
from bdl.contrib.simulation.prior_draws import draw_from
from bdl.contrib.simulation.ranks import Ranks
from bdl.errors import ConfigError

RANDOM = torch.Generator().manual_seed(0)


def ranks(width: float, runs: int = 200) -> Ranks:
    """Of 3 standard normal truths among draws that are `width` times as wide."""
    truth, draws = (torch.randn(runs, n, 3, generator=RANDOM) for n in (1, 99))
    return Ranks(["a", "b", "c"], (width * draws < truth).double().mean(1))


def test_right_draws_are_uniform_and_others_are_told():
    assert "calibrated, as far as 200 replications tell" in ranks(1.0).sentence()
    assert "too wide" in ranks(1.5).sentence() and "too narrow or apart" in ranks(0.7).sentence()
    found = ranks(1.5)
    assert found.worst() < 0.01 and found.plain()["quantities"]["a"]["counts"] == found.counts()[:, 0].tolist()
    assert int(found.counts().sum()) == 600 and found.counts().shape == (10, 3)


def test_uniform_ranks_are_seldom_refused():
    """In 100 calls, 1 is expected at DOUBT = 0.01."""
    assert sum(ranks(1.0).worst() < 0.01 for _ in range(100)) <= 5


@pytest.mark.parametrize(
    ("prior", "law"),
    [
        (bdl.Gaussian(4.0, mean=1.0), stats.norm(1, 0.5)),
        (bdl.Laplace(0.5), stats.laplace(0, 0.5)),
        (bdl.StudentT(df=5.0, scale=2.0), stats.t(5, 0, 2)),
    ],
)
def test_draws_follow_the_prior(prior, law):
    """Kolmogorov's test of 40,000 draws, which sees a scale that is 10 % off."""
    theta = draw_from(prior, 40_000, torch.Generator().manual_seed(0)).double().numpy()
    assert stats.kstest(theta, law.cdf).pvalue > 0.001
    assert stats.kstest(1.1 * (theta - law.mean()) + law.mean(), law.cdf).pvalue < 0.02


def test_a_mixture_of_scales_has_both():
    theta = draw_from(bdl.ScaleMixture(0.25, 1.0, 0.01), 4000, RANDOM)
    assert abs(float((theta.abs() > 0.05).float().mean()) - 0.25 * 0.96) < 0.03


def test_an_improper_prior_is_refused():
    with pytest.raises(ConfigError, match="origin=posterior"):
        draw_from(bdl.Uniform(), 3, RANDOM)
    with pytest.raises(ConfigError, match="origin=posterior"):
        draw_from(bdl.Gaussian([0.0, 1.0]).bind([torch.Size((1,)), torch.Size((2,))], torch.zeros(3)), 3, RANDOM)
