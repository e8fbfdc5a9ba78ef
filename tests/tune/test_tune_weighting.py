"""Tests of `bdl.tune.weighting` and `.search`: how hot chains may move so that weights lead back; lr of a weighting."""

import math
from dataclasses import replace

import pytest
import torch
from repeats import slow_where
from scipy import stats

import bdl
from bdl.tune.trial import Problem, Trial
from bdl.tune.weighting import HOTTER, MOST_NATS, in_trials, nats_of_gaussian, ratios_within_reach, round_trips


@pytest.mark.parametrize("d", [10, 100, 1000])
@pytest.mark.parametrize("ratio", HOTTER)
def test_nats_are_those_of_a_chi_square(d: int, ratio: float):
    """log P(U < d T0/2) at T = k T0 for U = T chi2_d / 2, which the bound misses by a polynomial factor in d."""
    exact = -stats.chi2.logcdf(d / ratio, d)
    assert 0 < exact - nats_of_gaussian(d, ratio) < math.log(d) + 1


def test_large_networks_have_no_hotter_temperature():
    assert ratios_within_reach(30) == HOTTER and ratios_within_reach(4306) == ()
    assert all(nats_of_gaussian(200, k) <= MOST_NATS for k in ratios_within_reach(200))
    assert len(ratios_within_reach(200)) < len(HOTTER)


def test_a_round_trip_goes_from_the_top_to_the_bottom_and_back():
    energies = torch.tensor(
        [
            [9.0, 5, 1, 5, 9, 1, 9],  # twice
            [9.0, 5, 4, 5, 9, 5, 9],  # never at the bottom
            [1.0, 9, 5, 1, 5, 4, 5],  # down once, and never back
            [5.0, 5, 5, 5, 5, 5, 5],
        ]
    )
    assert round_trips(energies, low=2.0, high=8.0).tolist() == [2, 0, 1, 0]


@pytest.fixture(scope="module")
def curved():
    """Few noisy items and many weights, which predict better when they are cold."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=stream)
    y = x[:, :1].sin() + 0.5 * x[:, 1:2] * x[:, 2:] + 0.1 * torch.randn(200, 1, generator=stream)
    return bdl.ChainStack(bdl.models.MLP([3, 20, 20, 2]), 2), bdl.HeteroscedasticNLL(), (x, y)


def settings(case, weighting, dynamics=None, steps=4000, **given):
    stack, loss, items = case
    given = {"prior": bdl.Gaussian(), **given}
    return bdl.find_settings(stack, loss, items, None, dynamics, weighting=weighting, steps=steps, given=given).settings


AUTO = bdl.AdaptiveWeight(zeta="auto")


@pytest.fixture(scope="module")
def linear():
    """A linear network at its best parameters: a Gaussian posterior of 21 parameters, U = U_min + chi2_21 T/2."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(100, 20, generator=stream)
    y = x[:, :1] + torch.randn(100, 1, generator=stream)
    net = torch.nn.Linear(20, 1)
    torch.nn.init.zeros_(net.weight), torch.nn.init.zeros_(net.bias)
    return bdl.ChainStack(net, 8, start="given"), bdl.GaussianNLL(1.0), (x, y)


@pytest.fixture(scope="module")
def found(linear):
    return settings(linear, AUTO, steps=40_000)


def test_find_settings_finds_a_hotter_temperature(found):
    """What it finds is for T = 1: zeta, bins, T and an lr that bears the multiplier."""
    assert found["temperature"] in HOTTER and found["weighting"]["target"] == 1.0
    assert found["weighting"]["zeta"] >= 1 and found["weighting"]["low"] < found["weighting"]["high"]


def test_what_it_finds_leads_back_to_the_posterior(linear, found):
    """The weighted mean of U is that of exact draws of the posterior, within 4 standard errors and 10 %: lr may heat
    by a tenth, see `Limits.by_energy`. Without weights it is far above."""
    stack, loss, (x, y) = linear
    weighting = replace(AUTO, **found["weighting"])
    problem = Problem(stack, loss, (x, y), 100, 100, temperature=found["temperature"])
    trial = Trial(problem, bdl.SGHMC(found["friction"]), bdl.Gaussian(), found["lr"], "run", weighting=weighting)
    logs = []
    assert trial.run_stably(8000, lambda trial: logs.append(trial.sampler.log_weight.clone())) == 0
    energies, logs = trial.energy_trace()[:, 4000:].T.double(), torch.stack(logs[4000:])
    w = (logs - logs.max()).exp()
    mean = (w * energies).sum() / w.sum()
    error = ((w * (energies - mean)).sum(0) / w.sum()).std() * 8**0.5
    design = torch.cat([x, torch.ones(100, 1)], 1).double()
    best = torch.linalg.solve(design.T @ design + torch.eye(21), design.T @ y.double())
    lowest = (design @ best - y).square().sum() / 2 + best.square().sum() / 2 + 100 * math.log(2 * math.pi) / 2
    assert 4 * error < 3, "no power"
    assert abs(mean - lowest - 10.5) < 4 * error + 1.05
    assert energies.mean() - lowest > 15


def test_a_large_network_moves_plainly(curved):
    """502 weights leave no hotter T: the settings are those of plain chains, without a trial for a weighting."""
    plain, weighted = (settings(curved, w) for w in (bdl.Flat(), AUTO))
    assert weighted.pop("weighting") == "flat" and weighted == plain


@pytest.mark.parametrize("given", [{"plain_lr": 0.05, "friction": 0.1, "burn_in": 100}])
def test_without_open_settings_nothing_is_tried(curved, given):
    assert settings(curved, AUTO, **given).keys() == {"batch_size", "weighting"}


def test_short_runs_move_plainly(linear):
    tuning = bdl.find_settings(*linear, weighting=AUTO, steps=400, given={"prior": bdl.Gaussian()})
    (choice,) = (c for c in tuning.choices if c.name == "weighting")
    assert str(choice).endswith("because trials of 20 steps are too short to look for a hotter T")


def test_plain_chains_are_at_the_target(linear):
    """A run at T = 3 for a posterior at T0 = 1.5 that is too short for trials moves at 1.5."""
    auto, given = bdl.AdaptiveWeight(zeta="auto", target=1.5), {"prior": bdl.Gaussian()}
    found = bdl.find_settings(*linear, weighting=auto, temperature=3.0, steps=400, given=given).settings
    assert found["weighting"] == "flat" and found["temperature"] == 1.5


def test_a_temperature_beside_another_target_is_kept(linear):
    """Chains at T = 3 for a posterior at T0 = 1.5: zeta is found for these two."""
    stack, loss, items = linear
    given = {"prior": bdl.Gaussian()}
    auto = bdl.AdaptiveWeight(zeta="auto", target=1.5)
    found = bdl.find_settings(stack, loss, items, weighting=auto, temperature=3.0, steps=40_000, given=given).settings
    assert found["temperature"] == 3.0 and found["weighting"]["target"] == 1.5


def test_a_weighting_that_diverges_in_rehearsal_gets_smaller_lr(curved):
    """An lr of plain chains at T = 1 is too large for a multiplier of 1 + 3e6 T / width."""
    steep = bdl.AdaptiveWeight(zeta=3e6, edges=[-1e4, -1e3, 8e3], form="full")
    plain, weighted = (settings(curved, w)["lr"] for w in (bdl.Flat(), steep))
    assert weighted <= plain / 4


def test_energies_of_all_data_are_those_of_batches_in_trials():
    full = bdl.AdaptiveWeight(energy="control", refresh=10)
    assert in_trials(full) == bdl.AdaptiveWeight() and in_trials(bdl.Flat()) == bdl.Flat()


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda curved: settings(curved, bdl.AdaptiveWeight(zeta="auto", low=0.0)), "low = 0.0 beside zeta"),
        (lambda curved: bdl.AdaptiveWeight(zeta="auto", units="temperature"), "units = 'temperature' beside zeta"),
        (lambda curved: bdl.Contour(zeta="auto"), 'Contour has no zeta="auto": give a number'),
        (
            lambda curved: bdl.find_settings(*curved, weighting=AUTO, temperature=None),
            "tune.temperature=true looks for a colder T and zeta=auto for a hotter one",
        ),
        (
            lambda curved: bdl.Sampler(
                [torch.zeros(1, requires_grad=True)], bdl.SGLD(), num_data=1, lr=1, weighting=AUTO
            ),
            "found before a sampler is made, by tune=auto",
        ),
    ],
)
def test_what_zeta_auto_refuses(curved, build, words):
    with pytest.raises(bdl.ConfigError, match=words):
        build(curved)


@pytest.mark.parametrize("dynamics", slow_where(lambda d: not isinstance(d, bdl.SGHMC), [bdl.SGHMC(), bdl.SGNHT()]))
def test_a_zeta_that_was_given_divides_lr_by_its_multiplier(linear, dynamics):
    """Two bins that meet far below all energies: 1 + 9000 / 1000."""
    steep = bdl.AdaptiveWeight(9000.0, edges=[-1500.0, -500.0, 500.0], form="full")
    plain, weighted = (settings(linear, w, dynamics, steps=20_000)["lr"] for w in (bdl.Flat(), steep))
    assert weighted == pytest.approx(plain / 10, rel=0.05)


@pytest.mark.slow
def test_lr_is_divided_by_the_multipliers_square_where_batches_rule(linear):
    """A multiplier of 3 scales the variance of a batch's noise by 9, which bounds lr here; the curvature would by 3."""
    steep = bdl.AdaptiveWeight(2000.0, edges=[-1500.0, -500.0, 500.0], form="full")
    given = {"batch_size": 40, "friction": 0.1, "burn_in": 100}
    plain, weighted = (settings(linear, w, steps=8000, **given)["lr"] for w in (bdl.Flat(), steep))
    assert 3 * 9 < (plain / weighted) ** 2 < 9 * 27  # nearer to 9 than to 3 and to 27; the trials' noise is a fifth
