"""Posteriors of regressions and of the volatility model, against scipy."""

import math

import numpy as np
import pytest
import torch
from literature.targets import (
    LinearRegression,
    LogisticRegression,
    StochasticVolatility,
    WellingTeh,
    integrate,
    simulate_linear,
    simulate_logistic,
    simulate_volatility,
    simulate_welling_teh,
)
from scipy import stats
from zoo import ALL, EXACT, LINE, points, stream

X, y = (v.numpy() for v in LINE)
V = np.array([[0.02, 0.01], [0.01, 0.03]])
CORRELATED = EXACT["linear, correlated prior"]  # mean (1, -1), V, shape 2, rate 3


def test_linear_joint_density():
    x = points(CORRELATED, 5)
    for row, energy in zip(x.numpy(), CORRELATED.energy(x), strict=True):
        b, c = row[:2], row[2]
        joint = stats.norm.logpdf(y, X @ b, math.exp(c / 2)).sum()
        joint += stats.multivariate_normal.logpdf(b, [1, -1], math.exp(c) * V)
        joint += stats.invgamma.logpdf(math.exp(c), 2, scale=3) + c
        assert math.isclose(energy.item(), -joint, rel_tol=1e-12)


def test_linear_posterior_marginals():
    posterior = CORRELATED.posterior()
    draws = posterior.sample(100_000, stream()).numpy()
    a, rate = posterior.shape, posterior.rate
    df, centre, scale = 2 * a, posterior.location, (posterior.scale.diagonal() * rate / a).sqrt()
    for j in range(2):
        assert stats.kstest(draws[:, j], stats.t(df, centre[j], scale[j]).cdf).pvalue > 1e-5
    assert stats.kstest(np.exp(draws[:, 2]), stats.invgamma(a, scale=rate).cdf).pvalue > 1e-5
    x = torch.as_tensor(draws[:10])
    expected = [stats.t.logpdf(draws[:10, j], df, centre[j], scale[j]) for j in range(2)]
    expected.append(stats.invgamma.logpdf(np.exp(draws[:10, 2]), a, scale=rate) + draws[:10, 2])
    torch.testing.assert_close(posterior.marginal_log_prob(x), torch.as_tensor(np.stack(expected, 1)))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_linear_posterior_against_quadrature(temperature):
    """Moments of exp(-U/T) for one weight and the log variance, on a grid, from the energy alone."""
    target = LinearRegression(X[:, 1:], y, 0.5, 0.1, shape=2.0, rate=1.0)
    mean, sd = target.mean(temperature), target.covariance(temperature).diagonal().sqrt()
    grid = integrate(target, mean - 14 * sd, mean + 14 * sd, 700, temperature)
    torch.testing.assert_close(grid.mean(), mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(grid.covariance(), target.covariance(temperature), rtol=1e-5, atol=1e-8)
    if temperature == 1:  # y is multivariate t with 2 phi degrees of freedom, and shape matrix psi/phi (I + X V X')
        cov = 0.5 * (np.eye(len(y)) + 0.1 * X[:, 1:] @ X[:, 1:].T)
        assert math.isclose(grid.log_z, stats.multivariate_t.logpdf(y, X[:, 1] * 0.5, cov, df=4), rel_tol=1e-8)


def test_simulated_line():
    """Karagiannis 2023: (x, y) is normal with correlation .9: intercept 0, slope .9, noise variance .19."""
    X, y = simulate_linear()
    assert X.shape == (10_000, 2) and torch.equal(X[:, 0], torch.ones(10_000))
    posterior = LinearRegression(X, y).posterior()
    sd = posterior.covariance().diagonal().sqrt()
    truth = torch.tensor([0.0, 0.9, math.log(0.19)])
    assert ((posterior.mean() - truth).abs() < 4.5 * sd).all()
    assert torch.equal(y, simulate_linear()[1]) and not torch.equal(y, simulate_linear(seed=1)[1])


def test_logistic():
    X, y = simulate_logistic(200)
    target = LogisticRegression(X, y, 2.0)
    w = points(target, 3)
    for row, energy in zip(w, target.energy(w), strict=True):
        joint = stats.bernoulli.logpmf(y.numpy(), 1 / (1 + np.exp(-(X @ row).numpy()))).sum()
        joint += stats.norm.logpdf(row.numpy(), 0, math.sqrt(0.5)).sum()
        assert math.isclose(energy.item(), -joint, rel_tol=1e-10)
    mode = target.mode()
    assert target.grad(mode).abs().max() < 1e-9
    torch.testing.assert_close(target.hessian(mode), torch.autograd.functional.hessian(target.energy, mode))
    laplace = target.hessian(mode).inverse().diagonal().sqrt()
    assert ((mode - torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])).abs() < 4.5 * laplace).all()


def test_toy_joint_density_and_draws():
    target = ALL["toy"]
    draws = target.sample(50_000, stream())
    shape, rate = target.posterior().shape, target.posterior().rate
    assert stats.kstest(draws[:, 2].numpy() ** 2, stats.invgamma(shape, scale=rate).cdf).pvalue > 1e-5
    assert abs((draws[:, 2] > 0).double().mean() - 0.5) < 4.5 * 0.5 / math.sqrt(50_000)
    row = draws[0]
    joint = stats.norm.logpdf(target.y.numpy(), (row[0] + row[1] * target.x).numpy(), abs(row[2].item())).sum()
    assert math.isclose(target.energy(row).item(), -joint, rel_tol=1e-10)


def test_welling_teh_joint_density():
    target = WellingTeh()
    data = simulate_welling_teh().numpy()
    x = points(target, 4)
    for (a, b), energy in zip(x.tolist(), target.energy(x), strict=True):
        joint = np.log((stats.norm.pdf(data, a, 2**0.5) + stats.norm.pdf(data, a + b, 2**0.5)) / 2).sum()
        joint += stats.norm.logpdf(a, 0, 10**0.5) + stats.norm.logpdf(b, 0, 1)
        assert math.isclose(energy.item(), -joint, rel_tol=1e-12)
    many = simulate_welling_teh(100_000).numpy()
    assert len(data) == 100 and abs(many.mean() - 0.5) < 4.5 * 1.5 / math.sqrt(1e5)
    assert abs(many.var() - 2.25) < 0.05


def test_volatility_joint_density():
    y, _ = simulate_volatility(20)
    target = StochasticVolatility(y)
    x = points(target, 4)
    for row, energy in zip(x, target.energy(x), strict=True):
        (mu, phi, sigma), h = target.parameters(row).tolist(), row[3:].numpy()
        joint = stats.norm.logpdf(y.numpy(), 0, np.exp(h / 2)).sum()
        joint += stats.norm.logpdf(h[0], mu, sigma / math.sqrt(1 - phi**2))
        joint += stats.norm.logpdf(h[1:], mu + phi * (h[:-1] - mu), sigma).sum()
        joint += stats.norm.logpdf(mu, 0, math.sqrt(10)) + stats.invgamma.logpdf(sigma**2, 2.5, scale=0.025)
        joint += stats.beta.logpdf((phi + 1) / 2, 20, 1.5)
        share = (phi + 1) / 2  # sigmoid(a): its Jacobian share (1 - share); sigma² = exp(2b): 2 sigma²
        joint += math.log(share * (1 - share)) + math.log(2 * sigma**2)
        assert math.isclose(energy.item(), -joint, rel_tol=1e-10)


def test_volatility_parameters():
    y, h = simulate_volatility(5000, mu=-1.0, phi=0.9, sigma=0.3)
    target = StochasticVolatility(y)
    x = target.pack(-1.0, 0.9, 0.3, h)
    assert x.shape == (target.dim,)
    torch.testing.assert_close(target.parameters(x), torch.tensor([-1.0, 0.9, 0.3], dtype=torch.float64))
    d = h + 1
    assert abs(torch.dot(d[1:], d[:-1]) / torch.dot(d, d) - 0.9) < 4.5 * math.sqrt(0.19 / 5000)
    assert abs((y / (h / 2).exp()).var().item() - 1) < 4.5 * math.sqrt(2 / 5000)
    chains = target.pack(torch.zeros(3), 0.5, 1.0, h.expand(3, -1))
    assert chains.shape == (3, target.dim)
