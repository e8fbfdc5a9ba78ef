"""Tests of `bdl.tune.temperature`.

T is the one with the best predictions for items that were held out, at the temperature that its trial really had.
"""

from __future__ import annotations

import pytest
import torch

import bdl
from bdl.tune.temperature import CANDIDATES, choose_temperature


def test_a_colder_posterior_is_chosen_if_it_is_clearly_better():
    first, noise = torch.ones(100), torch.linspace(-1, 1, 100)
    reached = {1.0: 1.08, 0.3: 0.32, 0.1: 0.11}
    better = choose_temperature({1.0: first, 0.3: first - 0.5 + 0.1 * noise}, reached)
    assert (better.name, better.value) == ("temperature", 0.3)
    assert better.reason == "validation NLL 1.000, 0.500 at T_eff 1.08, 0.32"
    assert choose_temperature({1.0: first, 0.3: first - 0.01 + noise}, reached).value == 1.0


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
