"""What evaluations hand to the verdict: constant predictions, traces of predictions, the averages of chains."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import bdl
from bdl.posterior.convergence import repeat_error
from bdl.posterior.evaluation import PosteriorEvaluation
from bdl.posterior.value_evaluation import evaluation_of

GENERATOR = torch.Generator().manual_seed(0)
SPREAD = torch.distributions.NegativeBinomial(3.0, 0.5)  # mean 3, variance 6


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def evaluated(likelihood: bdl.Likelihood, y: torch.Tensor, outputs: torch.Tensor) -> PosteriorEvaluation:
    """outputs: (draws, chains, n, K)."""
    made = evaluation_of(likelihood, y, outputs.shape[1])
    for round_ in outputs:
        made.add(range(outputs.shape[1]), round_)
    return made


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
def test_a_constant_predicts_the_shares_or_the_moments_of_y(likelihood, y, expected):
    assert evaluation_of(likelihood, y, 1).constant_nll() == pytest.approx(expected, rel=1e-4)


def test_a_probability_moves_by_one_at_most():
    """Student's law of two chains has t = 12.7, which would make ± 3.4 of two probabilities .76 apart."""
    outputs = torch.tensor([2.0, -2.0]).view(1, 2, 1, 1) * torch.tensor([0.5, -0.5])
    made = evaluated(bdl.CategoricalNLL(), torch.tensor([0]), outputs)
    assert made.repeat_error() == {"mcse/most": 0.5, "mcse/worst": 0.5}


def test_counts_that_spread_wider_than_poisson_are_negative_binomial():
    torch.manual_seed(0)
    y = SPREAD.sample((20_000,))
    expected = float(-SPREAD.log_prob(y).mean())
    assert evaluation_of(bdl.PoissonNLL(), y, 1).constant_nll() == pytest.approx(expected, abs=0.003)


def test_modes_on_either_side_of_y_are_seen_in_the_means():
    """Both have the same density at y = 0."""
    means = 0.1 * randn(100, 4, 20, 1)
    means[:, 2:] -= 1
    means[:, :2] += 1
    made = evaluated(bdl.GaussianNLL(1.0), torch.zeros(20), means)
    from bdl.posterior.diagnostics import rhat

    assert rhat(made.quantities)[:20].max() < 1.1 < 1.5 < rhat(made.quantities)[20:].min()


@pytest.mark.parametrize("chains", [1, 4])
def test_the_error_of_numbers_is_in_standard_deviations_of_the_predictions(chains):
    means = 2.0 * randn(200, chains, 30, 2)
    made = evaluated(bdl.GaussianNLL(1.0), torch.zeros(30, 2), means)
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
