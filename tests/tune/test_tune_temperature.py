"""Tests of `bdl.tune.temperature`.

T is the one with the best predictions for items that were held out, at the temperature that its trial really had.
"""

from __future__ import annotations

import pytest
import torch

import bdl
from bdl.tune.temperature import CANDIDATES, choose_temperature, hottest_good


def test_a_colder_posterior_is_chosen_if_it_is_clearly_better():
    first, noise = torch.ones(100), torch.linspace(-1, 1, 100)
    reached = {1.0: 1.08, 0.3: 0.32, 0.1: 0.11}
    better = choose_temperature({1.0: first, 0.3: first - 0.5 + 0.1 * noise}, reached)
    assert (better.name, better.value) == ("temperature", 0.3)
    assert better.reason == "validation NLL 1.000, 0.500 at T_eff 1.08, 0.32"
    assert choose_temperature({1.0: first, 0.3: first - 0.01 + noise}, reached).value == 1.0


@pytest.mark.parametrize("more, chosen", [(0.01, 0.3), (0.05, 0.1)])
def test_the_hottest_of_those_that_are_about_as_good_is_chosen(more, chosen):
    """0.1 is better than 0.3 by `more`, with a standard error of 0.0116; both are clearly better than 1."""
    first, noise = torch.ones(100), 0.2 * torch.linspace(-1, 1, 100)
    assert hottest_good({1.0: first, 0.3: first - 0.5, 0.1: first - 0.5 - more + noise}) == chosen


def test_trials_at_several_temperatures_begin_at_one_start():
    """Chains far from the data, which still approach them, with data that outweigh T: no T predicts better."""
    x = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    stack = bdl.ChainStack(torch.nn.Linear(2, 1), 2)
    given = {"prior": bdl.Gaussian(), "lr": 1e-5, "batch_size": 4000}
    tuning = bdl.find_settings(
        stack, bdl.GaussianNLL(1.0), (x, x[:, :1] + 5), temperature=None, steps=4000, given=given
    )
    assert tuning.settings["temperature"] == 1.0


@pytest.mark.parametrize("dynamics", [bdl.SGHMC(), bdl.MCLMC(energy_var=0.01, adapt_steps=100)])
def test_it_is_found_where_none_is_given(dynamics):
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=stream)
    stack = bdl.ChainStack(torch.nn.Linear(2, 2), 2)
    given = {"prior": bdl.Gaussian()}
    tuning = bdl.find_settings(
        stack, bdl.HeteroscedasticNLL(), (x, x[:, :1]), None, dynamics, temperature=None, steps=4000, given=given
    )
    assert tuning.settings["temperature"] in CANDIDATES
    line = next(str(choice) for choice in tuning.choices if choice.name == "temperature")
    assert line.startswith("tune: temperature") and "at T_eff 1" in line
