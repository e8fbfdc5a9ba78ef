"""Tests of `bdl.contrib.decisions.botorch_model`: by BoTorch's interface, and against exact values."""

import math

import pytest
import torch
from linear_run import D64, NOISE, TRAIN, D, N, law, store
from torch import nn

import bdl
from bdl.data import TensorBatches

pytest.importorskip("botorch", reason="needs the extra [botorch]")

from botorch.acquisition import qKnowledgeGradient, qLogExpectedImprovement
from botorch.acquisition.objective import PosteriorTransform
from botorch.models import ModelList
from botorch.optim import optimize_acqf
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.index_sampler import IndexSampler
from botorch.test_functions import Branin

from bdl.contrib.decisions.botorch_model import BoTorchModel, FunctionPosterior

UNITS = {"x_mean": 0.0, "x_std": 1.0, "y_mean": 2.0, "y_std": 3.0}


class Half(PosteriorTransform):
    scalarize = True

    def evaluate(self, Y, X=None):
        return Y / 2

    def forward(self, posterior, X=None):
        return FunctionPosterior(posterior.values / 2)


@pytest.fixture(scope="module")
def posterior(tmp_path_factory):
    return store(tmp_path_factory.mktemp("normal"))


def points(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, D, dtype=D64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(10,), (5, 10), (2, 5, 10)])
def test_it_has_the_interface_of_a_model(posterior, shape):
    """What BoTorch's own tests ask of ensembles, and what acquisition functions take: shapes, samplers, transforms."""
    model, x = BoTorchModel(posterior, **UNITS, samples=16), points(*shape).requires_grad_()
    found = model.posterior(x)
    assert found.ensemble_size == 16 and model.num_outputs == 1 and model.batch_shape == torch.Size()
    assert found.values.shape == (*shape[:-1], 16, shape[-1], 1)
    assert found.mean.shape == found.variance.shape == (*shape, 1) and found.mean.dtype == D64
    torch.testing.assert_close(found.variance, found.values.var(-3))
    drawn = get_sampler(found, torch.Size([4]), seed=0)(found)
    assert drawn.shape == (4, *shape, 1) == found.rsample(torch.Size([4])).shape
    assert bool((drawn.unsqueeze(-3) == found.values).flatten(-2).all(-1).any(-1).all())  # whole functions
    drawn.sum().backward()
    assert x.grad is not None and bool((x.grad != 0).any())
    half = model.posterior(x, posterior_transform=Half())
    torch.testing.assert_close(half.mean, found.mean / 2)
    both = ModelList(model, model.subset_output([0]))
    assert both.num_outputs == 2 and both.posterior(x).mean.shape == (*shape, 2)


def test_its_moments_are_those_of_the_regression(posterior):
    """In the units of y; the variance without noise."""
    mean, spread = law(torch.ones(N, dtype=D64), 1.0)
    x = points(20)
    variance, found = ((x @ spread) * x).sum(1), BoTorchModel(posterior, **UNITS).posterior(x)
    error = (variance / posterior.samples).sqrt()
    assert bool(((found.mean[:, 0] - 2 - 3 * (x @ mean)[:, 0]).abs() < 5 * 3 * error).all())
    torch.testing.assert_close(found.variance[:, 0], 9 * variance, rtol=5 * (2 / posterior.samples) ** 0.5, atol=0)


def test_observations_are_learned_by_weights(posterior):
    """The mean given two observations is that of the regression with these rows too, within its Monte Carlo error.

    Negative control: the mean without them is far away.
    """
    x, y = points(2, seed=7), torch.tensor([[1.5], [-1.0]], dtype=D64)
    model = BoTorchModel(posterior)
    given = model.condition_on_observations(x, y)
    rows, labels = torch.cat([TRAIN[0], x]), torch.cat([TRAIN[1], y])
    precision = rows.T @ rows / NOISE**2 + torch.eye(D, dtype=D64)
    exact = points(6) @ torch.linalg.solve(precision, rows.T @ labels / NOISE**2)
    found, before = given.posterior(points(6)), model.posterior(points(6))
    error = (found.variance * given.ensemble_weights.square().sum()).sqrt()
    assert bool(((found.mean - exact).abs() < 5 * error).all())
    assert float(((before.mean - exact).abs() / error).max()) > 10
    assert bool((found.variance < before.variance).all())


def test_fantasies_are_a_batch_of_models(posterior):
    """By the law of total expectation, the mean over fantasies is the mean before; each has its own weights."""
    model, x = BoTorchModel(posterior, samples=300), points(2, seed=8)
    given = model.fantasize(x, IndexSampler(torch.Size([512]), seed=0))
    assert given.batch_shape == (512,) and given.ensemble_weights.shape == (512, 300)
    means, before = given.posterior(points(6)).mean, model.posterior(points(6))
    assert means.shape == (512, 6, 1)
    error = means.std(0) / 512**0.5
    assert bool(((means.mean(0) - before.mean).abs() < 5 * error).all()) and bool((error > 0).all())
    shrunk = given.posterior(points(6)).variance.mean(0) + means.var(0)
    torch.testing.assert_close(shrunk, before.variance, rtol=0.35, atol=0)  # and the law of total variance
    assert torch.equal(
        model.fantasize(x, IndexSampler(torch.Size([512]), seed=0)).ensemble_weights, given.ensemble_weights
    )


def test_acquisition_functions_are_optimised(posterior):
    """An optimisation climbs to a corner of the box from inside, and ends where no point of a grid is better; a
    knowledge gradient over fantasies runs.
    """
    model = BoTorchModel(posterior, samples=64)
    bounds = torch.tensor([[-1.0] * D, [1.0] * D], dtype=D64)
    acquisition = qLogExpectedImprovement(model, best_f=0.5)
    grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 4, dtype=D64)] * D).unsqueeze(1)
    values = acquisition(grid)
    starts = 0.9 * grid[values.topk(4).indices]  # random ones may end in a lower corner
    _, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, batch_initial_conditions=starts)
    error = 0.02  # some .003: `IndexSampler` draws networks anew for each shape of points
    assert bool((acquisition(starts) < values.max() - 5 * error).all()) and float(value) > float(values.max()) - error
    gradient = qKnowledgeGradient(model, num_fantasies=4, sampler=IndexSampler(torch.Size([4]), seed=0))
    x, value = optimize_acqf(gradient, bounds, q=1, num_restarts=1, raw_samples=4, options={"maxiter": 2})
    assert x.shape == (1, D) and value.isfinite()


def fitted(folder, x: torch.Tensor, y: torch.Tensor) -> BoTorchModel:
    """A posterior of functions through the values y (n, 1) at x (n, 2) of the unit square."""
    net = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 1))
    labels = ((y - y.mean()) / y.std()).float()
    batches = TensorBatches(2 * x.float() - 1, labels, len(x), chains=8)
    drawn = bdl.sample(
        net, bdl.GaussianNLL(0.05), batches, folder, steps=2000, lr=0.02, dynamics=bdl.MCLMC(adapt_steps=1000), chains=8
    )
    return BoTorchModel(drawn, x_mean=0.5, x_std=0.5, y_mean=y.mean(), y_std=y.std(), samples=100)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_branin_is_optimised(tmp_path):
    """36 evaluations, 24 of them at random, come within 0.1 of the minimum; of 36 at random fewer than 10 % do.

    The functions are of minus its logarithm, whose values do not span three decades.
    """
    problem, random = Branin().to(D64), torch.Generator().manual_seed(0)
    low, high = problem.bounds
    value = lambda x: -problem(low + (high - low) * x).log().unsqueeze(-1)  # noqa: E731
    by_chance = value(torch.rand(200, 36, 2, dtype=D64, generator=random))[..., 0].max(1).values
    x = torch.rand(24, 2, dtype=D64, generator=random)
    unit = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=D64)
    for step in range(12):
        model = fitted(tmp_path / str(step), x, value(x))
        found, _ = optimize_acqf(
            qLogExpectedImprovement(model, best_f=value(x).max()),
            unit,
            q=1,
            num_restarts=4,
            raw_samples=64,
            options={"maxiter": 30},
        )
        x = torch.cat([x, found])
    close = -math.log(problem.optimal_value + 0.1)
    assert float(value(x).max()) > close
    assert float((by_chance > close).double().mean()) < 0.1
