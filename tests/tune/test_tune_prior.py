"""Tests of `bdl.tune.prior` and `.score`.

The prior: the candidate with the best validation NLL, and what a prior predicts.
"""

import math

import pytest
import torch

import bdl
from bdl.tune.choice import Choice
from bdl.tune.prior import (
    OF_CLASSES,
    OF_CLASSES_IN_TABLES,
    OF_COUNTS,
    OF_NUMBERS,
    at_share,
    at_temperature,
    candidates,
    choose_prior,
    is_around_zero,
    prior_predictive,
    steps_to_act,
)
from bdl.tune.score import Score
from bdl.tune.trial import Problem, Trial

LINEAR = torch.nn.Linear(4, 1, bias=False)
ITEMS = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(30, 1)


def problem(net=LINEAR, loss=None, items=ITEMS, chains=50) -> Problem:
    return Problem(bdl.ChainStack(net, chains), loss or bdl.GaussianNLL(1.0), items, 30, 30)


def test_the_score_is_that_of_the_mixture():
    trial, score = Trial(problem(chains=3), bdl.SGHMC(), bdl.Gaussian(), 1e-3, "test"), Score(ITEMS)
    means = []
    for _ in range(2):
        trial.run(5)
        score(trial)
        means.append(trial.outputs(ITEMS[0]))
    drawn = torch.cat(means).squeeze(-1)  # (6, 30)
    density = torch.distributions.Normal(drawn, 1.0).log_prob(torch.zeros(30)).exp().mean(0)
    torch.testing.assert_close(score.nll.float(), -density.log(), rtol=1e-4, atol=1e-5)


def test_a_candidate_replaces_first_only_if_it_is_clearly_better():
    first, noise = torch.ones(100), torch.linspace(-1, 1, 100)
    about = {1.0: "wide", "fan_in": "tight"}
    assert choose_prior({1.0: first, "fan_in": first - 0.5 + 0.1 * noise}, about, {}).value == "fan_in"
    assert choose_prior({1.0: first, "fan_in": first - 0.01 + noise}, about, {}).value == 1.0
    worse = choose_prior({1.0: first, "fan_in": first + 0.5}, about, {})
    assert worse.value == 1.0 and worse.reason == "validation NLL 1.000, 1.500 for precision 1.0, fan_in; wide"


def test_a_tie_goes_to_the_prior_that_mixes_where_chains_of_the_first_agree():
    first, noise = torch.ones(100), torch.linspace(-1, 1, 100)
    scores = {1.0: first, "fan_in": first - 0.01 + noise, "steep": first + 0.005 + noise}
    about = dict.fromkeys(scores, "")
    assert choose_prior(scores, about, {}, rhat=1.2).value == "steep"
    assert {choose_prior(scores, about, {}, rhat=rhat).value for rhat in (1.4, math.nan)} == {1.0}
    assert choose_prior(scores | {"steep": first + 0.02}, about, {}, rhat=1.2).value == 1.0
    assert choose_prior(scores | {"fan_in": first - 0.5}, about, {}, rhat=1.2).value == "fan_in"


@pytest.mark.parametrize(
    ("dynamics", "loss"),
    [(bdl.MCLMC(adapt_steps=1), None), (bdl.SGHMC(), None), (bdl.MCLMC(adapt_steps=1), bdl.PoissonNLL())],
)
def test_ties_are_of_numbers_and_a_sampler_of_all_rows(monkeypatch, dynamics, loss):
    """Three layers, whose targets say nothing. Others never hear how far the chains of a trial agree."""
    seen = []

    def told(scores, about, left_out, errors, rhat):
        seen.append(rhat)
        return choose_prior(scores, about, left_out, errors, rhat)

    monkeypatch.setattr("bdl.tune.find.choose_prior", told)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    stack = bdl.ChainStack(net, chains=3)
    bdl.find_settings(stack, loss or bdl.GaussianNLL(1.0), ITEMS, dynamics=dynamics, steps=2000, given={"lr": 1e-3})
    assert all(1 <= rhat < math.inf for rhat in seen) == (loss is None and dynamics.full_batch) and seen


def test_a_colder_law_counts_each_item_more_often():
    """exp(-U/T) with the prior of T = 1/4 is the posterior of four copies of each item: one energy but for a number."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    given = problem(net, chains=5)
    theta = torch.cat([p.detach().flatten(1) for p in given.stack.parameters()], 1).double()
    nll = bdl.GaussianNLL(1.0)(given.stack.broadcast(ITEMS[0]), ITEMS[1].expand(5, 30, 1)).double().sum(1).detach()
    for precision in (2.0, "steep", [1.0, 2.0, 3.0, 4.0]):
        prior = bdl.Gaussian(precision)
        cold = at_share(prior, 0.25, given)
        at_t = (nll + cold.bind(given.shapes, theta).energy(theta)) / 0.25
        torch.testing.assert_close(at_t, 4 * nll + prior.bind(given.shapes, theta).energy(theta), rtol=1e-5, atol=0)
    for same in (bdl.Gaussian(bdl.Learned()), bdl.Laplace()):
        assert at_share(same, 0.25, given) is same
    assert at_share(prior, 1.0, given) is prior


def test_a_line_names_what_t_makes_colder():
    given, choice = problem(), Choice("prior", "steep", "validation NLL 0.1")
    cold = at_temperature(choice, at_share(bdl.Gaussian("steep"), 0.1, given), 0.1)
    assert cold.value == [pytest.approx(0.4)] and cold.reason == "steep times T = 0.1; validation NLL 0.1"
    assert at_temperature(choice, bdl.Gaussian("steep"), 1.0) is choice
    given_prior = Choice("prior", None, "given")
    assert at_temperature(given_prior, bdl.Gaussian(2.0), 0.1) is given_prior


def test_numbers_and_classes_have_candidates_of_their_own():
    assert candidates(bdl.CategoricalNLL()) == candidates(bdl.BernoulliNLL()) == OF_CLASSES
    assert candidates(bdl.PoissonNLL()) == OF_COUNTS
    assert candidates(bdl.HeteroscedasticNLL()) == candidates(torch.nn.functional.mse_loss) == OF_NUMBERS
    assert OF_CLASSES[0] == OF_NUMBERS[0] == 1.0  # what stays where nothing is clearly better


def test_networks_of_one_hidden_layer_begin_at_smooth_functions():
    shapes = [(50, 23), (50,), (2, 50), (2,)]
    tried = candidates(bdl.HeteroscedasticNLL(), shapes)
    assert tried[0] == "smooth" and set(tried) == set(OF_NUMBERS)
    assert candidates(bdl.HeteroscedasticNLL(), [(50, 23), (50,), *shapes]) == OF_NUMBERS


def test_classes_by_hidden_layers_begin_where_logits_may_be_large():
    hidden = [(16, 4), (16,), (3, 16), (3,)]
    assert candidates(bdl.CategoricalNLL(), hidden) == candidates(bdl.BernoulliNLL(), hidden) == OF_CLASSES_IN_TABLES
    linear, images = hidden[2:], [(8, 3, 3, 3), *hidden]
    assert {candidates(bdl.CategoricalNLL(), shapes) for shapes in (linear, images)} == {OF_CLASSES}
    assert candidates(bdl.CategoricalNLL(), hidden, full_batch=False) == OF_CLASSES


def test_a_first_that_still_moves_needs_a_clearer_winner():
    first, noise = torch.ones(100), torch.linspace(-1, 1, 100)
    about = {1.0: "wide", "smooth": "slow"}
    scores = {1.0: first, "smooth": first - 0.1 + noise}  # a gain of 1.7 standard errors
    assert choose_prior(scores, about, {}).value == "smooth"
    assert choose_prior(scores, about, {}, errors=3.0).value == 1.0


def test_a_prior_has_acted_after_the_steps_that_it_takes():
    """Of the start of a weight on which the data say nothing, e^-3 = 5 % is left: the recursion of SGHMC, no noise."""
    lr, a, p, n = 0.001, 0.1, 2.0, 30
    steps = steps_to_act(bdl.Gaussian(p), problem(), lr, a)
    before, now, e = 1.0, 1.0, lr * p / n
    for _ in range(round(steps)):
        before, now = now, (2 - a - e) * now - (1 - a) * before
    assert now == pytest.approx(math.exp(-3), rel=0.05)
    assert steps_to_act(bdl.Gaussian("fan_in"), problem(), lr, a) == pytest.approx(steps / 2)  # of 4 inputs
    assert steps_to_act(bdl.Laplace(), problem(), lr, a) == 0


def test_a_prior_at_the_start_stays_there_after_a_divergence():
    """A sampler that begins again in the middle of a trial has the centre of its start; only N(0, ...) is searched."""
    net = torch.nn.Linear(3, 1)
    stack = bdl.ChainStack(net, 2, start="given")
    of_start = Problem(stack, bdl.GaussianNLL(1.0), (torch.randn(10, 3), torch.randn(10, 1)), 10, 10)
    prior = of_start.centred(bdl.Gaussian(5.0, mean="start"))
    trial = Trial(of_start, bdl.SGLD(), prior, 0.1, "trial")
    trial.run(20)
    trial.lr = 1e6
    assert trial.run_stably(20) > 0
    at = torch.cat([p.detach().flatten() for p in net.parameters()])
    assert torch.equal(trial.sampler.prior.mean, at)
    assert is_around_zero(bdl.Gaussian("he")) and not is_around_zero(bdl.Laplace())
    assert not is_around_zero(bdl.Gaussian(mean=0.1)) and not is_around_zero(bdl.Gaussian(mean="start"))


def test_what_was_left_out_is_said():
    scores = {1.0: torch.ones(5)}
    assert choose_prior(scores, {1.0: "wide"}, {"he": "is left out"}).reason.endswith(
        "1.0; wide; precision he is left out"
    )


@pytest.mark.parametrize("precision", [1.0, 4.0, "fan_in"])
def test_prior_predictive_spread_of_a_linear_network(precision):
    """The mean at x is N(0, |x|² / precision): 100 networks, so a standard error of 7 % of one spread."""
    per_weight = {"fan_in": 4.0}.get(precision, precision)
    exact = float((ITEMS[0].norm(dim=1) / math.sqrt(per_weight)).median())
    given = problem()
    before = [p.clone() for p in given.stack.parameters()]
    said = prior_predictive(given, bdl.Gaussian(precision), ITEMS[0])
    assert float(said.split("by ")[1].split()[0]) == pytest.approx(exact, rel=0.2)
    assert all(map(torch.equal, before, given.stack.parameters()))


def test_prior_predictive_of_classes_sees_certain_networks():
    net, loss = torch.nn.Linear(4, 2), bdl.CategoricalNLL()
    items = ITEMS[0], torch.zeros(30, dtype=torch.int64)
    vague, certain = (
        float(prior_predictive(problem(net, loss, items), bdl.Gaussian(p), ITEMS[0]).split()[-1]) for p in (1e4, 1e-4)
    )
    assert vague == pytest.approx(0.5, abs=0.02) and certain > 0.97
