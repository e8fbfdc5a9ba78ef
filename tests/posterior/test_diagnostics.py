"""R-hat and effective sample sizes where the answer is known."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from bdl.posterior.diagnostics import convergence_rows, ess, rhat, spaced, weight_ess


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def autoregressive(coefficient: float, chains: int, draws: int, quantities: int) -> np.ndarray:
    """(chains, draws, quantities) draws of a stationary process with variance 1."""
    x = normal(chains, draws, quantities)
    for t in range(1, draws):
        x[:, t] = coefficient * x[:, t - 1] + math.sqrt(1 - coefficient**2) * x[:, t]
    return x


def split_rhat(x: np.ndarray) -> float:
    """The larger of bulk and folded rank-normalised R-hat (Vehtari et al. 2021), for an even number of draws."""
    halves = np.concatenate(np.split(x, 2, axis=1))
    values = []
    for y in (halves, np.abs(halves - np.median(halves))):
        z = stats.norm.ppf((stats.rankdata(y).reshape(y.shape) - 3 / 8) / (y.size + 1 / 4))
        n, within, between = halves.shape[1], z.var(1, ddof=1).mean(), z.mean(1).var(ddof=1)
        values.append(math.sqrt(((n - 1) / n * within + between) / within))
    return max(values)


@pytest.mark.parametrize("total", [1, 7, 1000, 2**24 + 4, 10**10])
def test_spaced_numbers_reach_from_the_first_to_the_last(total):
    """float32 has no odd numbers beyond 2**24: the last one would be the total, which is none of them."""
    chosen = spaced(50, total)
    assert (int(chosen[0]), int(chosen[-1]), len(chosen)) == (0, total - 1, min(50, total))
    middle = total // 2
    parts = [spaced(50, total, 0, middle), spaced(50, total, middle, total - middle)]
    assert torch.equal(torch.cat(parts), chosen)


def test_rhat_of_independent_draws_is_one():
    # 8 half chains of 500 draws: R² - 1 has the standard deviation sqrt(2/7) / 500, so R - 1 is about .0005
    assert np.abs(rhat(normal(4, 1000, 20)) - 1).max() < 0.005


def test_rhat_agrees_with_the_published_formula():
    x = autoregressive(0.9, 4, 100, 5)
    np.testing.assert_allclose(rhat(x), [split_rhat(x[..., q]) for q in range(5)], rtol=1e-10)


def test_rhat_sees_chains_apart_in_mean_in_scale_and_in_time():
    x = normal(4, 500, 3)
    x[0, :, 0] += 5
    x[0, :, 1] *= 5
    x[:, :, 2] += np.linspace(0, 5, 500)
    assert (rhat(x) > 1.2).all()


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.9])
def test_ess_of_an_autoregression(coefficient):
    x = autoregressive(coefficient, 4, 4000, 20)
    expected = 16000 * (1 - coefficient) / (1 + coefficient)
    # One estimate sums about 8 / (1 - coefficient) lags and has the relative variance 2 (2 lags + 1) / n: at .9 the
    # standard deviation is .14. That of the mean of 20 independent quantities is .032; the tolerance is 4 of these.
    assert ess(x).mean() == pytest.approx(expected, rel=0.13)


@pytest.mark.parametrize("statistic", [rhat, ess])
def test_undefined_statistics_are_nan_without_a_warning(statistic, recwarn):
    x = normal(3, 20, 4)
    x[:, :, 1] = 7.0
    x[0, 3, 2] = math.nan
    x[0, 3, 3] = math.inf
    values = statistic(x)
    assert np.isfinite(values[0]) and np.isnan(values[1:]).all()
    assert np.isnan(statistic(x[:, :3])).all()
    assert not recwarn.list


def test_one_chain_has_an_ess_but_no_rhat():
    x = normal(1, 200, 2)
    assert np.isnan(rhat(x)).all() and np.isfinite(ess(x)).all()


def test_constant_chains_of_different_values_have_infinite_rhat():
    x = np.broadcast_to(np.arange(3.0)[:, None, None], (3, 10, 1))
    assert rhat(x)[0] == math.inf


@pytest.mark.parametrize(
    ("log_weights", "expected"),
    [
        (np.zeros(7), 7),
        (np.full(7, 1e6), 7),
        (np.full(7, -1e6), 7),
        ([0.0, -800.0], 1),
        ([math.log(1), math.log(2), math.log(3)], 36 / 14),
        ([0.0, 0.0, -math.inf, math.nan], 2),
        ([[0.0, 0.0], [0.0, 0.0]], 4),
        ([], 0),
        ([-math.inf], 0),
    ],
)
def test_kish_effective_sample_size(log_weights, expected):
    assert weight_ess(np.asarray(log_weights)) == pytest.approx(expected)


def test_summary_has_a_row_for_each_quantity():
    x = normal(4, 100)
    rows = convergence_rows({"energy": x, "constant": np.ones((4, 100))})
    assert [r.name for r in rows] == ["energy", "constant"]
    assert rows[0].mean == pytest.approx(x.mean()) and rows[0].std == pytest.approx(x.std(ddof=1))
    assert rows[0].rhat == rhat(x[..., None])[0] and rows[0].ess == ess(x[..., None])[0]
    assert rows[1].std == 0 and math.isnan(rows[1].rhat) and math.isnan(rows[1].ess)
