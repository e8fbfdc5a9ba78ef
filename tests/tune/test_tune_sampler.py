"""Tests of `bdl.tune.sampler`: full batches for few rows, batches for many, and a cost that stays in bounds."""

import math

from bdl.tune.choice import Choice
from bdl.tune.sampler import choose_length, choose_sampler, with_length


def test_few_rows_are_taken_at_every_step_and_many_in_batches():
    assert [choose_sampler(rows) for rows in (2, 50_000, 50_001, 10**6)] == ["mclmc", "mclmc", "sghmc", "sghmc"]


def test_full_batch_runs_get_shorter_as_rows_get_more():
    assert [choose_length("mclmc", rows) for rows in (10, 1_200, 4_800, 120_000)] == [20_000, 20_000, 10_000, 2_500]
    assert choose_length("sghmc", 10) == choose_length("sghmc", 10**6) == 80_000


def test_chains_that_agree_in_a_trial_need_a_quarter_of_the_steps():
    assert [choose_length("mclmc", 10, rhat) for rhat in (1.0, 1.05, 1.1, 3.0, math.nan)] == [
        5_000, 10_000, 20_000, 20_000, 20_000,
    ]  # fmt: skip
    assert choose_length("mclmc", 10**6, 1.0) == 2_500 and choose_length("sghmc", 10, 1.0) == 80_000


def test_the_length_alone_follows_rhat_and_only_under_mclmc():
    length, other, sghmc = Choice("length", 20_000, "rows"), Choice("prior", 1.0, ""), Choice("sampler", "sghmc", "")
    shorter, same = with_length((length, other), 1.0, 100)
    assert shorter.value == 5_000 and "R-hat 1 in a trial" in shorter.reason and same is other
    assert with_length((sghmc, length), 1.0, 100) == (sghmc, length)
    assert with_length((length,), math.nan, 100) == (length,)
