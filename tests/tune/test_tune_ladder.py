"""Tests of `bdl.tune.ladder`: lr follows the curvature that hot chains meet, and swaps cost a tenth of the steps."""

from dataclasses import replace

import pytest
import torch

import bdl
from bdl.models import MLP
from bdl.tune.ladder import choose_lr_power, choose_swaps, in_trials
from bdl.tune.trial import Problem, Trial

LADDER = bdl.Exchange([1.0, 4.0, 16.0])


def problem(chains: int = 6) -> Problem:
    stream = torch.Generator().manual_seed(1)
    x = torch.randn(60, 3, generator=stream)
    return Problem(bdl.ChainStack(MLP([3, 1]), chains), bdl.GaussianNLL(1.0), (x, x[:, :1]), 60, 60)


def trial(power: float) -> Trial:
    """Chains whose curvature is T**power by their prior, or by the data alone for 0."""
    each = Trial(problem(), bdl.SGHMC(), bdl.Gaussian(1.0), 1e-3, "ladder", exchange=in_trials(LADDER, 6))
    temperature = torch.as_tensor(each.sampler.settings().temperature).float()
    each.stack.forward = scaled(each.stack.forward, temperature ** (power / 2))  # type: ignore[method-assign]
    return each


def scaled(forward, factor):
    return lambda x: forward(x) * factor.view(-1, 1, 1)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_lr_falls_as_the_curvature_grows(power: float):
    """On a linear network the curvature is that of its inputs times the square of its scale, T**power."""
    assert choose_lr_power(trial(power)).value == pytest.approx(power, abs=0.05)


@pytest.mark.parametrize("power", [0.0, -1.0])
def test_lr_stays_where_the_curvature_does_not_grow(power: float):
    assert choose_lr_power(trial(power)).value == 0


def test_swaps_take_a_tenth_of_the_steps():
    """A pass over 6,000 items at batches of 100 costs as much as 60 forward passes, or 20 steps."""
    assert choose_swaps(replace(problem(), num_data=6000, batch_size=100)).value == 200
    assert choose_swaps(replace(problem(), num_data=300, batch_size=100)).value == 10
    assert choose_swaps(problem()).value == 10


def test_chains_of_a_trial_never_swap():
    assert in_trials(None, 4) is None and in_trials(LADDER, 1) is None
    each = trial(0.0)
    each.run(60)
    assert each.sampler.swap_rates.isnan().all()
    assert each.predictions(problem().items[0]).shape == (2, 60)  # the chains of the first rung
