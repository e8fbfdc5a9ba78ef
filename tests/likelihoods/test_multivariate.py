"""MultivariateNormalNLL against torch.distributions, its marginals, and missing targets."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

import bdl
from bdl.errors import ConfigError
from bdl.likelihoods.base import by_autograd

D64 = torch.float64
C, B = 3, 20
LAWS = [bdl.MultivariateNormalNLL(), bdl.MultivariateNormalNLL("softplus"), bdl.MultivariateNormalNLL(min_std=0.3)]


def problem(likelihood, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (C, B, K) and targets (B, k)."""
    random = torch.Generator().manual_seed(k)
    outputs = torch.randn(C, B, likelihood.num_outputs(k), generator=random, dtype=D64)
    return outputs, torch.randn(B, k, generator=random, dtype=D64)


def of_torch(likelihood, outputs: torch.Tensor, k: int) -> MultivariateNormal:
    """The law by its definition: Σ = D R D, R the correlations of rows of a triangular matrix."""
    mean, s, below = outputs.split([k, k, k * (k - 1) // 2], -1)
    std = s.exp().log1p() if likelihood.link == "softplus" else (s / 2).exp()
    std = (std.square() + torch.as_tensor(likelihood.min_std, dtype=D64).square()).sqrt()
    rows = torch.eye(k, dtype=D64).repeat(C, B, 1, 1)
    places = [(i, j) for i in range(k) for j in range(i)]
    for number, (i, j) in enumerate(places):
        rows[..., i, j] = below[..., number]
    products = rows @ rows.mT
    lengths = products.diagonal(dim1=-2, dim2=-1).sqrt()
    scale = std / lengths
    return MultivariateNormal(mean, scale.unsqueeze(-1) * products * scale.unsqueeze(-2))


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("likelihood", LAWS, ids=repr)
def test_density_and_moments_are_those_of_torch(likelihood, k):
    if likelihood.min_std:
        likelihood = bdl.MultivariateNormalNLL(min_std=[0.0, 0.3, 0.5, 0.2][:k])
    outputs, y = problem(likelihood, k)
    law = of_torch(likelihood, outputs, k)
    assert likelihood.num_targets(outputs.shape[-1]) == k
    torch.testing.assert_close(likelihood(outputs, y), -law.log_prob(y), rtol=1e-10, atol=1e-10)
    found = likelihood.distribution(outputs)
    torch.testing.assert_close(found.log_prob(y), law.log_prob(y), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.covariance_matrix, law.covariance_matrix)
    torch.testing.assert_close(likelihood.mean(outputs), law.mean)
    torch.testing.assert_close(likelihood.variance(outputs), law.variance)


@pytest.mark.parametrize("k", [1, 3])
def test_each_target_by_itself_has_the_independent_law(k):
    likelihood, single = bdl.MultivariateNormalNLL(min_std=0.2), bdl.HeteroscedasticNLL(min_std=0.2)
    outputs, y = problem(likelihood, k)
    for name in ("log_density", "cdf"):
        found, expected = getattr(likelihood, name)(outputs, y), getattr(single, name)(outputs[..., : 2 * k], y)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    outputs[..., 2 * k :] = 0
    torch.testing.assert_close(likelihood(outputs, y), single(outputs[..., : 2 * k], y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("link", ["log_var", "softplus"])
def test_gradients_are_those_of_autograd_through_torch(link):
    likelihood = bdl.MultivariateNormalNLL(link)
    outputs, y = problem(likelihood, 3)
    loss, gradient = likelihood.mean_and_gradient(outputs, y)
    expected_loss, expected = by_autograd(lambda o: -likelihood.distribution(o).log_prob(y).mean(-1), outputs)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-10)


def test_missing_targets_are_integrated_out():
    """The marginal of the others has their rows and columns of the covariance matrix."""
    likelihood, k = bdl.MultivariateNormalNLL(), 4
    outputs, y = problem(likelihood, k)
    law, seen = of_torch(likelihood, outputs, k), torch.rand(B, k, generator=torch.Generator().manual_seed(0)) > 0.4
    seen[:, 0] |= ~seen.any(1)
    expected = torch.zeros(C, B, dtype=D64)
    for b in range(B):
        at = seen[b].nonzero().squeeze(1)
        part = MultivariateNormal(law.mean[:, b, at], law.covariance_matrix[:, b][:, at][..., at])
        expected[:, b] = -part.log_prob(y[b, at])
    observed = bdl.ObservedNLL(likelihood)
    found = observed(outputs, torch.where(seen, y, math.nan))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(observed(outputs, y), likelihood(outputs, y), rtol=1e-10, atol=1e-10)


def test_draws_have_the_correlation_of_the_errors():
    """Of n draws the correlation has the standard error (1 - r²) / sqrt(n)."""
    n, likelihood = 40_000, bdl.MultivariateNormalNLL()
    outputs = torch.tensor([[0.0, 0.0, 0.0, 2.0, -1.5]]).expand(n, -1)
    torch.manual_seed(0)
    draws = likelihood.distribution(outputs).sample()
    r = -1.5 / math.sqrt(1 + 1.5**2)
    assert abs(float(torch.corrcoef(draws.T)[0, 1]) - r) < 4 * (1 - r**2) / math.sqrt(n)


@pytest.mark.parametrize("outputs", [1, 4, 6])
def test_numbers_of_outputs_that_fit_no_targets_are_refused(outputs):
    with pytest.raises(ConfigError, match=f"such as 5 for 2 and 9 for 3, and the network has {outputs}"):
        bdl.MultivariateNormalNLL().num_targets(outputs)
