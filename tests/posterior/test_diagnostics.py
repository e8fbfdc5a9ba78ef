"""R-hat and effective sample sizes where the answer is known, and the verdict at its thresholds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bdl.posterior.diagnostics import ess, or_nan, rhat, summary, verdict, weight_ess
from bdl.posterior.report.figures import EnergyHistogram


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def autoregressive(coefficient: float, chains: int, draws: int, quantities: int) -> np.ndarray:
    """(chains, draws, quantities), stationary, variance 1."""
    x = normal(chains, draws, quantities)
    for t in range(1, draws):
        x[:, t] = coefficient * x[:, t - 1] + math.sqrt(1 - coefficient**2) * x[:, t]
    return x


def split_rhat(x: np.ndarray) -> float:
    """Larger of bulk and folded, rank-normalised (Vehtari et al. 2021), for an even number of draws (chains, draws)."""
    halves = np.concatenate(np.split(x, 2, axis=1))
    values = []
    for y in (halves, np.abs(halves - np.median(halves))):
        z = stats.norm.ppf((stats.rankdata(y).reshape(y.shape) - 3 / 8) / (y.size + 1 / 4))
        n, within, between = halves.shape[1], z.var(1, ddof=1).mean(), z.mean(1).var(ddof=1)
        values.append(math.sqrt(((n - 1) / n * within + between) / within))
    return max(values)


def test_rhat_of_independent_draws_is_one():
    # 8 half chains of 500: R² - 1 has sd sqrt(2/7) / 500, so R exceeds 1 by .0005 or so; .005 is 10 times that
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
    # one estimate sums about 8 / (1 - coefficient) lags, variance 2 (2 lags + 1) / n: relative sd .14 at .9. The 20
    # quantities are independent, which divides it by sqrt(20): .032; 4 of them are .13
    assert ess(x).mean() == pytest.approx(expected, rel=0.13)


@pytest.mark.parametrize("statistic", [rhat, ess])
def test_what_has_no_answer_is_nan_without_a_warning(statistic, recwarn):
    x = normal(3, 20, 4)
    x[:, :, 1] = 7.0
    x[0, 3, 2] = math.nan
    x[0, 3, 3] = math.inf
    found = statistic(x)
    assert np.isfinite(found[0]) and np.isnan(found[1:]).all()
    assert np.isnan(statistic(x[:, :3])).all()
    assert not recwarn.list


def test_one_chain_has_an_ess_but_no_rhat():
    x = normal(1, 200, 2)
    assert np.isnan(rhat(x)).all() and np.isfinite(ess(x)).all()


def test_chains_that_stand_still_apart_have_an_infinite_rhat():
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
    rows = summary({"energy": x, "constant": np.ones((4, 100))})
    assert [r.name for r in rows] == ["energy", "constant"]
    assert rows[0].mean == pytest.approx(x.mean()) and rows[0].std == pytest.approx(x.std(ddof=1))
    assert rows[0].rhat == rhat(x[..., None])[0] and rows[0].ess == ess(x[..., None])[0]
    assert rows[1].std == 0 and math.isnan(rows[1].rhat) and math.isnan(rows[1].ess)


def level(name: str, **metrics: float | None) -> str:
    flat = {k.replace("__", "/"): v for k, v in metrics.items()}
    return next(c.level for c in verdict(flat) if c.name.startswith(name))


def test_levels_at_the_thresholds():
    assert [level("R-hat", rhat__max=r) for r in (1.1, 1.11, 1.5, 1.51, math.inf)] == [
        "ok",
        "look",
        "look",
        "bad",
        "bad",
    ]
    assert [level("ESS", ess__min=e) for e in (100, 99, 10, 9)] == ["ok", "look", "look", "bad"]
    assert [level("Temp", temperature=0.1, t_eff=t) for t in (0.1, 0.149, 0.2, 0.35)] == ["ok", "ok", "look", "bad"]
    assert [level("Chains", chains=c) for c in (1, 2)] == ["look", "ok"]
    assert [level("Calibration", test__bma__ece=e) for e in (0.01, 0.05, 0.2)] == ["ok", "look", "bad"]


def test_what_was_not_measured_is_not_called_ok():
    for missing in (None, math.nan):
        assert level("R-hat", rhat__max=missing) == level("ESS", ess__min=missing) == "look"
        assert level("Temperature", temperature=1.0, t_eff=missing) == "look"
    assert level("Temperature", temperature=0.0, t_eff=0.0) == "look"


def test_an_average_worse_than_one_sample_is_called_bad():
    def average(nll: float, accuracy: float) -> str:
        one = {"test__one_sample__nll": 0.3, "test__one_sample__accuracy": 0.9}
        return level("Average", **one, test__bma__nll=nll, test__bma__accuracy=accuracy)

    assert [average(0.25, 0.92), average(0.35, 0.92), average(0.25, 0.85), average(0.35, 0.85)] == [
        "ok", "look", "look", "bad",
    ]  # fmt: skip


def test_heat_and_its_remedy_are_spelled_out():
    words = next(c.words for c in verdict({"temperature": 0.1, "t_eff": 0.35}) if c.name == "Temperature")
    assert "mini-batches heat the chain to T_eff = 0.35" in words and "smaller lr or larger batch" in words


@pytest.mark.parametrize(
    ("low", "frozen", "expected"),
    [(-5.0, True, "ok"), (-5.0, False, "look"), (1.0, True, "look"), (math.nan, True, "look")],
)
def test_bins_that_miss_the_energies_or_still_move(low, frozen, expected):
    h = EnergyHistogram(np.linspace(low, 6, 11), np.zeros(10), normal(1000), 1.0, 1.0, frozen=frozen)
    assert next(c.level for c in verdict({}, h) if c.name == "Energy bins") == expected


def test_warnings_are_part_of_the_verdict():
    last = verdict({}, None, ["a", "b"])[-1]
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


def test_samplers_without_acceptance_or_swaps_are_not_judged_by_them():
    names = {c.name for c in verdict({"temperature": 1.0})}
    assert not names & {"Acceptance", "Swap rates"}
