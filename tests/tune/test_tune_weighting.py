"""Tests of `bdl.tune.weighting` and `.search`.

AdaptiveWeight(zeta="auto"): zeta and two bins with which chains at T sample what plain chains sample at a colder T'. On
N(0, I_50) the energy has the mean d T'/2 and the standard deviation T' sqrt(d/2).
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from repeats import slow_where

import bdl
from bdl.tune.trial import Problem, Trial
from bdl.tune.weighting import Temperatures, choose_weighting, in_trials

D, CHAINS = 50, 64


def temperatures_of(d: int, scores: dict[float, torch.Tensor]) -> Temperatures:
    """Energies as a Gaussian of d dimensions has them at each temperature."""
    stream = torch.Generator().manual_seed(0)
    energies = {
        t: t * torch.randn(200 * CHAINS, d, generator=stream).square().sum(1).view(CHAINS, 200) / 2 for t in scores
    }
    return Temperatures(scores, {t: t for t in scores}, energies)


@pytest.fixture(scope="module")
def choice():
    better = {1.0: torch.ones(9), 0.3: torch.full((9,), 0.5), 0.1: torch.full((9,), 0.2), 0.03: torch.full((9,), 0.4)}
    return choose_weighting(temperatures_of(D, better))


def test_the_multiplier_is_the_ratio_of_the_temperatures(choice):
    found, multiplier = choice
    low, meet, high = found.value["edges"]
    assert multiplier == pytest.approx(10) and high - meet == pytest.approx(meet - low)
    assert found.value["zeta"] == pytest.approx((10 - 1) * (high - meet)) and found.value["form"] == "full"
    assert meet < -10 * D / 2 and high > D / 2  # far below all energies, and above them
    assert found.reason.startswith("validation NLL 1.000, 0.500, 0.200, 0.400 at T_eff 1, 0.3, 0.1, 0.03; the gradient")


def test_the_depth_is_that_of_the_gaussian():
    """log G falls by d/2 log(1/T') - d/2 (1 - T'), the entropy less the energy; trapezoids err by some per cent."""
    temperatures = [float(t) for t in torch.linspace(1, 0.2, 9)]
    trials = temperatures_of(D, {t: torch.zeros(2) for t in temperatures})
    exact = D / 2 * (math.log(5) - 0.8)
    assert trials.depth(temperatures[-1]) == pytest.approx(exact, rel=0.06)
    assert trials.depth(1.0) == 0


def test_zeta_stays_1_where_colder_chains_do_not_predict_better():
    noise = torch.linspace(-1, 1, 100)
    found, multiplier = choose_weighting(
        temperatures_of(D, {1.0: torch.ones(100), 0.3: torch.ones(100) - 0.01 + noise})
    )
    assert (found.value, multiplier) == ({"zeta": 1.0}, 1.0)
    assert "colder chains do not predict clearly better" in found.reason


def energies_of(weighting, lr: float, steps: int = 2000) -> tuple[torch.Tensor, float]:
    """(CHAINS,) mean energies over the later half of a run on N(0, I_50) that begins at T = 1; the multiplier."""
    theta = torch.randn(CHAINS, D, generator=torch.Generator().manual_seed(1)).requires_grad_()
    sampler = bdl.Sampler(
        [theta], bdl.SGHMC(0.1), num_data=1, lr=lr, prior=bdl.Uniform(), weighting=weighting, chains=CHAINS
    )
    energies = []

    def closure():
        sampler.zero_grad()
        loss = theta.square().sum(1) / 2
        loss.sum().backward()
        return loss

    for step in range(steps):
        sampler.step(closure)
        if step >= steps // 2:
            energies.append(torch.as_tensor(sampler.energy).double())
    return torch.stack(energies).mean(0), float(sampler.multiplier.mean())


@pytest.mark.parametrize("factor", slow_where(lambda factor: factor == 1.1, [1.0, 1.1]))
def test_weighted_chains_have_plain_energies_at_a_lower_t(choice, factor):
    """The mean energy is d T'/2 times 1 + lr h / (2 (2 - a)), the step's own error, within 4 standard errors.

    Those are about 1 %. The negative control is a zeta 1.1 times as large, whose T' is 9 % lower.
    """
    arguments = dict(choice[0].value)
    arguments["zeta"] *= factor
    lr = 0.05
    each, multiplier = energies_of(bdl.AdaptiveWeight(**arguments), lr / 10)
    exact = 0.1 * D / 2 / (1 - lr / (2 * 1.9))
    error = float(each.std()) / math.sqrt(CHAINS)
    assert 4 * error < 0.03 * exact
    assert (abs(float(each.mean()) - exact) < 4 * error) == (factor == 1)
    assert multiplier == pytest.approx(1 + 9 * factor, rel=1e-3)


def test_below_the_floor_the_weighting_lets_go():
    """Bins that meet above the energies of T' = 0.1 hold the chain there: the multiplier falls below its largest."""
    width = 40.0
    arguments = {"zeta": 9 * width, "edges": [10 - width, 10, 10 + width], "form": "full"}
    each, multiplier = energies_of(bdl.AdaptiveWeight(**arguments), 0.005)
    assert 7 < float(each.mean()) < 12 and 2 < multiplier < 9


@pytest.fixture(scope="module")
def linear():
    """A linear network at its best parameters, as many weights as items, and a likelihood ten times too wide.

    Chains spread by about one std of that likelihood at T = 1, and predict better the colder they are.
    """
    x = torch.randn(200, 150, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Linear(150, 1)
    torch.nn.init.zeros_(net.weight), torch.nn.init.zeros_(net.bias)
    return bdl.ChainStack(net, 2, start="given"), bdl.GaussianNLL(1.0), (x, 0.1 * x[:, :1])


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


@pytest.fixture
def short_trials(monkeypatch):
    """Trials of 200 steps are long enough to compare temperatures, as they are for a Gaussian."""
    monkeypatch.setattr("bdl.tune.find.SHORTEST_OF_T", 200)


def test_find_settings_gives_zeta_and_an_lr_that_moves_as_plain(linear, short_trials):
    found = settings(linear, AUTO)
    stack, loss, items = linear
    plain = bdl.find_settings(
        stack, loss, items, temperature=None, steps=4000, given={"prior": bdl.Gaussian()}
    ).settings
    low, meet, high = found["weighting"]["edges"]
    multiplier = 1 + found["weighting"]["zeta"] / (high - meet)
    assert multiplier == pytest.approx(1 / plain["temperature"]) and plain["temperature"] < 1
    assert found["lr"] * multiplier == pytest.approx(plain["lr"]) and found["friction"] == plain["friction"]
    problem = Problem(stack, loss, items, 200, found["batch_size"])
    weighting = replace(AUTO, **found["weighting"])
    trial = Trial(problem, bdl.SGHMC(found["friction"]), bdl.Gaussian(), found["lr"], "run", weighting=weighting)
    assert trial.run_stably(1200) == 0
    assert trial.sampler.multiplier.tolist() == pytest.approx([multiplier] * 2, rel=1e-2)


@pytest.mark.parametrize(
    "dynamics, given, lr",
    [
        pytest.param(bdl.SGHMC(), {"lr": 0.05}, None, marks=pytest.mark.slow),
        (bdl.SGHMC(), {"plain_lr": 0.05}, 0.05),
        pytest.param(bdl.SGRLD(), {"plain_lr": 0.05}, 0.05, marks=pytest.mark.slow),
        (bdl.PSGLD(), {"plain_lr": 0.01}, None),  # a step has its size whatever the gradient
    ],
    ids=["given", "plain", "riemannian", "preconditioned"],
)
def test_a_known_lr_is_divided_by_the_multiplier(linear, short_trials, dynamics, given, lr):
    found = settings(linear, AUTO, dynamics, steps=20_000, **given)
    low, meet, high = found["weighting"]["edges"]
    multiplier = 1 + found["weighting"]["zeta"] / (high - meet)
    assert found.get("lr") == (None if lr is None else pytest.approx(lr / multiplier)) and multiplier > 2


def test_trials_that_are_too_short_leave_zeta_at_1(curved):
    assert line_of(curved, 400) == (
        "tune: weighting zeta 1: zeta stays, because trials of 20 steps are too short to compare others, which takes "
        "4,000; at 1 it changes little"
    )


def test_trials_that_are_not_at_rest_leave_zeta_at_1(curved, short_trials):
    """A network that has not been trained: colder chains fit the data sooner."""
    assert line_of(curved, 4000) == (
        "tune: weighting zeta 1: zeta stays, because trials of 200 steps are too far from rest to compare others; at 1 "
        "it changes little"
    )


def line_of(case, steps: int) -> str:
    """What the tuning of a run of so many steps says of the weighting."""
    tuning = bdl.find_settings(*case, weighting=AUTO, steps=steps, given={"prior": bdl.Gaussian()})
    (choice,) = (c for c in tuning.choices if c.name == "weighting")
    return str(choice)


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
            "T and zeta are both to be found",
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
    """Two bins that meet far below all energies, as zeta="auto" would find them: 1 + 9000 / 1000."""
    steep = bdl.AdaptiveWeight(9000.0, edges=[-1500.0, -500.0, 500.0], form="full")
    plain, weighted = (settings(linear, w, dynamics, steps=20_000)["lr"] for w in (bdl.Flat(), steep))
    assert weighted == pytest.approx(plain / 10, rel=0.05)
