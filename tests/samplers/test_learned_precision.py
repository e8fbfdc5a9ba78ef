"""Tests of `bdl.samplers.priors.learned`, `.base` and `bdl.samplers.clipping`: precisions drawn in the run.

On a linear regression the marginal law of log τ is an integral over one number. Every kind of move must reach it, at
other temperatures too, to 4.5 standard errors; a conditional law that is 5 % off must not. One false alarm in 10,000 is
the price.
"""

import copy
import math

import pytest
import torch
import toys
from closures import closure_of
from repeats import slow_where

import bdl
from bdl.errors import ConfigError
from bdl.samplers.priors.learned import LearnedGaussian

D64 = torch.float64
N, CHAINS, Z = 20, 1024, 4.5
VARIANCE = 0.25  # of y
SHAPE, RATE = 2.0, 1.0
random = torch.Generator().manual_seed(0)
X = torch.randn(N, 3, generator=random, dtype=D64)
Y = X @ torch.tensor([1.0, -2.0, 0.5], dtype=D64) + 0.5 * torch.randn(N, generator=random, dtype=D64)
MOVES = {
    "SGLD": (bdl.SGLD(), 0.002, 2000), "SGHMC": (bdl.SGHMC(0.3), 0.004, 600), "BAOAB": (bdl.BAOAB(0.3), 0.02, 400),
    "SGNHT": (bdl.SGNHT(0.1), 0.02, 400), "HMC": (bdl.HMC(), 0.2, 300), "MALA": (bdl.MALA(), 0.05, 500),
    "MCLMC": (bdl.MCLMC(), 0.2, 400),
}  # fmt: skip


def exact(temperature: float = 1.0, mean: float = 0.0) -> tuple[float, float]:
    """Mean and variance of log τ under exp(-U/T), θ integrated out, by quadrature over log τ."""
    log_tau = torch.linspace(-9, 7, 8001, dtype=D64)
    tau, eye = log_tau.exp(), torch.eye(3, dtype=D64)
    residual = Y - mean * X.sum(1)
    curvature, force = X.T @ X / VARIANCE + tau.view(-1, 1, 1) * eye, X.T @ residual / VARIANCE
    peak = torch.linalg.solve(curvature, force.expand(len(tau), 3)) @ force / 2
    log_p = ((SHAPE + 1.5) * log_tau - RATE * tau + peak) / temperature - torch.linalg.slogdet(curvature)[1] / 2
    p = (log_p - log_p.max()).exp()
    p /= p.sum()
    first = float(p @ log_tau)
    return first, float(p @ (log_tau - first).square())


def regression(dynamics, lr, temperature=1.0, chains=CHAINS, every=1, mean=0.0, parts=(3,), **settings):
    """The sampler, and a function that takes a step."""
    theta = [torch.zeros(chains, n, dtype=D64, requires_grad=True) for n in parts]
    prior = settings.pop("prior", bdl.Gaussian(bdl.Learned(SHAPE, RATE, every=every), mean=mean))
    sampler = bdl.Sampler(
        theta, dynamics, num_data=N, lr=lr, temperature=temperature, chains=chains, prior=prior, **settings
    )
    closure = closure_of(sampler, lambda: (torch.cat(theta, 1) @ X.T - Y).square().sum(-1) / (2 * VARIANCE * N))
    return sampler, lambda: sampler.step(closure)


def scores(sampler, step, steps: int, wanted: tuple[float, float]) -> list[float]:
    """Standard errors between the chains' means and the wanted ones, of log τ and of its squared deviation."""
    draws = []
    for k in range(steps):
        step()
        if k >= steps // 3 and k % 20 == 0:
            draws.append(sampler.prior.learned()[0][:, 0].log())
    x = torch.stack(draws)
    each = [x.mean(0) - wanted[0], (x - wanted[0]).square().mean(0) - wanted[1]]
    return [abs(float(e.mean() / (e.std() / math.sqrt(len(e))))) for e in each]


@pytest.mark.parametrize("name", slow_where(lambda name: name != "SGHMC", MOVES))
def test_every_move_reaches_the_marginal_law_of_the_precision(name):
    dynamics, lr, steps = MOVES[name]
    assert max(scores(*regression(dynamics, lr), steps, exact())) < Z


@pytest.mark.parametrize("temperature, every", [(0.3, 1), pytest.param(2.0, 5, marks=pytest.mark.slow)])
def test_the_hyperprior_is_tempered_with_the_rest(temperature, every):
    sampler, step = regression(bdl.BAOAB(0.3), 0.02, temperature, every=every)
    assert max(scores(sampler, step, 500, exact(temperature))) < Z
    assert max(scores(sampler, step, 100, exact())) > 10  # the law at T = 1 is told apart


def test_prior_with_mean_and_chains_at_temperatures_of_their_own():
    hot = torch.where(torch.arange(CHAINS) % 2 == 0, 1.0, 2.0).double()
    sampler, step = regression(bdl.BAOAB(0.3), 0.02, hot, mean=0.7)
    for _ in range(150):
        step()
    draws = []
    for _ in range(350):
        step()
        draws.append(sampler.prior.learned()[0][:, 0].log())
    x = torch.stack(draws).mean(0)
    for part, temperature in ((x[::2], 1.0), (x[1::2], 2.0)):
        error = part.std() / math.sqrt(len(part))
        assert abs(float((part.mean() - exact(temperature, 0.7)[0]) / error)) < Z


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_conditional_law_that_is_off_is_seen(monkeypatch, factor):
    """The negative control: 5 % on the shape of the conditional law, at the power of the tests above."""
    right = LearnedGaussian._shape
    monkeypatch.setattr(LearnedGaussian, "_shape", lambda self: right(self) * factor)
    assert max(scores(*regression(bdl.HMC(), 0.2), 400, exact())) > Z


def test_energy_is_that_of_law_and_its_gradient_that_of_autograd():
    theta = torch.randn(5, 4, dtype=D64, requires_grad=True)
    prior = bdl.Gaussian(bdl.Learned(SHAPE, RATE), mean=0.3).centred(["a", "b"], [(1,), (3,)], theta[0].detach())
    prior = prior.bind([(1,), (3,)], theta)
    prior.learn([torch.rand(5, 2, dtype=D64) + 0.5])
    (tau,) = prior.learned()
    normal = torch.distributions.Normal(0.3, tau.repeat_interleave(torch.tensor([1, 3]), 1).rsqrt())
    gamma = torch.distributions.Gamma(torch.tensor(SHAPE, dtype=D64), torch.tensor(RATE, dtype=D64))
    log_p = normal.log_prob(theta).sum(1) + (gamma.log_prob(tau) + tau.log()).sum(1)  # of θ and log τ
    energy = prior.energy(theta)
    torch.testing.assert_close((energy + log_p).diff(), torch.zeros(4, dtype=D64))  # constants are dropped
    g = torch.zeros(5, 4, dtype=D64)
    prior.add_grad_(g, theta.detach(), 7)
    torch.testing.assert_close(g, torch.autograd.grad(energy.sum(), theta)[0] / 7)


def test_at_temperature_zero_the_precision_is_the_mode():
    sampler, step = regression(bdl.SGD(0.5), 0.01, 0.0, chains=1)
    for _ in range(3):
        step()
    square = sampler.chain.theta.square().sum(1)
    torch.testing.assert_close(sampler.prior.learned()[0][:, 0], (SHAPE + 1.5) / (RATE + square / 2))


@pytest.mark.parametrize("name", ["SGHMC", "SGNHT", "HMC", "MCLMC"])
def test_a_resumed_chain_draws_the_same_to_the_bit(name):
    dynamics, lr, _ = MOVES[name]
    blocks = {"parameter 1": bdl.Block(bdl.Gaussian(bdl.Learned(each="block")))} if name == "SGHMC" else None
    build = lambda: regression(dynamics, lr, chains=3, every=2, parts=(1, 2), blocks=blocks)  # noqa: E731
    whole, step = build()
    for _ in range(7):
        step()
    state, theta = whole.state_dict(), [p.detach().clone() for p in whole.sampled]
    state = copy.deepcopy(state)
    for _ in range(6):
        step()
    other, again = build()
    with torch.no_grad():
        for p, value in zip(other.sampled, theta, strict=True):
            p.copy_(value)
    other.load_state_dict(state)
    for _ in range(6):
        again()
    assert torch.equal(other.chain.theta, whole.chain.theta)
    for a, b in zip(other.prior.learned(), whole.prior.learned(), strict=True):
        assert torch.equal(a, b)


def test_another_prior_does_not_continue_the_chain():
    learned, step = regression(bdl.SGLD(), 0.01, chains=2)
    step()
    plain, _ = regression(bdl.SGLD(), 0.01, chains=2, prior=bdl.Gaussian(1.0))
    with pytest.raises(ConfigError, match="the checkpoint has 1 learned precisions, and the prior learns 0"):
        plain.load_state_dict(learned.state_dict())
    with pytest.raises(ConfigError, match="the checkpoint has 0 learned precisions, and the prior learns 1"):
        learned.load_state_dict(plain.state_dict())


def test_samples_are_stored_with_their_precisions(tmp_path):
    """The present precisions of every chain and tensor; runs of one hyperprior are one posterior, others are not."""
    module = toys.sample(tmp_path / "a", steps=12, prior=bdl.Gaussian("learned"))
    last = bdl.Posterior.load(tmp_path / "a", toys.plain()).records[-1]
    assert module is not None and len(last.precision) == 2 and all(len(each) == 4 for each in last.precision)
    assert last.precision[0] != last.precision[1] and all(v > 0 for each in last.precision for v in each)
    toys.sample(tmp_path / "b", prior=bdl.Gaussian(bdl.Learned()), seed=1)
    toys.sample(tmp_path / "c", prior=bdl.Gaussian(bdl.Learned(rate=2.0)))
    assert bdl.Posterior.load([tmp_path / "a", tmp_path / "b"], toys.plain()).chains == 4
    with pytest.raises(bdl.StoreError, match="prior.precision.rate"):
        bdl.Posterior.load([tmp_path / "a", tmp_path / "c"], toys.plain())
    toys.sample(tmp_path / "plain")
    assert b"precision" not in (tmp_path / "plain" / "samples" / "index-0.jsonl").read_bytes()


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"dynamics": bdl.MeanField()}, "fits an approximation under a fixed prior"),
        ({"weighting": bdl.AdaptiveWeight(low=0.0, high=9.0)}, "changes the distribution of a learned precision"),
        ({"exchange": bdl.Exchange(ladder=[1, 2])}, "without its learned precision"),
    ],
)
def test_what_would_sample_another_law_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        regression(settings.pop("dynamics", bdl.SGLD()), 0.01, chains=2, **settings)
