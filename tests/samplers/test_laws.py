"""Every sampler has the law it means: without randomness on Gaussians, and through the whole shell.

A Monte Carlo test here compares with the stationary law of the *discretised* chain at the very lr it runs at (by
Lyapunov's equation, or on a grid), so its tolerance is standard errors alone, Z of them, and that this law differs from
exp(-U/T) by O(lr) is shown apart, without randomness. Two-sided error at Z: 7e-6 per statistic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from oracles import COVARIANCE, PRECISION, Estimate, Well, linear_step, momentum_law, refine
from table import MIXING, NOISY, Row

import bdl

Z = 4.5  # standard errors
N = 50  # data items, so that a test sees where N enters
E = 0.05  # lr / N
CHAINS = 4096
D64 = torch.float64


@dataclass(frozen=True)
class Wrong:
    """A dynamics with its noise multiplied by a number: the negative control."""

    right: Any
    factor: float = 1.01

    def init(self, theta):
        return self.right.init(theta)

    def step(self, s, g, lr, tau, z):
        return self.right.step(s, g, lr, tau, z * self.factor)


@dataclass(frozen=True)
class InitialNoise:
    """SGLD with noise that follows the first lr it saw, as the authors' code had it: a negative control."""

    first: float

    def init(self, theta):
        return bdl.SGLD().init(theta)

    def step(self, s, g, lr, tau, z):
        return bdl.SGLD().step(s, g, lr, tau, z * (self.first / lr) ** 0.5)


# ---- without randomness ----------------------------------------------------------------------------------------------


def relative_error(dynamics, lr: float, T: float) -> float:
    """|Cov(θ)/T - A⁻¹| / |A⁻¹| at stationarity, by Lyapunov."""
    wrong = linear_step(dynamics, PRECISION, lr, T).theta_covariance() / T - COVARIANCE.numpy()
    return float(np.linalg.norm(wrong) / COVARIANCE.norm())


@pytest.mark.parametrize("T", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("row", NOISY, ids=str)
def test_covariance_is_right_to_first_order(row: Row, T: float):
    """The error of Cov(θ)/T is c lr + O(lr²): it is small, and halves with lr.

    In an eigendirection h the variance is 1/(h (1 - x)) with x = lr p h / (2 (2 - a)) <= lr p h / 2, so the error is
    below x/(1 - x) <= lr p h and the ratio of errors between 2 and 2 (1 + x/(1 - x)). Here p h <= 1.65 * 5.
    Power: any error of the variance above .8% at lr = 1e-3, at any friction and temperature.
    """
    dynamics, lr, steepest = row.build(2, D64), 1e-3, 1.65 * 5
    error, halved = relative_error(dynamics, lr, T), relative_error(dynamics, lr / 2, T)
    assert error < lr * steepest
    assert error / halved == pytest.approx(2, abs=2 * lr * steepest)


@pytest.mark.parametrize("row", NOISY, ids=str)
def test_noise_off_by_one_percent_is_seen(row: Row):
    """Negative control of the test above: variance +2.01% leaves an error that neither is small nor halves."""
    dynamics = Wrong(row.build(2, D64))
    error, halved = relative_error(dynamics, 1e-3, 1.0), relative_error(dynamics, 5e-4, 1.0)
    assert error > 1e-3 * 1.65 * 5
    assert error / halved < 1.5


@pytest.mark.parametrize("lr", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("row", NOISY, ids=str)
def test_variance_in_one_dimension(row: Row, lr: float):
    """U = h x²/2: variance (T/h)/(1 - lr p h/(2 (2 - a))), exactly; for SGLD at h = 1 it is 1/(1 - lr/2)."""
    h, T = 1.3, 0.7
    variance = linear_step(row.build(1, D64), [[h]], lr, T).theta_covariance().item()
    expected = T / h / (1 - lr * row.scale * h / (2 * (2 - row.friction)))
    assert variance == pytest.approx(expected, rel=1e-9)


def kinetic_tau(dynamics, lr: float, tau: float) -> float:
    """E kinetic_tau at stationarity. It is quadratic in m, so it is the sum over the columns of a root of Cov(m)."""
    step = linear_step(dynamics, PRECISION, lr, tau)
    columns = torch.from_numpy(np.linalg.cholesky(step.covariance()[2:, 2:]).T.copy())
    return dynamics.kinetic_tau(bdl.Kinetic(columns, columns.clone()), lr).sum().item()


@pytest.mark.parametrize("tau", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("row", [r for r in NOISY if hasattr(r.build(2, D64), "kinetic_tau")], ids=str)
def test_kinetic_tau_is_tau(row: Row, tau: float):
    """Its expectation is tau (1 + O(lr)), the error halving with lr. Without the 2 - a it would be 5% off at .1."""
    dynamics = row.build(2, D64)
    error, halved = (abs(kinetic_tau(dynamics, lr, tau) / tau - 1) for lr in (1e-3, 5e-4))
    assert error < 1e-3 * 5
    assert error / halved == pytest.approx(2, abs=0.02)


@pytest.mark.parametrize("row", NOISY, ids=str)
def test_batch_noise_heats_by_the_noise_ratio(row: Row):
    """With gradients of variance V per coordinate, tr(A Cov(θ))/d = T (1 + mean lr P V/(2 a tau)) as lr -> 0.

    V is scaled with 1/lr, so that the ratio stays: the error left is the O(lr) of the covariance itself. Without the
    factor 2, or without the friction, the ratio would be off by its own size.
    """
    lr, tau = 1e-3, 0.4
    V = np.diag([0.3, 1.1]) * 2 * row.friction * tau / lr
    step = linear_step(row.build(2, D64), PRECISION, lr, tau)
    heat = np.trace(PRECISION.numpy() @ step.theta_covariance(V)) / 2 / tau
    ratio = np.mean(lr * np.array(row.diagonal) * np.diag(V) / (2 * row.friction * tau))
    assert heat == pytest.approx(1 + ratio, rel=1e-3 * 1.65 * 5)


@pytest.mark.parametrize("row", NOISY, ids=str)
def test_shell_computes_the_noise_ratio(row: Row):
    """`noise_ratio` and `t_eff` are the formula of the test above."""
    theta = torch.zeros(2, dtype=D64, requires_grad=True)
    sampler = bdl.Sampler([theta], row.build(2, D64), num_data=N, lr=0.2, temperature=0.5)
    V = torch.tensor([0.3, 1.1], dtype=D64)
    for step, sign in enumerate((1, -1)):  # half the squared difference of two gradients is V
        theta.grad = sign * (V / 2).sqrt()
        assert sampler.steps == step
        sampler.step()
    expected = np.mean(0.2 * np.array(row.diagonal) * V.numpy() / (2 * row.friction * 0.5 / N))
    assert sampler.noise_ratio.item() == pytest.approx(expected, rel=1e-9)
    assert sampler.t_eff.item() == pytest.approx(0.5 * (1 + expected), rel=1e-9)


# ---- through the whole shell -----------------------------------------------------------------------------------------


def gaussian_chains(dynamics, lr_factor=None, temperature=1.0, seed=1):
    """4,096 chains at 0 and a function that moves them one step on U = θ'Aθ/2 (N times a mean loss)."""
    theta = torch.zeros(CHAINS, 2, requires_grad=True)
    sampler = bdl.Sampler(
        [theta], dynamics, num_data=N, lr=E * N, temperature=temperature, prior=bdl.Uniform(), chains=CHAINS, seed=seed
    )
    schedule = lr_factor and torch.optim.lr_scheduler.LambdaLR(sampler, lr_factor)
    A, theta.grad = (PRECISION / N).float(), torch.zeros_like(theta)

    def advance():
        torch.mm(theta.detach(), A, out=theta.grad)
        sampler.step()
        if schedule:
            schedule.step()

    return theta, advance


def second_moments(dynamics, covariance, steps: int, temperature=1.0, lr_factor=None) -> Estimate:
    """(y1², y2², y1 y2) of y = θ whitened by the covariance that θ should have; expected (1, 1, 0).

    The first fifth is burn-in. Its slowest rate is .01 a step (energy at friction .01), so e^-20 of the start is left.
    """
    theta, advance = gaussian_chains(dynamics, lr_factor, temperature)
    scale = torch.as_tensor(temperature).sqrt().reshape(-1, 1)
    whiten = torch.linalg.inv(torch.linalg.cholesky(torch.as_tensor(covariance))).T.float()
    total, count = torch.zeros(CHAINS, 3), 0
    for step in range(steps + steps // 5):
        advance()
        if step >= steps // 5 and step % 2 == 0:
            y = theta.detach() @ whiten / scale
            total += torch.cat([y * y, y.prod(1, keepdim=True)], 1)
            count += 1
    return Estimate.over_chains(total / count)


def right(estimate: Estimate, expected=(1.0, 1.0, 0.0)) -> bool:
    """The law test: within Z standard errors, which must leave the power to see +2% of variance at another Z."""
    assert (estimate.se / estimate.mean)[:2].max() < 0.02 / (2 * Z), "no power: more steps"
    return bool((np.abs(estimate.z(expected)) < Z).all())


def stationary(row: Row, e: float = E) -> np.ndarray:
    """Covariance of θ per unit of temperature at lr/N = e. In units of U the step is lr/N, tau is T."""
    return linear_step(row.build(2, D64), PRECISION, e, 1.0).theta_covariance()


@pytest.mark.parametrize("row", NOISY, ids=str)
def test_gaussian_through_the_shell(row: Row):
    """2-D Gaussian of correlation .8. Power: variance +2% is at least 9 standard errors (checked), and is seen."""
    dynamics, covariance = row.build(2, torch.float32), stationary(row)
    assert right(second_moments(dynamics, covariance, row.steps))
    assert not right(second_moments(Wrong(dynamics), covariance, row.steps))


def test_noise_without_the_two_is_seen():
    """sqrt(lr tau) instead of sqrt(2 lr tau), as in 000 (3.2): variance one half."""
    row = next(r for r in NOISY if r.name == "sgld")
    estimate = second_moments(Wrong(bdl.SGLD(), 0.5**0.5), stationary(row), row.steps)
    assert not right(estimate)
    assert estimate.mean[:2] == pytest.approx(0.5, abs=0.01)


def test_noise_follows_a_decaying_lr():
    """lr falls by 3% a step to .4 of itself and stays. Noise that follows has the law of the last lr; noise keyed to
    the initial lr has 2.5 times the variance."""
    sgld, e = next(r for r in NOISY if r.name == "sgld"), 0.4 * E

    def factor(k):
        return max(0.4, 0.97**k)

    covariance = stationary(sgld, e)
    assert right(second_moments(bdl.SGLD(), covariance, 8000, lr_factor=factor))
    wrong = second_moments(InitialNoise(E * N), covariance, 8000, lr_factor=factor)
    assert not right(wrong)
    assert wrong.mean[:2] == pytest.approx(2.5, rel=0.05)


def test_every_chain_has_its_own_temperature():
    """T = (C,) tensor, four groups. Whitened by its own T every group has the law (1, 1, 0); power +2% over all groups,
    +4% within each; two groups exchanged would be off by a factor 2 or more."""
    groups = torch.tensor([0.25, 0.5, 1.0, 4.0]).repeat_interleave(CHAINS // 4)
    row = next(r for r in NOISY if r.name == "sghmc-0.1")
    theta, advance = gaussian_chains(row.build(2, torch.float32), temperature=groups)
    whiten = torch.linalg.inv(torch.linalg.cholesky(torch.as_tensor(stationary(row)))).T.float()
    total = torch.zeros(CHAINS, 3)
    for step in range(5000):
        advance()
        if step >= 1000:
            y = theta.detach() @ whiten / groups.sqrt()[:, None]
            total += torch.cat([y * y, y.prod(1, keepdim=True)], 1) / 4000
    assert right(Estimate.over_chains(total))
    for part in total.chunk(4):
        estimate = Estimate.over_chains(part)
        assert estimate.se.max() < 0.04 / (2 * Z)
        assert (np.abs(estimate.z([1, 1, 0])) < Z).all()


# ---- a nonlinear law -------------------------------------------------------------------------------------------------

WELL = Well(height=1.0, tilt=0.3)
E_WELL, DX = 0.03, 0.05
CUTS = np.array([-1.2275, -0.9275, -0.5275, -0.0225, 0.5275, 0.9275, 1.2275])  # halfway between points of the fine grid


def well_statistics(x):
    """(..., 8): is x below each cut, and U(x)."""
    below = (x[..., None] < torch.as_tensor(CUTS, dtype=x.dtype)).to(x.dtype)
    return torch.cat([below, WELL.energy(x)[..., None]], -1)


def expected_statistics(a: float, e: float, T: float) -> np.ndarray:
    x, mass = momentum_law(WELL, a, e, T, dx=DX, steps=600)
    x, mass = refine(x, mass, 10)
    cdf = [mass[x < c].sum() for c in CUTS]
    return np.array([*cdf, mass @ WELL.energy(x)])


def quadrature_statistics(T: float) -> np.ndarray:
    x = np.linspace(-4, 4, 80001)
    p = np.exp(-WELL.energy(x) / T)
    p /= p.sum()
    return np.array([*(p[x < c].sum() for c in CUTS), p @ WELL.energy(x)])


def well_chains(dynamics, T: float, e: float, steps: int) -> Estimate:
    x = torch.zeros(CHAINS, 1, requires_grad=True)
    sampler = bdl.Sampler(
        [x], dynamics, num_data=N, lr=e * N, temperature=T, prior=bdl.Uniform(), chains=CHAINS, seed=2
    )
    x.grad, total = torch.zeros_like(x), torch.zeros(CHAINS, len(CUTS) + 1)
    for step in range(steps + 600):
        x.grad.copy_(WELL.grad(x.detach()) / N)
        sampler.step()
        if step >= 600 and step % 3 == 0:
            total += well_statistics(x.detach()[:, 0])
    return Estimate.over_chains(total / len(range(600, steps + 600, 3)))


@pytest.mark.parametrize("a", [0.1, 0.5, 1.0])
def test_grid_law_tends_to_the_quadrature(a: float):
    """The oracle of the test below, and the order of the method on a nonlinear law: 1, not 0 (a wrong law) or 2."""
    true = quadrature_statistics(1.0)
    error, halved = (np.abs(expected_statistics(a, e, 1.0) - true)[-1] for e in (E_WELL, E_WELL / 2))
    assert np.log2(error / halved) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("row", MIXING, ids=str)
def test_double_well_through_the_shell(row: Row):
    """CDF at seven cuts and mean energy against the law of the discretised chain. Power: noise x 1.01 is T +2.01%, seen
    in the mean energy by more than 2 Z standard errors (checked) and by the run."""
    T, e, dynamics = 1.0, E_WELL / row.scale, row.build(1, torch.float32)
    expected, hotter = (expected_statistics(row.friction, E_WELL, T * f) for f in (1.0, 1.01**2))
    estimate = well_chains(dynamics, T, e, 6000)
    assert (hotter - expected)[-1] > 2 * Z * estimate.se[-1], "no power: more steps"
    assert (np.abs(estimate.z(expected)) < Z).all()
    assert not (np.abs(well_chains(Wrong(dynamics), T, e, 6000).z(expected)) < Z).all()
