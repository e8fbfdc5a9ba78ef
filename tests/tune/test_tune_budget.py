"""Tests of `bdl.tune.budget` and `.work`.

Steps and samples from a time, and the bound on the work of trials.
"""

import pytest
import torch

import bdl
from bdl.tune.budget import FEWEST_RUN_STEPS, FEWEST_SAMPLES, choose_every, choose_samples, choose_steps
from bdl.tune.trial import Problem
from bdl.tune.work import OPERATIONS, curvature_rows


def test_steps_fill_what_start_up_and_report_leave():
    found = choose_steps(600, per_step=0.01, stacks=1, before=20, after=5)
    assert found.value == 50_000  # 575 s at 11.5 ms
    assert choose_steps(600, 0.01, 2, 20, 5).value == 25_000


def test_a_budget_that_is_too_short_still_takes_some_steps():
    assert choose_steps(10, 0.01, 1, 20, 5).value == FEWEST_RUN_STEPS


@pytest.mark.parametrize("per_sample, samples", [(0.01, 100), (2.0, 75), (1000.0, FEWEST_SAMPLES)])
def test_a_quarter_of_the_budget_predicts(per_sample, samples):
    assert choose_samples(600, per_sample, wanted=100) == samples


@pytest.mark.parametrize("steps, burn_in, samples", [(1000, 400, 75), (100, 40, 10), (12, 4, 10)])
def test_no_more_samples_are_kept_than_were_chosen(steps, burn_in, samples):
    every = choose_every(steps, burn_in, samples, wanted=100).value
    kept = len(range(burn_in + every, steps + 1, every))
    assert kept <= samples and every * (samples + 1) > steps - burn_in


def test_the_curvature_of_a_large_network_takes_fewer_items():
    """An item of the wide network has 3 * 2 * 2 * 2,000 * 3,000 operations in its gradients, of two chains."""

    def rows(wide: int, batch_size: int) -> int:
        stack = bdl.ChainStack(torch.nn.Linear(2000, wide), 2)
        items = torch.randn(1500, 2000), torch.randn(1500, wide)
        return curvature_rows(Problem(stack, torch.nn.MSELoss(), items, 1500, batch_size), products=25, most=1024)

    assert rows(3, 20) == 1024
    assert rows(3000, 20) == int(OPERATIONS / (2 * 25 * 3 * 2 * 2 * 2000 * 3000))
    assert rows(3000, 300) == 300
