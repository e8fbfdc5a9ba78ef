"""Tests of `bdl.tune.sampler`: full batches for few rows, batches for many, and a cost that stays in bounds."""

from __future__ import annotations

from bdl.tune.sampler import choose_length, choose_sampler


def test_few_rows_are_taken_at_every_step_and_many_in_batches():
    assert [choose_sampler(rows) for rows in (2, 50_000, 50_001, 10**6)] == ["mclmc", "mclmc", "sghmc", "sghmc"]


def test_full_batch_runs_get_shorter_as_rows_get_more():
    assert [choose_length("mclmc", rows) for rows in (10, 1_200, 4_800, 120_000)] == [20_000, 20_000, 10_000, 2_500]
    assert choose_length("sghmc", 10) == choose_length("sghmc", 10**6) == 80_000
