"""Tests of `bdl.tune.optimiser`: the lr of SGD is far from where it diverges, and as fast as that allows."""

import pytest
import torch
from repeats import slow_where

import bdl
from bdl.errors import ConfigError
from bdl.tune.optimiser import RATES_TRIED

PRIOR = {"prior": bdl.Gaussian(1e-3), "batch_size": 100}


def problem(scale: float) -> tuple[bdl.ChainStack, tuple[torch.Tensor, torch.Tensor]]:
    """y = scale x + noise: U/N has the curvature scale² in the slope, so that SGD diverges beyond 3.8 / scale²."""
    stream = torch.Generator().manual_seed(0)
    x = scale * torch.randn(400, 1, generator=stream)
    y = x / scale + 0.1 * torch.randn(400, 1, generator=stream)
    return bdl.ChainStack(torch.nn.Linear(1, 1), 2), (x, y)


@pytest.mark.parametrize("scale", slow_where(lambda scale: scale == 1.0, [1.0, 20.0]))
def test_the_lr_is_a_quarter_at_most_of_one_that_diverges(scale):
    stack, items = problem(scale)
    tuning = bdl.find_settings(stack, bdl.GaussianNLL(1.0), items, dynamics=bdl.SGD(0.9), steps=20_000, given=PRIOR)
    assert list(tuning.settings) == ["lr"]  # nothing else is the business of an optimiser
    lr, bound = tuning.settings["lr"], 2 * 1.9 / scale**2  # of heavy-ball momentum 0.9 at curvature scale²
    diverging = [candidate for candidate in RATES_TRIED if candidate > bound]
    assert lr in RATES_TRIED and lr <= (min(diverging) / 4 if diverging else RATES_TRIED[0])
    assert lr > bound / 100 or lr == RATES_TRIED[0]  # and not so small that nothing moves
    assert (f"{min(diverging):g} diverged" in str(tuning.choices[0])) if diverging else True


def test_a_sampler_at_zero_temperature_is_an_optimiser():
    stack, items = problem(1.0)
    tuning = bdl.find_settings(
        stack, bdl.GaussianNLL(1.0), items, dynamics=bdl.SGHMC(), temperature=0.0, steps=2000, given=PRIOR
    )
    assert list(tuning.settings) == ["lr"]


def test_an_optimiser_needs_a_prior_and_keeps_a_given_lr():
    stack, items = problem(1.0)
    with pytest.raises(ConfigError, match=r"finds no prior for SGD.*give one, such as bdl.Gaussian\(\)"):
        bdl.find_settings(stack, bdl.GaussianNLL(1.0), items, dynamics=bdl.SGD(), steps=2000)
    given = PRIOR | {"lr": 0.02}
    assert not bdl.find_settings(
        stack, bdl.GaussianNLL(1.0), items, dynamics=bdl.SGD(), steps=2000, given=given
    ).choices
