"""Laws that fit a numeric target: repeated values, bounds, positive numbers, and ordinary data that have none of it."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes

from bdl.data.target import NumberTarget
from bdl.data.target_law import GAMMA, HURDLE, LOG_NORMAL, NORMAL, ORDINAL, find_law, log_gain, repeated
from bdl.data.targets import learn_target
from bdl.errors import ConfigError
from bdl.likelihoods import HurdleNLL, likelihood_of

RANDOM = np.random.default_rng(0)
REST = np.exp(RANDOM.normal(size=300))


def law_of(values, asked=None, every=None):
    values = np.asarray(values, dtype=np.float64)
    every = values if every is None else np.asarray(every, dtype=np.float64)
    return find_law(values, every, asked, "y", (float(values.mean()), float(values.std())))


def with_share(share: float, value: float = 0.0) -> np.ndarray:
    count = round(share * len(REST) / (1 - share))
    return np.concatenate([np.full(count, value), REST])


@pytest.mark.parametrize(
    "values",
    [
        RANDOM.normal(size=500),
        RANDOM.normal(size=500).round(1),
        RANDOM.normal(size=2000).round(),
        RANDOM.poisson(40, 500),
        REST.round(1),
        RANDOM.geometric(0.05, 800),
        load_diabetes(return_X_y=True)[1],
        np.repeat(RANDOM.normal(size=50), 10),  # ten measurements of each
        with_share(0.07),
        np.random.default_rng(1).geometric(0.15, 2000),  # the smallest on 15 % of the rows, and the next on 13 %
    ],
    ids=["normal", "decimal", "whole", "counts", "log-normal", "geometric", "diabetes", "ten of each", "7 %", "15 %"],
)
def test_rounded_data_have_no_repeated_values(values):
    assert repeated(np.asarray(values, dtype=np.float64)) == []
    assert law_of(values).loss.get("_target_", NORMAL) == NORMAL


@pytest.mark.parametrize("share", [0.15, 0.48, 0.9])
@pytest.mark.parametrize("value", [0.0, 1.5])
def test_a_value_on_which_a_share_sits_has_a_mass(share, value):
    values = with_share(share, value)
    law = law_of(values)
    likelihood = likelihood_of({"type": law.loss["_target_"], **law.loss})
    assert isinstance(likelihood, HurdleNLL) and likelihood.points == (0.0,)
    assert law.origin == value and likelihood.low == (0.0 if value == 0 else None) and likelihood.high is None
    assert f"{100 * share:.0f} % of the values are exactly {value:g}" in (law.words or "")
    outputs, at = torch.zeros(1, 3), torch.zeros(1, 1)  # a network that knows nothing predicts the share
    assert float(likelihood.mass(outputs, at)) == pytest.approx(share, abs=0.01)


def test_masses_lie_at_both_bounds_where_both_repeat():
    values = np.clip(RANDOM.normal(0.5, 0.6, 600), 0, 1) * 4 + 3
    law = law_of(values)
    assert law.loss["points"] == [0.0, 1.0] and (law.loss["low"], law.loss["high"]) == (0.0, 1.0)
    assert (law.origin, law.scale) == (3.0, 4.0) and "between them" in (law.words or "")


def test_the_density_reaches_beyond_a_bound_that_other_rows_pass():
    """The bounds are those of all rows: one held-out row below the repeated value, and it is none."""
    values = with_share(0.4)
    assert law_of(values).loss["low"] == 0
    assert law_of(values, every=np.append(values, -0.1)).loss["low"] is None
    capped = np.minimum(RANDOM.normal(size=500), 1.0)
    assert law_of(capped).loss["high"] == 0 and law_of(capped).origin == 1


def test_the_rows_that_a_point_leaves_may_repeat_too():
    """A tenth of all rows sits on -1: a fifth of those that are not 0, on which a density would have no limit."""
    values = np.concatenate([np.zeros(300), np.full(60, -1.0), REST])
    law = law_of(values)
    assert law.loss["points"] == [pytest.approx(-1 / values.std()), 0.0] and law.origin == 0
    assert (law.loss["low"], law.loss["high"]) == (0.0, None) and "a density above 0" in (law.words or "")
    assert repeated(np.concatenate([np.zeros(300), np.full(20, -1.0), REST])) == [0.0]
    assert repeated(np.concatenate([np.zeros(35), np.full(34, -1.0), REST])) == []  # each has less than a tenth


def test_a_positive_law_is_proposed_where_all_rows_are_positive():
    assert law_of(REST, every=np.append(REST, 0.0)).words is None


def test_the_tail_follows_the_values():
    assert law_of(with_share(0.4)).loss["tail"] == "log"
    near = np.concatenate([np.zeros(200), np.abs(RANDOM.normal(3, 1, 300))])
    assert law_of(near).loss["tail"] == "linear" and "limit" not in law_of(near).loss


def test_few_levels_get_a_proposal_and_no_density():
    counts = RANDOM.choice(9, 1000, p=[0.83, *[0.17 / 8] * 8])
    law = law_of(counts)
    assert law.loss.get("_target_") == NORMAL and "9 levels" in (law.words or "") and "counts" in (law.words or "")
    assert "loss=ordinal or data.task=classification" in (law_of(RANDOM.choice([3, 4, 5, 6, 7], 500)).words or "")


def test_levels_in_an_order_have_the_thresholds_of_their_shares():
    """A network that puts out 0 predicts the shares, and a level that held-out rows alone have gets one."""
    values = np.repeat([3.0, 4.0, 6.0], [10, 70, 20])
    law = law_of(values, ORDINAL, every=np.append(values, 5.0))
    likelihood = likelihood_of({"type": law.loss["_target_"], **law.loss})
    assert likelihood is not None and law.loss["levels"] == [3, 4, 5, 6] and (law.origin, law.scale) == (0, 1)
    levels, outputs = torch.tensor([[3.0], [4.0], [5.0], [6.0]]), torch.zeros(4, 4)
    found = likelihood.mass(outputs, levels).flatten().tolist()
    assert found == pytest.approx([10.5 / 102, 70.5 / 102, 0.5 / 102, 20.5 / 102], rel=1e-5)
    with pytest.raises(ConfigError, match="a few levels, and data.target=y has 300 different values, more than 50"):
        law_of(REST, ORDINAL)


def test_a_law_of_numbers_says_the_task():
    """A quality from 3 to 8 is asked about, unless the loss has answered."""
    values = {"y": pd.Series(np.arange(60) % 6 + 3, name="y")}
    with pytest.raises(ConfigError, match="loss=ordinal a level in their order"):
        learn_target(values, values, None, "t.csv", None)
    target, _ = learn_target(values, values, None, "t.csv", ORDINAL)
    assert target.task == "regression" and "6 levels in their order, 3 to 8" in str(target)


def test_positive_and_skewed_values_are_told_and_laws_of_them_can_be_asked_for():
    assert "loss=lognormal" in (law_of(REST).words or "") and law_of(REST).loss["_target_"] == NORMAL
    assert law_of(RANDOM.normal(20, 1, 300)).words is None
    for asked in (LOG_NORMAL, GAMMA):
        law = law_of(REST, asked)
        likelihood = likelihood_of({"type": asked, **law.loss})
        assert law.origin == 0 and likelihood is not None and law.loss["_target_"] == asked
        logs = np.log(REST / law.scale)
        assert (law.loss["center"], law.loss["spread"]) == pytest.approx((logs.mean(), logs.std()))
    with pytest.raises(
        ConfigError, match="GammaNLL takes .* data.target=y has 1 value below or at 0, such as -1: .*y=-1"
    ):
        law_of(REST, GAMMA, every=np.append(REST, -1.0))
    with pytest.raises(ConfigError, match="HurdleNLL needs a value that is repeated"):
        law_of(REST, HURDLE)


def test_a_law_of_the_user_is_kept_and_the_repeated_value_told():
    law = law_of(with_share(0.48), NORMAL)
    assert law.loss.get("_target_", NORMAL) == NORMAL and "48 % of the values are exactly 0" in (law.words or "")


def test_the_gain_of_a_logarithm_is_that_of_two_fitted_laws():
    normal = -0.5 * np.log(2 * np.pi * np.e * REST.var())
    logs = np.log(REST)
    assert log_gain(REST) == pytest.approx(-0.5 * np.log(2 * np.pi * np.e * logs.var()) - logs.mean() - normal)


def test_a_repeated_value_is_encoded_to_the_bit():
    values = pd.Series(with_share(0.3, 0.1), name="y")
    target = NumberTarget.learn(values, "t.csv", "regression")
    y = target.encode(values, "t.csv")
    assert int((y == 0).sum()) == int((values == 0.1).sum())
