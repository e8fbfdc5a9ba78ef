"""Tests of `bdl.law.continuation`, `.exact` and `bdl.contrib.certificate.certificate`: exact draws stay."""

import math

import pytest
import torch
from torch import nn

import bdl
from bdl.contrib.certificate.certificate import Certificate, EnergyChange, Measured, PredictionChange
from bdl.data.slices import TensorSlices
from bdl.law.continuation import continue_exactly
from bdl.law.directions import DirectionTemperature
from bdl.law.exact import ExactPotential
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.value_evaluation import ValueEvaluation

N, D, CHAINS, STD = 60, 6, 100, 0.5
RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(N, D, generator=RANDOM) * torch.logspace(0, -1, D)  # condition 100
Y = X @ torch.ones(D) + STD * torch.randn(N, generator=RANDOM)
CURVATURE = X.double().T @ X.double() / STD**2 + torch.eye(D, dtype=torch.float64)
MEAN = torch.linalg.solve(CURVATURE, X.double().T @ Y.double() / STD**2)


def continued(ratio: float, temperature: float = 1.0, trajectories: int = 40):
    """The continuation at T of draws of linear regression whose variances are `ratio` times those at T."""
    net = nn.Linear(D, 1, bias=False)
    prior = bdl.Gaussian(1.0).bind([torch.Size((1, D))], torch.zeros(D))
    potential = ExactPotential(net, CHAINS, bdl.GaussianNLL(STD), prior, TensorSlices(X, Y), N)
    z = torch.randn(CHAINS, D, generator=RANDOM, dtype=torch.float64)
    root = torch.linalg.cholesky(torch.linalg.inv(CURVATURE) * temperature * ratio)
    theta = (MEAN + z @ root.T).float()
    steepest = torch.full((CHAINS,), float(torch.linalg.eigvalsh(CURVATURE)[-1]))
    t = torch.full((CHAINS,), temperature, dtype=torch.float64)
    return continue_exactly(potential, theta, t, steepest, trajectories, RANDOM), potential


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_energy_of_the_law_stays(temperature):
    """In the mean, and with its spread: U lies d/2 T above the least in the mean, and varies by sqrt(d/2) T."""
    found, potential = continued(1.0, temperature)
    change = EnergyChange.of([found])
    assert abs(change.change.value) < 4 * change.change.error and not change.is_sure
    assert change.change.error < 0.25 * D / 2 * temperature  # it would see a fourth of the energy
    least = float(potential(MEAN.float().expand(CHAINS, D))[0].mean())
    late = found.late.mean(1) - least
    assert abs(float(late.mean()) - D / 2 * temperature) < 4 * float(late.std()) / math.sqrt(CHAINS)
    assert 0.7 < change.along / (math.sqrt(D / 2) * temperature) < 1.1
    assert 0.75 < change.acceptance < 0.99


@pytest.mark.parametrize(("ratio", "law"), [(2.0, "hotter"), (0.3, "colder")])
def test_a_law_that_is_hotter_or_colder_is_told(ratio, law):
    found, _ = continued(ratio)
    change = EnergyChange.of([found])
    assert abs(change.change.value - D / 2 * (1 - ratio)) < 4 * change.change.error
    words = Certificate(1.0, change, math.nan, math.sqrt(D / 2), []).sentence()
    assert f"the run sampled a {law} law than T = 1" in words and " nats" in words


def test_few_chains_that_agree_by_chance_have_no_small_error():
    found, _ = continued(1.0)
    two = torch.tensor([3.0, 3.0])
    assert Measured.over_chains(two, 5.0).error == pytest.approx(5 / math.sqrt(2))
    assert math.isnan(Measured.over_chains(two[:1]).error) and Measured.over_chains(two[:1], 5.0).error == 5
    assert EnergyChange.of([found]).change.error > EnergyChange.of([found]).along / math.sqrt(CHAINS) * 0.999


def test_the_sentence_names_hottest_direction_and_else_coldest():
    stays = EnergyChange(Measured(-3.0, 12.0), 2400.0, 40.0, 0.9, 40)
    fine = [DirectionTemperature("all", 1.02, 0.03), DirectionTemperature("0.weight", 1.3, 0.1)]
    assert Certificate(1.0, stays, 40.0, 46.0, fine).sentence() == (
        "the energy stays (change -3 ± 12 nats): nothing contradicts T = 1"
    )
    hot, cold = DirectionTemperature("noise_1", 125.0, 20.0), DirectionTemperature("spread/0.weight", 0.9, 0.01)
    words = Certificate(1.0, stays, 40.0, 46.0, [*fine, cold, hot]).sentence()
    assert "but the run sampled another law than T = 1: along batch noise 1 it was at T = 125 ± 20" in words
    words = Certificate(0.1, stays, 40.0, 46.0, [*fine, cold]).sentence()
    assert "along spread of 0.weight it was at T = 0.0900 ± 0.0010" in words
    falls = EnergyChange(Measured(-446.2, 55.3), 2561.0, 40.0, 0.9, 40)
    words = Certificate(1.0, falls, 208.0, 46.0, fine).sentence()
    assert words == "the energy falls by 446 ± 55 nats: the run sampled a hotter law than T = 1"


def classes(shift: float, chains: int = 40, draws: int = 10):
    """An evaluation of networks whose logits are normal around `shift` in favour of class 0, which is right."""
    likelihood, y = bdl.CategoricalNLL(), torch.zeros(30, dtype=torch.long)
    evaluation = ClassEvaluation(likelihood, y, chains)
    for _ in range(draws):
        logits = torch.randn(chains, 30, 2, generator=RANDOM)
        logits[..., 0] += shift
        evaluation.add(range(chains), logits)
    return evaluation


def test_predictions_of_the_same_law_differ_by_their_error_alone():
    same = PredictionChange.between(classes(1.0), classes(1.0))
    assert abs(same.nll_change.value) < 4 * same.nll_change.error and same.nll_change.error < 0.02
    assert abs(same.single_change.value) < 4 * same.single_change.error
    assert same.change < same.monte_carlo < 0.02 and not same.of_numbers


def test_predictions_of_another_law_differ_by_as_much_as_they_do():
    """Against averages of very many networks."""
    found = PredictionChange.between(classes(1.0), classes(2.0))
    many = [classes(shift, draws=60) for shift in (1.0, 2.0)]
    p = [float(e.bma[:, 0].mean()) for e in many]
    assert abs(found.change - (p[1] - p[0])) < 0.01
    expected = math.log(p[0]) - math.log(p[1])
    assert abs(found.nll_change.value - expected) < 4 * found.nll_change.error < -expected


def test_few_chains_cost_the_average_no_nll():
    """4 networks alone have a worse average than many; without the share of 1/C their NLL is that of many."""
    many = float(classes(1.0, draws=60).losses().mean())
    each = [classes(1.0, 4, 1) for _ in range(400)]
    few = torch.tensor([PredictionChange.between(e, e).nll[0] for e in each]) - many
    plain = torch.stack([e.losses().mean() for e in each]) - many
    error = float(few.std()) / math.sqrt(len(few))
    assert abs(float(few.mean())) < 3 * error + 0.001
    assert float(plain.mean()) > 4 * error + 0.001


def test_means_of_numbers_are_compared_in_predictive_deviations():
    def numbers(shift: float):
        evaluation = ValueEvaluation(bdl.GaussianNLL(2.0), torch.zeros(30, 1), 20)
        for _ in range(20):
            evaluation.add(range(20), shift + 0.1 * torch.randn(20, 30, 1, generator=RANDOM))
        return evaluation

    found = PredictionChange.between(numbers(0.0), numbers(1.0))
    assert found.of_numbers and found.change == pytest.approx(0.5, abs=0.01)
    assert found.nll_change.value == pytest.approx(1 / 8, abs=0.01)
