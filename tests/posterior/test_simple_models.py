"""Tests of `bdl.posterior.simple_models`: what a linear model and a Gaussian process predict, by their formulas."""

import math

import pytest
import torch
from sklearn.linear_model import BayesianRidge

import bdl
from bdl.posterior.simple_models import MOST_OF_GP, MOST_ROWS, compared, losses_of_simple_models

NUMBERS = bdl.HeteroscedasticNLL()


def rows(n: int, seed: int = 0, noise: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """A sine of one of two inputs."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=stream) * 4 - 2
    return x, torch.sin(2 * x[:, :1]) + noise * torch.randn(n, 1, generator=stream)


def test_a_gaussian_process_learns_a_sine_and_a_linear_model_does_not():
    """The entropy of the noise is what nobody beats: log 0.1 + (1 + log 2 pi)/2 = -0.88 nats."""
    losses = {
        name: float(each.mean()) for name, each in losses_of_simple_models(NUMBERS, rows(200), rows(500, 1)).items()
    }
    least = math.log(0.1) + (1 + math.log(2 * math.pi)) / 2
    assert least - 0.05 < losses["gp"] < least + 0.3
    assert losses["linear"] > 0.8


def test_a_linear_model_of_linear_rows_reaches_the_noise():
    x, _ = rows(400)
    y = x @ torch.tensor([[1.0], [-2.0]]) + 0.5 * torch.randn(400, 1, generator=torch.Generator().manual_seed(2))
    losses = losses_of_simple_models(NUMBERS, (x[:300], y[:300]), (x[300:], y[300:]))
    assert float(losses["linear"].mean()) == pytest.approx(math.log(0.5) + (1 + math.log(2 * math.pi)) / 2, abs=0.1)


def test_classes_have_a_logistic_regression():
    x, _ = rows(300)
    y = (x[:, 0] + 0.1 * x[:, 1] > 0).long()
    losses = losses_of_simple_models(bdl.CategoricalNLL(), (x[:200], y[:200]), (x[200:], y[200:]))
    assert list(losses) == ["linear"] and losses["linear"].shape == (100,) and float(losses["linear"].mean()) < 0.2


def test_a_class_without_training_rows_has_no_probability():
    x, _ = rows(60)
    y = (x[:, 0] > 0).long()
    unseen = torch.full((5,), 2)
    losses = losses_of_simple_models(bdl.CategoricalNLL(), (x, y), (x[:5], unseen))
    assert losses["linear"].tolist() == [math.inf] * 5


def test_more_inputs_than_rows_are_turned_into_as_many_as_rows(monkeypatch):
    """The fits see inner products alone: what they predict stays, without matrices of inputs by inputs."""
    stream = torch.Generator().manual_seed(3)
    x = torch.randn(70, 400, generator=stream)
    y = x[:, :1] + 0.3 * torch.randn(70, 1, generator=stream)
    x, y = x.double(), y.double()
    model = BayesianRidge().fit(x[:50].numpy(), y[:50, 0].numpy())
    mean, std = model.predict(x[50:].numpy(), return_std=True)
    wanted = -torch.distributions.Normal(torch.from_numpy(mean), torch.from_numpy(std)).log_prob(y[50:, 0])
    widths, fit = [], BayesianRidge.fit
    monkeypatch.setattr(BayesianRidge, "fit", lambda self, x, y: widths.append(x.shape[1]) or fit(self, x, y))
    losses = losses_of_simple_models(NUMBERS, (x[:50], y[:50]), (x[50:], y[50:]))
    assert widths == [70] and losses["linear"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "n", "names"),
    [
        (NUMBERS, MOST_OF_GP, ["linear", "gp"]),
        (NUMBERS, MOST_OF_GP + 1, ["linear"]),
        (NUMBERS, MOST_ROWS + 1, []),
        (bdl.PoissonNLL(), 50, []),
        (torch.nn.functional.mse_loss, 50, []),
    ],
)
def test_they_are_for_few_rows_of_a_law_that_they_have(loss, n, names):
    assert list(losses_of_simple_models(loss, rows(n), rows(20, 1))) == names


def test_the_difference_has_the_error_of_its_mean():
    class Evaluation:
        def losses(self) -> torch.Tensor:
            return torch.tensor([1.0, 2.0, 3.0, 4.0])

    found = compared({"gp": torch.tensor([1.0, 1.0, 1.0, 1.0])}, {"test": Evaluation()})  # type: ignore[dict-item]
    error = torch.tensor([0.0, 1.0, 2.0, 3.0]).std() / 2
    assert found == {"test/simple/gp/nll": 1.0, "test/simple/gp/gain_se": pytest.approx(float(error))}
    assert compared({}, {}) == {}
