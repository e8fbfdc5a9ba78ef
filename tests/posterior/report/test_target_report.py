"""A run whose weights lead to another temperature: the verdict and the page speak of the target."""

import math

from bdl.posterior.judge_weights import at_target, judge_weights
from bdl.posterior.judgements import Numbers

HOT = {
    "temperature": 1.0, "temperature/moves": 4.0, "samples": 400.0, "ess/min": 400.0, "weight_ess": 100.0,
    "weights_biased": 0.0, "mcse/most": 0.01, "mcse/worst": 0.02, "mcse/unit": 0.5,
    "test/bma/nll": 0.5, "test/bma_weighted/nll": 0.3,
}  # fmt: skip


def test_the_weighted_average_takes_the_place_of_the_uniform_one():
    """Its Monte Carlo error is that of a fourth of the samples: twice as large; the unit of numbers stays."""
    m = at_target(Numbers(HOT))
    assert m["test/bma/nll"] == 0.3 and m["mcse/most"] == 0.02 and m["mcse/worst"] == 0.04 and m["mcse/unit"] == 0.5


def test_without_a_target_the_numbers_stay():
    plain = Numbers({k: v for k, v in HOT.items() if k != "temperature/moves"})
    assert at_target(plain) == plain


def test_hot_samples_without_usable_weights_are_no_posterior():
    m = Numbers(HOT | {"weight_ess": math.nan})
    judged = judge_weights(m)
    assert at_target(m) == m and judged is not None and judged.outcome == "no posterior"
    assert judged.words == "the chains move at T = 4, and no importance weights lead to T = 1"
