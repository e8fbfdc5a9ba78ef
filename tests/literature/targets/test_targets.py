"""Every target: its gradients, shapes, dtypes, batches and error messages."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from literature.targets import (
    Ackley,
    Banana,
    DoubleWell,
    Funnel,
    GaussianLaw,
    KnownNoiseRegression,
    LinearRegression,
    LogisticRegression,
    Mixture,
    Powell,
    RuggedSurface,
    StochasticVolatility,
    ToyRegression,
    WellingTeh,
    benchmark,
    gradient,
    integrate,
    simulate_volatility,
)
from literature.targets.base import cast, curvature, value_and_grad
from zoo import ALL, DATA, EXACT, points, stream

from bdl.errors import ConfigError

each = pytest.mark.parametrize("target", ALL.values(), ids=ALL)
each_data = pytest.mark.parametrize("target", DATA.values(), ids=DATA)


def agree(a, b, rtol=1e-9):
    torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * float(b.abs().max()))


@each
def test_gradient_belongs_to_the_energy(target):
    x = points(target, 2, 5)
    agree(target.grad(x), gradient(target, x))
    energy, grad = target.energy_and_grad(x)
    agree(energy, target.energy(x))
    agree(grad, target.grad(x))


@each
def test_energy_agrees_with_differences(target):
    """`grad` against finite differences of `energy`, which share no code with autograd."""
    x, h = points(target, 3, seed=1), 1e-5
    steps = h * torch.eye(target.dim, dtype=x.dtype)
    slope = (target.energy(x[:, None] + steps) - target.energy(x[:, None] - steps)) / (2 * h)
    agree(target.grad(x), slope, rtol=1e-6)


@each
def test_leading_axes_are_a_batch(target):
    x = points(target, 2, 3)
    assert target.energy(x).shape == (2, 3)
    assert target.energy(x[0, 0]).shape == ()
    agree(target.energy(x)[1, 2], target.energy(x[1, 2]))
    agree(target.grad(x)[1, 2], target.grad(x[1, 2]))


@each
def test_single_precision_stays_single(target):
    x = points(target, 4)
    energy, grad = target.energy_and_grad(x.float())
    assert energy.dtype == grad.dtype == torch.float32
    agree(grad.double(), target.grad(x), rtol=1e-4)
    assert cast(target, x.float()).grad(x.float()).dtype == torch.float32


@each
def test_targets_are_frozen(target):
    with pytest.raises(dataclasses.FrozenInstanceError):
        target.anything = 1


@each
def test_curvature_is_the_diagonal_of_the_hessian(target):
    x = points(target, 2)
    whole = torch.stack([torch.autograd.functional.hessian(target.energy, row).diagonal() for row in x])
    agree(curvature(target, x), whole)


@each_data
def test_losses_of_items_average_to_the_loss(target):
    x, n = points(target, 3), target.num_data
    singles = torch.arange(n)[:, None, None].expand(n, 3, 1)
    loss, grad = target.loss_and_grad(x.expand(n, 3, -1), singles)
    agree(loss.mean(0), target.loss(x))
    agree(grad.mean(0), target.grad(x) / n)
    agree(target.energy(x), n * target.loss(x))
    assert loss[:, 0].std() > 0


@each_data
def test_batches_shared_or_one_per_chain(target):
    x, n = points(target, 3), target.num_data
    per_chain = torch.randint(n, (3, 4), generator=stream())
    loss, grad = target.loss_and_grad(x, per_chain)
    agree(grad, value_and_grad(lambda y: target.loss(y, per_chain), x)[1])
    shared_loss, shared_grad = target.loss_and_grad(x, per_chain[1])
    agree(loss[1], shared_loss[1])
    agree(grad[1], shared_grad[1])


@pytest.mark.parametrize("name", EXACT)
def test_draws_follow_the_generator(name):
    draws = [EXACT[name].sample(10, stream(seed)) for seed in (1, 1, 2)]
    assert draws[0].shape == (10, EXACT[name].dim)
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


X, y = torch.ones(6, 2), torch.arange(6.0)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: GaussianLaw([0, 0], [[1, 0.8], [-0.8, 10]]), "covariance must be symmetric and positive definite"),
        (lambda: GaussianLaw([0, 0], [[1, 2], [2, 1]]), "covariance must be symmetric and positive definite"),
        (lambda: GaussianLaw([0, 0], [1, 1]), "covariance must be symmetric and positive definite"),
        (lambda: GaussianLaw([0], torch.eye(2)), "2 entries"),
        (lambda: Mixture([1, -1], [[0], [1]], torch.eye(1)), "one positive weight per mean"),
        (lambda: Mixture([1, 1], [[0, 0], [1, 1]], torch.eye(3)), r"covariances must be \(2, 2, 2\)"),
        (lambda: Mixture([1], [[0, 0]], [[[1, 0.5], [0.4, 1]]]), "covariances must be symmetric"),
        (lambda: Mixture.case(5), r"one of \[1, 2, 3, 4\], got 5"),
        (lambda: Banana(1), "dim >= 2"),
        (lambda: Funnel(scale=0), "scale > 0"),
        (lambda: DoubleWell(-1), "height > 0"),
        (lambda: RuggedSurface(-1), "half_width > 0"),
        (lambda: Powell(22), "divisible by 4, got 22"),
        (lambda: Ackley(1), "dim >= 2"),
        (lambda: benchmark("schwefel"), "'schwefel': choose one of rastrigin"),
        (lambda: integrate(DoubleWell(), 1, -1, 10), "low < high"),
        (lambda: integrate(RuggedSurface(), -1, 1, 10).cdf(0.0), "cdf needs a law of one dimension, this one has 2"),
        (lambda: LinearRegression(X, y[:3]), r"y \(n,\)"),
        (lambda: LinearRegression(X, y, shape=0), "must be > 0, got 0"),
        (lambda: LinearRegression(X, y, prior_scale=[1.0, 2.0]), r"or \(2,\) and \(2, 2\)"),
        (lambda: LinearRegression(X, y).posterior(100.0), "no normal-inverse-gamma law"),
        (lambda: KnownNoiseRegression(X, y, noise=0), "standard deviation > 0"),
        (lambda: LogisticRegression(X, y), "zeros and ones, got values from 0 to 5"),
        (lambda: LogisticRegression(X, y > 2, 0), "prior_precision must be > 0"),
        (lambda: ToyRegression(y, y, link="exp"), "'log', 'softplus'], got 'exp'"),
        (lambda: ToyRegression(y[:3], y[:3]), "at least 4 points"),
        (lambda: WellingTeh([]), "n > 0"),
        (lambda: StochasticVolatility([1.0]), "n > 1"),
        (lambda: simulate_volatility(phi=1.0), r"\|phi\| < 1"),
    ],
)
def test_bad_arguments_get_one_line(make, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
