"""Every target: its gradients, shapes, dtypes, batches and error messages."""

import dataclasses

import pytest
import torch
from literature.targets import GaussianLaw, Mixture
from literature.targets.base import cast, curvature, value_and_grad
from zoo import ALL, DATA, EXACT, points, stream

from bdl.errors import ConfigError

each = pytest.mark.parametrize("target", ALL.values(), ids=ALL)
each_data = pytest.mark.parametrize("target", DATA.values(), ids=DATA)


def agree(a, b, rtol=1e-9):
    torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * float(b.abs().max()))


@each
def test_energy_agrees_with_differences(target):
    """`grad` against finite differences of `energy`, which share no code with autograd."""
    x, h = points(target, 3, seed=1), 1e-5
    steps = h * torch.eye(target.dim, dtype=x.dtype)
    slope = (target.energy(x[:, None] + steps) - target.energy(x[:, None] - steps)) / (2 * h)
    agree(target.grad(x), slope, rtol=1e-6)
    agree(target.energy_and_grad(x)[0], target.energy(x))


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


@pytest.mark.parametrize("covariance", [[[1, 0.8], [-0.8, 10]], [[1, 2], [2, 1]], [1, 1]])
def test_a_matrix_that_is_no_covariance_gets_one_line(covariance):
    """Those of a published listing are not symmetric."""
    with pytest.raises(ConfigError, match="covariance must be symmetric and positive definite") as caught:
        GaussianLaw([0, 0], covariance)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="covariances must be symmetric"):
        Mixture([1], [[0, 0]], [covariance])
