"""Tests of `bdl.samplers.dynamics.langevin`.

SGLRW: its step has the right two moments, its law on a lattice is known exactly, and batch noise moves it little.

In one dimension the chain lives on the points x0 + k δ and moves to a neighbour at every step. Its stationary law
follows from detailed balance between neighbours, without random numbers.
"""

import math

import numpy as np
import pytest
import torch
from literature.targets import Chains, GaussianLaw
from oracles import COVARIANCE, PRECISION, Estimate, Well
from repeats import slow_where
from scipy.integrate import quad
from table import Row
from test_laws import E, Z, gaussian_chains, right, second_moments, wrong

import bdl

D64 = torch.float64
ROW = Row("sglrw", lambda d, dtype: bdl.SGLRW(), law="elsewhere")
WELL = Well(height=1.0, tilt=0.3)
QUANTILES = torch.distributions.Normal(0, 1).icdf((torch.arange(20_000, dtype=D64) + 0.5) / 20_000)


def steps(g: float, lr: float, tau: float) -> torch.Tensor:
    """The step from 0 at every quantile of z."""
    z = QUANTILES[:, None].clone()
    return bdl.SGLRW().step(bdl.Position(torch.zeros_like(z)), torch.full_like(z, g), lr, tau, z).theta


@pytest.mark.parametrize("tau", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("g", [0.0, 0.4, -1.7, 2.9])
def test_moments_of_a_step(g: float, tau: float):
    """E Δ = -lr g and Δ² = 2 lr tau, whatever g. Power: 1e-4 of the probability."""
    lr = 0.02
    moved, spacing = steps(g, lr, tau), math.sqrt(2 * lr * tau)
    torch.testing.assert_close(moved.abs(), torch.full_like(moved, spacing))
    assert moved.mean().item() == pytest.approx(-lr * g, abs=1e-4 * spacing)


def test_a_steep_coordinate_takes_one_step_downhill():
    assert (steps(1e6, 0.02, 1.0) == -math.sqrt(0.04)).all() and (steps(-math.inf, 0.02, 1.0) == math.sqrt(0.04)).all()


def test_lr_and_temperature_per_chain_and_zero_temperature():
    """Tensors act as floats on each chain; at tau = 0 the step is that of SGD."""
    draw = torch.Generator().manual_seed(0)
    x, g, z = torch.randn(3, 3, 5, generator=draw, dtype=D64)
    lr, tau = torch.tensor([[0.1], [0.2], [0.3]], dtype=D64), torch.tensor([[0.0], [0.5], [2.0]], dtype=D64)
    stack = bdl.SGLRW().step(bdl.Position(x.clone()), g.clone(), lr, tau, z.clone()).theta
    for c in range(3):
        one = bdl.SGLRW().step(bdl.Position(x[c].clone()), g[c].clone(), lr[c].item(), tau[c].item(), z[c].clone())
        torch.testing.assert_close(one.theta, stack[c])
    torch.testing.assert_close(stack[0], x[0] - 0.1 * g[0])


def lattice_law(mean_gradient, e: float, T: float = 1.0, reach: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Points and masses of the stationary law at lr/N = e: π_k p_k = π_(k+1) (1 - p_(k+1)).

    mean_gradient: expectation of ∇U, clipped to ±sqrt(2 T/e), at every point.
    """
    spacing = math.sqrt(2 * e * T)
    x = spacing * np.arange(-int(reach / spacing), int(reach / spacing) + 1)
    up = (1 - e * mean_gradient(x, math.sqrt(2 * T / e)) / spacing) / 2
    rise = np.log(np.maximum(up[:-1], 1e-300)) - np.log(np.maximum(1 - up[1:], 1e-300))
    log_mass = np.concatenate([[0], np.cumsum(rise)])
    mass = np.exp(log_mass - log_mass.max())
    return x, mass / mass.sum()


def well_gradient(x, threshold):
    return np.clip(WELL.grad(x), -threshold, threshold)


def mean_energy(e: float) -> float:
    x, mass = lattice_law(well_gradient, e)
    return float(mass @ WELL.energy(x))


def test_double_well_is_right_to_first_order():
    """The error of the mean energy halves with lr."""
    grid = np.linspace(-4, 4, 80_001)
    p = np.exp(-WELL.energy(grid))
    exact = p @ WELL.energy(grid) / p.sum()
    error, halved = (abs(mean_energy(e) - exact) for e in (0.002, 0.001))
    assert error < 0.01 * exact
    assert np.log2(error / halved) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("factor", slow_where(lambda factor: factor != 1, [1.0, 1.01]))
def test_double_well_through_the_shell(factor: float):
    """Mean energy and mean agree with the exact law of the lattice; noise times 1.01 is seen."""
    e, x = 0.01, torch.zeros(8192, 1, requires_grad=True)
    dynamics = bdl.SGLRW() if factor == 1 else wrong(bdl.SGLRW(), factor)
    sampler = bdl.Sampler([x], dynamics, num_data=50, lr=e * 50, prior=bdl.Uniform(), chains=8192, seed=2)
    x.grad, total = torch.zeros_like(x), torch.zeros(8192, 2)
    for step in range(2500):
        x.grad.copy_(WELL.grad(x.detach()) / 50)
        sampler.step()
        if step >= 500 and step % 5 == 0:
            total += torch.cat([x.detach(), WELL.energy(x.detach())], 1) / 400
    points, mass = lattice_law(well_gradient, e)
    estimate = Estimate.over_chains(total)
    z = np.abs(estimate.z([mass @ points, mass @ WELL.energy(points)]))
    assert estimate.se[1] < 0.0025
    assert bool((z < Z).all()) == (factor == 1)


def covariance(gradient_covariance) -> np.ndarray:
    """Stationary covariance at E, T = 1: e (A Σ + Σ A) = Q, Q_ii = 2e, Q_ij = e² (A Σ A + V)_ij."""
    A, sigma = PRECISION.numpy(), COVARIANCE.numpy()
    for _ in range(100):
        q = E**2 * (A @ sigma @ A + gradient_covariance)
        np.fill_diagonal(q, 2 * E)
        eye = np.eye(2)
        sigma = np.linalg.solve(E * (np.kron(A, eye) + np.kron(eye, A)), q.ravel()).reshape(2, 2)
    return sigma


def test_gaussian_through_the_shell():
    """The covariance is that of the moments of a step, and the same with batch noise that would heat SGLD by 2.2 %.

    Power: +2% of variance (checked in `right`), which noise times 1.01 shows.
    """
    expected, batch_noise = covariance(np.zeros((2, 2))), 0.9
    assert bdl.SGLD().noise_ratio(None, torch.tensor(batch_noise), E, 1.0).item() == pytest.approx(0.0225)
    assert right(second_moments(ROW, bdl.SGLRW(), expected, batch_noise=batch_noise))
    assert not right(second_moments(ROW, wrong(bdl.SGLRW()), expected, batch_noise=batch_noise))


def test_correlated_batch_noise_enters_products_of_coordinates():
    """It changes the covariance by e V_12, at second order in lr for the variances: stated, without random numbers."""
    without, with_noise = covariance(np.zeros((2, 2))), covariance(np.array([[9.0, 0.9], [0.9, 9.0]]))
    assert np.diag(with_noise - without) == pytest.approx(np.diag(covariance(np.array([[0, 0.9], [0.9, 0]])) - without))
    assert abs(with_noise - without).max() < 0.05


def cauchy_gradient(x, threshold):
    """Expectation of x + C, clipped to ± threshold, for a standard Cauchy C."""

    def clipped(t):
        inside = quad(lambda c: (t + c) / (math.pi * (1 + c * c)), -threshold - t, threshold - t)[0]
        above = 0.5 - math.atan(threshold - t) / math.pi
        below = 0.5 - math.atan(threshold + t) / math.pi
        return inside + threshold * (above - below)

    return np.array([clipped(t) for t in x])


def test_heavy_tails_widen_the_law_but_do_not_break_it():
    """Cauchy noise on every gradient of U = x²/2, e = .02: SGLD has no law any more. The variance of SGLRW is that of
    the clipped drift, 1.08 times the right one."""
    e, chains = 0.02, 4096
    points, mass = lattice_law(cauchy_gradient, e, reach=6.0)
    variance = mass @ points**2
    assert 1.05 < variance < 1.15
    draw = torch.Generator().manual_seed(0)
    ends = {}
    for dynamics in (bdl.SGLRW(), bdl.SGLD()):
        x = torch.zeros(chains, 1, requires_grad=True)
        sampler = bdl.Sampler([x], dynamics, num_data=1, lr=e, prior=bdl.Uniform(), chains=chains)
        total, largest = torch.zeros(chains, 1), 0.0
        x.grad = torch.zeros_like(x)
        for k in range(1500):
            x.grad.copy_(x.detach() + torch.empty_like(x).cauchy_(generator=draw))
            sampler.step()
            if k >= 300:
                total += x.detach() ** 2 / 1200
                largest = max(largest, float(x.detach().abs().max()))
        ends[type(dynamics).__name__] = Estimate.over_chains(total), largest
    estimate, largest = ends["SGLRW"]
    assert abs(estimate.z(variance)[0]) < Z and estimate.se[0] < 0.01 and largest < 10
    assert ends["SGLD"][1] > 1000


def test_through_chains_and_explain():
    run = Chains(GaussianLaw([0.0, 0.0], COVARIANCE), bdl.SGLRW(), torch.zeros(4, 2, dtype=D64), lr=0.02)
    run.run(30)
    assert (run.sampler.noise_ratio == 0).all() and torch.equal(run.sampler.t_eff, torch.ones(4, dtype=D64))
    assert "steps of ± 0.2 per step and coordinate" in run.sampler.explain()
    assert gaussian_chains(ROW, bdl.SGLRW())[0].shape[1] == 2
