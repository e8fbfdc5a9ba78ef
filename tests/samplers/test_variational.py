"""Tests of `bdl.samplers.dynamics.variational`.

Bayes by Backprop on linear regression, where evidence and best fit are known in closed form.

With a known noise level s the posterior is N(m, L⁻¹), L = precision + X'X/s². Among the independent Gaussians q, the
one that minimises E_q[U] - T H[q] has mean m and variances T / L_ii. At T = 1 its bound falls short of the log evidence
by KL = (Σ log L_ii - log |L|) / 2. Tolerances are Z standard errors between independent fits.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import toys
from oracles import Estimate
from repeats import slow_where
from scipy.stats import multivariate_normal
from torch import Tensor, nn

import bdl
from bdl.data import TensorBatches
from bdl.posterior.store import SampleStore

Z = 4.5
N, D, NOISE, PRECISION = 40, 3, 0.7, 2.0
FITS, BATCHES = 256, 4
D64 = torch.float64


def simulate() -> tuple[Tensor, Tensor]:
    """X (N, D) and y (N,). The last two columns of X have correlation .8, so that no independent q is exact."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=draw, dtype=D64)
    x[:, 2] = 0.8 * x[:, 1] + 0.6 * x[:, 2]
    return x, x @ torch.tensor([1.0, -0.5, 0.3], dtype=D64) + NOISE * torch.randn(N, generator=draw, dtype=D64)


X, Y = simulate()
COVARIANCE = NOISE**2 * torch.eye(N, dtype=D64) + X @ X.T / PRECISION  # of y, without the weights
EVIDENCE = float(multivariate_normal(np.zeros(N), COVARIANCE.numpy()).logpdf(Y.numpy()))
L = PRECISION * torch.eye(D, dtype=D64) + X.T @ X / NOISE**2
MEAN = torch.linalg.solve(L, X.T @ Y / NOISE**2)
STD = L.diagonal().rsqrt()  # (D,) deviations of the best fit at T = 1


def divergence(mu: Tensor, std: Tensor) -> Tensor:
    """(...,) KL(N(mu, diag std²) || posterior), nats; mu and std (..., D)."""
    r = mu - MEAN
    quadratic = ((r @ L) * r).sum(-1) + (std.square() * L.diagonal()).sum(-1) - D
    return 0.5 * (quadratic - torch.logdet(L)) - std.log().sum(-1)


@dataclass(frozen=True)
class NoEntropy(bdl.Dynamics):
    """A negative control: Bayes by Backprop without the entropy of q, the only term that contains tau."""

    right: Any = bdl.MeanField()

    def init(self, theta):
        return self.right.init(theta)

    def step(self, s, g, lr, tau, z):
        return self.right.step(s, g, lr, 0.0, z)


@dataclass(frozen=True)
class TwiceAsWide(bdl.Dynamics):
    """A negative control: draws with twice the standard deviation of q."""

    right: Any = bdl.MeanField()

    def init(self, theta):
        return self.right.init(theta)

    def step(self, s, g, lr, tau, z):
        s = self.right.step(s, g, lr, tau, z)
        s.theta.add_(s.theta - s.mu)
        return s


class Fit:
    """256 independent fits at once, on all the data or on M batches an epoch, in an order that differs between fits."""

    def __init__(self, dynamics, batches: int = 1, chains: int | None = FITS, **arguments):
        lead = () if chains is None else (chains,)
        self.theta = torch.zeros(*lead, D, dtype=D64, requires_grad=True)
        settings = dict(lr=0.02, num_data=N, prior=bdl.Gaussian(PRECISION), chains=chains) | arguments
        self.sampler = bdl.Sampler([self.theta], dynamics, **settings)
        self.batches, self.lead = batches, lead
        self.x, self.y = X.expand(*lead, N, D), Y.expand(*lead, N)

    def closure(self) -> Tensor:
        step = self.sampler.steps % self.batches
        if self.batches > 1 and step == 0:  # the order of an epoch depends on its number alone
            draw = torch.Generator().manual_seed(self.sampler.steps)
            self.order = torch.rand(*self.lead, N, generator=draw).argsort(-1).unflatten(-1, (self.batches, -1))
        x, y = self.x, self.y
        if self.batches > 1:
            x, y = X[self.order[..., step, :]], Y[self.order[..., step, :]]
        self.sampler.zero_grad()
        z = (y - (x @ self.theta[..., None])[..., 0]) / NOISE
        loss = (z.square() / 2).mean(-1) + math.log(NOISE) + math.log(2 * math.pi) / 2
        loss.sum().backward()
        return loss.detach()

    def go(self, steps: int) -> Fit:
        for _ in range(steps):
            self.sampler.step(self.closure)
        return self

    def converge(self, steps: int = 1500) -> Fit:
        """`steps` steps in which lr falls linearly to 0, where q no longer changes."""
        lr = self.sampler.param_groups[0]["lr"]
        for k in range(steps):
            self.sampler.param_groups[0]["lr"] = lr * (1 - k / steps)
            self.go(1)
        self.sampler.param_groups[0]["lr"] = 0.0
        return self

    @property
    def q(self) -> tuple[Tensor, Tensor]:
        """Means and standard deviations (..., D)."""
        return self.sampler.chain.state.mu.clone(), self.sampler.chain.state.std


def best(q: tuple[Tensor, Tensor], temperature: float = 1.0) -> bool:
    """Are means and deviations those of the best fit? Power: 3% of a standard deviation in either fails."""
    mu, std = q
    scaled = torch.cat([(mu - MEAN) / STD, std / STD], 1) / temperature**0.5
    estimate = Estimate.over_chains(scaled)
    assert 2 * Z * estimate.se[:D].max() < 0.06, "no power: more fits"
    return bool((np.abs(estimate.z([0.0] * D + [1.0] * D)) < Z).all())


def test_the_divergence_of_the_best_fit_is_that_of_another_formula():
    assert divergence(MEAN, STD).item() == pytest.approx(
        (L.diagonal().log().sum() - torch.logdet(L)).item() / 2, abs=1e-12
    )


def test_best_fit_at_two_temperatures():
    """Every second fit is at T = .3, where the deviations are .55 times those at T = 1."""
    groups = torch.tensor([1.0, 0.3], dtype=D64).repeat(FITS)
    mu, std = Fit(bdl.MeanField(), chains=2 * FITS, temperature=groups).converge().q
    assert best((mu[::2], std[::2])) and best((mu[1::2], std[1::2]), 0.3)
    assert not best((mu[::2], std[1::2]))


@pytest.mark.parametrize(
    "wrong",
    slow_where(lambda wrong: isinstance(wrong, NoEntropy), [NoEntropy(), TwiceAsWide()]),
    ids=lambda w: type(w).__name__,
)
def test_wrong_fits_are_seen(wrong):
    """Negative controls: without the entropy q collapses. With draws twice as wide, its deviations are halved."""
    assert not best(Fit(wrong).converge().q)


def test_elbo_is_the_evidence_less_the_divergence():
    """At every converged q, mean elbo = log evidence - KL(q || posterior), and none exceeds the evidence.

    The mean KL is that of the best fit, .31, plus less than .02 for the distance of q from that fit, which is
    computed. Power: .05 nats. One normalising constant is .9, and q twice as wide is wrong by .7 or more.
    """
    fit = Fit(bdl.MeanField()).converge().go(1)
    q = fit.q
    draws = []
    for _ in range(600):
        fit.go(1)
        draws.append(fit.sampler.elbo)
    assert torch.equal(q[0], fit.q[0])
    elbo = torch.stack(draws).mean(0)  # (C,)
    shortfall = Estimate.over_chains((EVIDENCE - elbo - divergence(*q)).unsqueeze(1))
    assert 2 * Z * shortfall.se < 0.05, "no power: more draws"
    assert abs(shortfall.z(0.0)) < Z
    assert (elbo < EVIDENCE).all()
    smallest = divergence(MEAN, STD)
    assert smallest > 0.3 and 0 < (divergence(*q) - smallest).mean() < 0.02


def test_every_state_is_a_fresh_draw():
    """(θ - mu)/σ has mean 0 and variance 1, and consecutive states are uncorrelated. Power: 3% of the variance."""
    fit = Fit(bdl.MeanField()).converge(200).go(1)
    mu, std = fit.q
    eps = torch.stack([(fit.go(1).theta.detach() - mu) / std for _ in range(400)])
    statistics = torch.stack([eps.mean(2), eps.square().mean(2), (eps * eps.roll(1, 0)).mean(2)], 2).mean(0)
    estimate = Estimate.over_chains(statistics)
    assert 2 * Z * estimate.se.max() < 0.03
    assert (np.abs(estimate.z([0, 1, 0])) < Z).all()


def shares(dynamics, gradients: Tensor, prior: Tensor) -> Tensor:
    """(M, 2) gradients of the KL term by mu and σ that M steps hand to Adam, in units of one full term; lr = 0."""
    theta = torch.tensor([0.4], dtype=D64)
    s, seen, before = dynamics.init(theta), [], torch.zeros(2, 1, dtype=D64)
    s.theta.add_(0.1)
    for g in gradients:
        eps = (s.theta - s.mu) / s.std
        extra = ({"prior_gradient": prior},) if dynamics.needs else ()
        s = dynamics.step(s, g + prior, 0.0, 0.05, torch.tensor([0.7], dtype=D64), *extra)
        handed = (s.mean - 0.9 * before) / 0.1
        before = s.mean.clone()
        handed[1] = handed[1] / s.rho.sigmoid() - g * eps  # divides by dσ/drho
        handed[0] -= g
        handed[1] /= (prior * eps - 0.05 / s.std) / prior  # both are now multiples of the prior's
        seen.append(handed[:, 0] / prior)
    return torch.stack(seen)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_geometric_weights_are_those_of_the_paper(m: int):
    """The i-th batch has the share 2^(M-i)/(2^M - 1) of the KL term, prior and entropy alike, in each of two epochs.
    The sum is that of uniform weights."""
    gradients, prior = torch.linspace(-1, 1, 2 * m, dtype=D64), torch.tensor([0.3], dtype=D64)
    geometric = shares(bdl.MeanField(0.05, "geometric", m), gradients, prior)
    paper = torch.tensor([2.0 ** (m - i) / (2**m - 1) for i in range(1, m + 1)], dtype=D64)
    torch.testing.assert_close(geometric, (m * paper).repeat(2)[:, None].expand(-1, 2), rtol=1e-9, atol=1e-9)
    uniform = shares(bdl.MeanField(), gradients, prior)
    torch.testing.assert_close(uniform, torch.ones_like(uniform), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(geometric.sum(0), uniform.sum(0), rtol=1e-9, atol=1e-9)


def test_zero_temperature_is_adam():
    """Without injected noise and entropy, mu follows torch.optim.Adam towards the posterior mode."""
    fit = Fit(bdl.MeanField(), batches=BATCHES, chains=None, temperature=0.0).go(50)
    mode = Fit(bdl.MeanField(), batches=BATCHES, chains=None)
    adam = torch.optim.Adam([mode.theta], lr=0.02, betas=(0.9, 0.999), eps=1e-8)
    for _ in range(50):
        mode.closure()
        mode.theta.grad += PRECISION / N * mode.theta.detach()
        adam.step()
        mode.sampler.chain.steps += 1  # the next batch
    torch.testing.assert_close(fit.theta, mode.theta, rtol=1e-10, atol=1e-12)


def test_chains_are_separate_fits():
    """At T = 0, fits from three starts in one stack are the three fits run alone."""
    starts = torch.tensor([[0.0, 0, 0], [1, -1, 0.5], [2, 2, 2]], dtype=D64)

    def fitted(start: Tensor, chains: int | None) -> Tensor:
        fit = Fit(bdl.MeanField(), chains=chains, temperature=0.0)
        fit.theta.data.copy_(start)
        fit.sampler.chain.state.mu.copy_(start)
        return fit.go(30).theta.detach()

    together, apart = fitted(starts, 3), torch.stack([fitted(start, None) for start in starts])
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-12)


def test_elbo_has_the_shape_of_the_chains():
    """Only a variational approximation has it. It is NaN under an improper prior."""
    assert Fit(bdl.MeanField(), chains=None).go(1).sampler.elbo.shape == ()
    assert Fit(bdl.MeanField(), chains=5).go(1).sampler.elbo.shape == (5,)
    assert Fit(bdl.SGLD(), chains=5).go(1).sampler.elbo is None
    for improper in (bdl.Uniform(), bdl.Gaussian(0.0), bdl.Gaussian([0.0])):
        assert Fit(bdl.MeanField(), chains=None, prior=improper).go(1).sampler.elbo.isnan(), improper


@pytest.mark.parametrize("stop", [5, 8])
def test_resumed_fit_is_the_uninterrupted_one(tmp_path, stop: int):
    """It is, to the bit, when saved as tensors in the middle or at the end of an epoch, with geometric weights."""

    def fresh() -> Fit:
        return Fit(bdl.MeanField(0.05, "geometric", BATCHES), batches=BATCHES, chains=3)

    whole, first, second = fresh().go(20), fresh().go(stop), fresh()
    torch.save({"theta": first.theta.detach(), "sampler": first.sampler.state_dict()}, tmp_path / "saved")
    saved = torch.load(tmp_path / "saved", weights_only=True)
    second.theta.data.copy_(saved["theta"])
    second.sampler.load_state_dict(saved["sampler"])
    second.order = getattr(first, "order", None)
    second.go(20 - stop)
    for a, b in [(whole.theta, second.theta), *zip(whole.q, second.q, strict=True)]:
        assert torch.equal(a, b)
    assert torch.equal(whole.sampler.elbo, second.sampler.elbo)
    assert not torch.equal(whole.theta, fresh().go(19).theta)


def test_samples_in_the_store_are_draws(tmp_path):
    """Trainer fits 64 linear networks on mini-batches while lr falls to 0. The 100 kept states of each have the means
    and deviations of the best fit. Power: 12% of a deviation."""
    net = bdl.ChainStack(nn.Linear(D, 1, bias=False), 64)
    build = functools.partial(bdl.Sampler, dynamics=bdl.MeanField(), num_data=N, lr=0.02, prior=bdl.Gaussian(PRECISION))
    module = bdl.BayesianModule(net, build, bdl.GaussianNLL(NOISE))
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(800, 2), tmp_path, full_energy=False)
    schedule = bdl.Schedule(bdl.schedules.Cosine(0.02, 800))
    loader = TensorBatches(X.float(), Y.float()[:, None], N // BATCHES, chains=64)
    toys.trainer(tmp_path, 1000, [schedule, collect]).fit(module, loader)
    store = SampleStore(tmp_path)
    draws = torch.stack([store.read(record)["weight"][:, 0] for record in store.records()]).double()
    assert draws.shape == (100, 64, D)
    mean = draws.mean(0)  # (64, D) one per chain
    variance = (draws - mean).square().sum(0) / 99
    estimate = Estimate.over_chains(torch.cat([(mean - MEAN) / STD, variance / STD**2], 1))
    assert 2 * Z * estimate.se.max() < 0.25, "no power"
    assert (np.abs(estimate.z([0.0] * D + [1.0] * D)) < Z).all()


def test_explain_says_what_it_is():
    lines = Fit(bdl.MeanField()).go(1).sampler.explain()
    assert "variational: an independent normal distribution per coordinate, not exp(-U/T)" in lines
    assert "fresh draw from the approximation" in lines
