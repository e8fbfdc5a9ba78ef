"""ObservedNLL: the posterior given the targets that are there, its gradients, and the items that it refuses."""

import math

import pytest
import torch
from torch import nn

import bdl
from bdl.errors import ConfigError
from bdl.likelihoods import mean_loss
from bdl.likelihoods.base import by_autograd

D64 = torch.float64
N, K, FEATURES = 60, 3, 2


def gaps() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (N, FEATURES) and targets (N, K), of which a third are missing, but not all of an item."""
    random = torch.Generator().manual_seed(5)
    x, y = torch.randn(N, FEATURES, generator=random, dtype=D64), torch.randn(N, K, generator=random, dtype=D64)
    y[torch.rand(N, K, generator=random) < 0.3] = math.nan
    y[y.isnan().all(1), 0] = 1.0
    return x, y


@pytest.mark.parametrize(
    "of", [bdl.HeteroscedasticNLL(min_std=0.2, outliers=0.1), bdl.StudentTNLL(4.0), bdl.PoissonNLL()], ids=repr
)
def test_it_is_the_sum_over_data_of_each_target_alone(of):
    _, y = gaps()
    y = y.abs().round() if of.counts else y
    outputs = torch.randn(4, N, of.num_outputs(K), dtype=D64)
    parameters = outputs.unflatten(-1, (-1, K))  # (..., parameter, target)
    alone = torch.zeros(4, dtype=D64)
    for j in range(K):
        rows = (~y[:, j].isnan()).nonzero().squeeze(1)
        alone += of(parameters[:, rows, :, j], y[rows, j : j + 1]).sum(-1)
    loss, gradient = bdl.ObservedNLL(of).mean_and_gradient(outputs, y)
    torch.testing.assert_close(N * loss, alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, by_autograd(lambda o: bdl.ObservedNLL(of)(o, y).mean(-1), outputs)[1])
    missing = y.isnan().repeat(1, of.per_target)
    assert not bool(gradient[:, missing].any()) and bool(gradient[:, ~missing].all())


def test_samples_are_of_the_posterior_of_observed_targets():
    """A linear model with known noise and a normal prior: the exact posterior of each target has its own rows."""
    x, y = gaps()
    chains, std, precision = 2000, 0.7, 2.0
    weight = torch.zeros(chains, K, FEATURES, dtype=D64, requires_grad=True)
    loss = bdl.ObservedNLL(bdl.GaussianNLL(std))
    sampler = bdl.Sampler(
        [weight], bdl.HMC(leapfrog=8), num_data=N, lr=0.02, prior=bdl.Gaussian(precision), chains=chains, seed=0
    )

    def closure() -> torch.Tensor:
        sampler.zero_grad()
        losses = mean_loss(loss, torch.einsum("nf,ckf->cnk", x, weight), y, chains)
        losses.sum().backward()
        return losses.detach()

    for _ in range(40):
        sampler.step(closure)
    for j in range(K):
        rows = ~y[:, j].isnan()
        covariance = torch.linalg.inv(x[rows].T @ x[rows] / std**2 + precision * torch.eye(FEATURES, dtype=D64))
        mean = covariance @ x[rows].T @ y[rows, j] / std**2
        drawn, var = weight.detach()[:, j], covariance.diagonal()
        assert bool(((drawn.mean(0) - mean).abs() < 4 * (var / chains).sqrt()).all())
        assert bool(((drawn.var(0) / var - 1).abs() < 4 * math.sqrt(2 / chains)).all())


def test_items_without_any_target_are_refused():
    likelihood, y = bdl.ObservedNLL(bdl.HeteroscedasticNLL()), torch.tensor([[1.0, math.nan], [math.nan, math.nan]])
    likelihood.check(y[:1], 4)
    with pytest.raises(ConfigError, match=r"missing with all others of their item; the first is .* in row 1: drop"):
        likelihood.check(y, 4)
    with pytest.raises(ConfigError, match="y has 1 of 2 values that are not finite"):
        likelihood.check(torch.tensor([[1.0, math.inf]]), 4)


@pytest.mark.parametrize("of", [bdl.CategoricalNLL(), bdl.BernoulliNLL(), nn.MSELoss()], ids=repr)
def test_other_losses_are_refused(of):
    with pytest.raises(ConfigError, match="ObservedNLL takes a likelihood of numbers, got"):
        bdl.ObservedNLL(of)
