"""Tests of `bdl.posterior.metrics`, and of what evaluations hand to the verdict: traces and averages of chains."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import bdl
from bdl.likelihoods.base import Likelihood
from bdl.posterior.diagnostics import repeat_error
from bdl.posterior.evaluation import PosteriorEvaluation
from bdl.posterior.passes import evaluation_of

GENERATOR = torch.Generator().manual_seed(0)
SPREAD = torch.distributions.NegativeBinomial(3.0, 0.5)  # mean 3, variance 6


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def evaluated(likelihood: Likelihood, y: torch.Tensor, outputs: torch.Tensor) -> PosteriorEvaluation:
    """outputs: (draws, chains, n, K)."""
    made = evaluation_of(likelihood, y, outputs.shape[1])
    for round_ in outputs:
        made.add(range(outputs.shape[1]), round_)
    return made


def constant_nll(likelihood: Likelihood, y: torch.Tensor, seen: torch.Tensor | None) -> float:
    return float(evaluation_of(likelihood, y, 1).constant_losses(seen).mean())


@pytest.mark.parametrize(
    ("likelihood", "y", "expected"),
    [
        (bdl.CategoricalNLL(), torch.tensor([0, 0, 0, 1]), stats.entropy([0.75, 0.25])),
        (
            bdl.BernoulliNLL(),
            torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]),
            (stats.entropy([0.75, 0.25]) + math.log(2)) / 2,
        ),
        (bdl.GaussianNLL(0.1), torch.tensor([-2.0, 2.0]), stats.norm.entropy(0, 2)),
        (bdl.PoissonNLL(), torch.tensor([0.0, 2.0] * 50), -stats.poisson(1).logpmf([0, 2]).mean()),
    ],
    ids=["classes", "labels", "numbers", "counts"],
)
def test_constant_predicts_shares_or_moments_of_what_it_has_seen(likelihood, y, expected):
    seen = y.repeat(10_000, *[1] * (y.ndim - 1))
    assert constant_nll(likelihood, y, seen) == pytest.approx(expected, rel=1e-3)


def test_a_constant_gains_nothing_on_the_y_it_has_seen():
    """Over 4,000 sets of 8 items; the entropy of a set is too small by about 1/16 for classes and 2/16 for numbers."""
    coins, numbers = (randn(4000, 8) > 0).long(), randn(4000, 8)
    for likelihood, sets, entropy in (
        (bdl.CategoricalNLL(), [y for y in coins if 0 < y.sum() < 8], math.log(2)),
        (bdl.GaussianNLL(1.0), list(numbers), stats.norm.entropy()),
    ):
        seen = np.mean([constant_nll(likelihood, y, None) for y in sets])
        assert entropy + 0.03 < seen < entropy + 0.5
    assert math.isnan(constant_nll(bdl.GaussianNLL(1.0), torch.tensor([1.0, 2.0]), None))
    assert constant_nll(bdl.CategoricalNLL(), torch.tensor([2]), torch.tensor([0, 1, 2] * 100)) == pytest.approx(
        math.log(3), rel=0.01
    )


def test_an_average_claims_the_gain_its_probabilities_promise():
    y, logits = torch.arange(400) % 2, torch.zeros(400, 2)
    logits[torch.arange(400), y] = 2.0
    made = evaluated(bdl.CategoricalNLL(), y, logits.expand(2, 4, 400, 2))
    scores = made.against_constant()
    p = 1 / (1 + math.exp(-2))
    assert scores["constant/claim"] == pytest.approx(math.log(2) - stats.entropy([p, 1 - p]), rel=1e-5)
    means = torch.stack([3.0 * (-1.0) ** torch.arange(400.0)] * 8).view(2, 4, 400, 1)
    values = evaluated(bdl.GaussianNLL(1.0), randn(400), means).against_constant()
    assert values["constant/claim"] == pytest.approx(math.log(10) / 2, rel=1e-5)


def test_features_are_linear_in_the_outputs():
    outputs = randn(6, 4, 30, 3)
    logits = evaluated(bdl.CategoricalNLL(), torch.arange(30) % 3, outputs).features
    shifted = evaluated(bdl.CategoricalNLL(), torch.arange(30) % 3, outputs + randn(6, 4, 30, 1)).features
    np.testing.assert_allclose(logits, shifted, atol=1e-5)  # softmax does not see a shift
    centred = (outputs - outputs.mean(-1, keepdim=True)).transpose(0, 1).flatten(2)
    np.testing.assert_allclose(logits, centred, atol=1e-5)
    values = evaluated(bdl.GaussianNLL(1.0), torch.zeros(500), randn(6, 4, 500, 1)).features
    assert values.shape == (4, 6, 200)


def test_errors_count_in_residuals_where_these_are_the_smaller():
    means = 9.0 * randn(200, 4, 300, 1)
    right = evaluated(bdl.GaussianNLL(1.0), 9.0 * randn(300), means).repeat_error()
    narrow = evaluated(bdl.GaussianNLL(1.0), randn(300), means).repeat_error()
    assert right["mcse/unit"] == pytest.approx(1, abs=0.15) and 0.1 < narrow["mcse/unit"] < 0.3
    assert narrow["mcse/most"] > 3 * right["mcse/most"]
    one = evaluated(bdl.GaussianNLL(1.0), torch.zeros(1), 0.1 * means[:, :, :1]).repeat_error()
    assert one["mcse/unit"] > 0.9  # a single residual of 0 says little


def test_a_probability_moves_by_one_at_most():
    """Student's law of two chains has t = 12.7, which would make ± 3.4 of two probabilities .76 apart."""
    outputs = torch.tensor([2.0, -2.0]).view(1, 2, 1, 1) * torch.tensor([0.5, -0.5])
    made = evaluated(bdl.CategoricalNLL(), torch.tensor([0]), outputs)
    assert made.repeat_error() == {"mcse/most": 0.5, "mcse/worst": 0.5}


def test_counts_wider_than_poisson_are_negative_binomial():
    torch.manual_seed(0)
    y = SPREAD.sample((20_000,))
    expected = float(-SPREAD.log_prob(y).mean())
    assert constant_nll(bdl.PoissonNLL(), y, None) == pytest.approx(expected, abs=0.003)


def test_modes_on_either_side_of_y_are_seen_in_the_means():
    """Both have the same density at y = 0."""
    means = 0.1 * randn(100, 4, 20, 1)
    means[:, 2:] -= 1
    means[:, :2] += 1
    made = evaluated(bdl.GaussianNLL(1.0), torch.zeros(20), means)
    from bdl.posterior.diagnostics import rhat

    assert rhat(made.quantities)[:20].max() < 1.1 < 1.5 < rhat(made.quantities)[20:].min()


@pytest.mark.parametrize("chains", [1, 4])
def test_the_error_of_numbers_is_in_deviations_of_predictions(chains):
    means = 2.0 * randn(200, chains, 30, 2)
    made = evaluated(bdl.GaussianNLL(1.0), math.sqrt(5) * randn(30, 2), means)
    # The std of a prediction is √(1 + 4), the standard error of its mean 2/√draws; some t for 4 chains
    expected = 2 / math.sqrt(200 * chains) / math.sqrt(5)
    error = made.repeat_error()
    assert 0.8 * expected < error["mcse/most"] < 4 * expected and error["mcse/most"] <= error["mcse/worst"]


@pytest.mark.parametrize("chains", [1, 4])
def test_the_error_of_classes_is_that_of_the_probabilities(chains):
    logits, y = randn(100, chains, 30, 3), torch.arange(30) % 3
    made = evaluated(bdl.CategoricalNLL(), y, logits)
    probs = logits.double().softmax(-1)
    averages, of_label = probs.mean(0).numpy(), probs[:, :, torch.arange(30), y].transpose(0, 1).numpy()
    expected = repeat_error(averages, 1.0, of_label)
    assert made.repeat_error() == pytest.approx(expected, rel=1e-3) and np.isfinite(expected["mcse/most"])
