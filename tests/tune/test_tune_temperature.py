"""Tests of `bdl.tune.temperature`.

T is the one with the best predictions for items that were held out, at the temperature that its trial really had.
"""

import pytest
import torch

import bdl
from bdl.tune import find
from bdl.tune.temperature import TEMPERATURES_TRIED, choose_temperature, hottest_good


def test_a_colder_posterior_is_chosen_if_it_is_clearly_better():
    first, noise = torch.ones(100), torch.linspace(-1, 1, 100)
    reached = {1.0: 1.08, 0.3: 0.32}
    better = choose_temperature({1.0: first, 0.3: first - 0.5 + 0.1 * noise}, reached)
    assert (better.name, better.value) == ("temperature", 0.3)
    assert better.reason == "validation NLL 1.000, 0.500 at T_eff 1.08, 0.32"
    moving = choose_temperature({1.0: first}, reached)
    assert (moving.value, moving.reason) == (1.0, "validation NLL 1.000 at T_eff 1.08; 0.3 had not come to rest")
    assert choose_temperature({1.0: first, 0.3: first - 0.01 + noise}, reached).value == 1.0


@pytest.mark.parametrize("more, chosen", [(0.01, 0.3), (0.05, 0.1)])
def test_the_hottest_of_those_that_are_about_as_good_is_chosen(more, chosen):
    """0.1 is better than 0.3 by `more`, with a standard error of 0.0116; both are clearly better than 1."""
    first, noise = torch.ones(100), 0.2 * torch.linspace(-1, 1, 100)
    assert hottest_good({1.0: first, 0.3: first - 0.5, 0.1: first - 0.5 - more + noise}) == chosen


@pytest.fixture
def short_trials(monkeypatch):
    """Trials of 200 steps are long enough to compare temperatures, as they are for a Gaussian."""
    monkeypatch.setattr("bdl.tune.find.SHORTEST_OF_T", 200)


@pytest.fixture(scope="module")
def noisy():
    """A linear regression: two chains, and 200 items with noise of standard deviation 1."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=stream)
    y = x[:, :1] + torch.randn(200, 1, generator=stream)
    return bdl.ChainStack(torch.nn.Linear(2, 2), 2), bdl.HeteroscedasticNLL(), (x, y)


def line_of(case, dynamics) -> str:
    """What the tuning of a run of 20,000 steps says of T."""
    given = {"prior": bdl.Gaussian()}
    tuning = bdl.find_settings(*case, None, dynamics, temperature=None, steps=20_000, given=given)
    assert tuning.settings["temperature"] in TEMPERATURES_TRIED
    return next(str(choice) for choice in tuning.choices if choice.name == "temperature")


def test_it_is_found_where_none_is_given(noisy, short_trials):
    assert "at T_eff 1" in line_of(noisy, bdl.SGHMC())


def test_short_trials_are_for_samplers_of_all_items_alone(noisy):
    assert "at T_eff 1" in line_of(noisy, bdl.MCLMC(energy_var=0.01, adapt_steps=100))
    assert line_of(noisy, bdl.SGHMC()) == (
        "tune: temperature 1: T stays, because trials of 1,000 steps are too short to compare others, which takes 4,000"
    )


def test_trials_at_several_temperatures_share_start_and_length(noisy, short_trials, monkeypatch):
    """Else the coldest would be trained for longest, and predict better for that."""
    seen = []

    def spy(search, prior, held_out, name):
        seen.append((search.problem.temperature, id(search.problem.stack), search.trial))
        return compared(search, prior, held_out, name)

    compared = find._compared
    monkeypatch.setattr(find, "_compared", spy)
    bdl.find_settings(*noisy, temperature=None, steps=20_000, given={"prior": bdl.Gaussian()})
    assert [temperature for temperature, *_ in seen] == list(TEMPERATURES_TRIED)
    assert {(stack, steps) for _, stack, steps in seen} == {(id(noisy[0]), 1000)}
