"""Tests of `bdl.samplers.dynamics.mass`.

Diagonal masses: they find the scales of a badly scaled law, stop adapting when they say so, and leave the law.
"""

import numpy as np
import pytest
import torch
from literature.targets import Chains, GaussianLaw
from oracles import Estimate

import bdl
from bdl.samplers.dynamics.metropolis import from_variance
from bdl.samplers.dynamics.underdamped import rescale_swapped_momentum

Z = 4.5  # standard errors
D64 = torch.float64
STD = torch.tensor([1.0, 1e-2, 1e-4], dtype=D64)  # 1 : 1e4


def law(std: torch.Tensor) -> GaussianLaw:
    return GaussianLaw([0.0, 0.0, 0.0], torch.diag(std.square()))


def started(chains: int, std: torch.Tensor) -> torch.Tensor:
    """Every coordinate starts with the spread of the narrowest."""
    return std[-1] * torch.randn(chains, 3, generator=torch.Generator().manual_seed(0), dtype=D64)


def moments(run: Chains, std: torch.Tensor, steps: int, every: int, T) -> Estimate:
    """Of θ² over its expectation T std²."""
    x = run.run(steps, every=every)
    return Estimate.over_chains((x.square().mean(0) / std.square()) / torch.as_tensor(T, dtype=D64).reshape(-1, 1))


def test_hmc_finds_the_scales():
    """After adaptation P is in the ratio of the variances, 1 : 1e8 at most, in every chain; the law is right at every
    temperature. Power: 13 % of a variance. With unit masses the widest coordinate has hardly left its start."""
    T = torch.tensor([0.5, 1.0, 2.0], dtype=D64).repeat_interleave(120)
    kernel = bdl.HMC(leapfrog=8, adapt_steps=400, mass="diagonal")
    run = Chains(law(STD), kernel, started(360, STD), lr=1e-9, temperature=T)
    run.run(0, burn_in=400)
    P = run.sampler.chain.state.inverse_mass.clone()
    torch.testing.assert_close((1 / P).mean(1), torch.ones(360, dtype=D64))
    ratio = (P / P[:, 2:] / (STD / STD[2]).square()).log()
    assert ratio.abs().max() < 3.5 and ratio.mean(0).abs().max() < 0.35
    estimate = moments(run, STD, 300, 1, T)
    assert torch.equal(run.sampler.chain.state.inverse_mass, P)
    assert (np.abs(estimate.z([1, 1, 1])) < Z).all() and estimate.se.max() < 0.03
    assert run.sampler.acceptance.mean().item() == pytest.approx(0.8, abs=0.08)
    plain = Chains(law(STD), bdl.HMC(leapfrog=8, adapt_steps=100), started(60, STD), lr=1e-9)
    plain.run(0, burn_in=100)
    assert moments(plain, STD, 100, 1, 1.0).mean[0] < 0.1


def test_sghmc_finds_the_scales():
    """At equal lr, stable for the narrowest coordinate, variances of 1 : 1e4 mix with diagonal masses, not with unit
    ones. The masses are in the ratio of the curvatures, up to the damping. Power: 13 % of a variance."""
    std = STD.sqrt()
    e, T = 0.05 * 1e-4, torch.tensor([0.5, 1.0, 2.0, 1.0], dtype=D64).repeat_interleave(100)
    ends = {}
    for mass in ("unit", "diagonal"):
        dynamics = bdl.SGHMC(friction=0.1, mass=mass, mass_steps=1000)
        run = Chains(law(std), dynamics, started(400, std), lr=e, temperature=T)
        run.run(0, burn_in=3000)
        ends[mass] = moments(run, std, 2000, 5, T), run
    estimate, run = ends["diagonal"]
    P = run.sampler.chain.state.inverse_mass
    curvature = std.square().reciprocal()
    damped = curvature / curvature.mean() + 0.01
    torch.testing.assert_close((1 / P).mean(0), damped / damped.mean(), rtol=0.1, atol=0.0)
    # The error of first order, (1 - lr P h / (2 (2 - a)))^-1 - 1, of every coordinate and chain
    expected = (1 / (1 - e * P * curvature / (2 * 1.9))).mean(0).numpy()
    assert (np.abs(estimate.z(expected)) < Z).all() and estimate.se.max() < 0.03
    assert ends["unit"][0].mean[0] < 0.5
    kinetic = run.sampler.kinetic_temperature / T
    assert kinetic.mean().item() == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("friction", [0.1, 0.5])
def test_masses_are_safe_on_rotated_axes(friction: float):
    """Variances of 1 : 1e4 along axes that lie across the coordinates, at lr h = 1 for the narrowest. After each
    window the largest curvature of P^(1/2) H P^(1/2) is below 1.5 times that of H; at 2 (2 - a) times it diverges.
    Windows of 10 steps at friction .1, which is one independent gradient, reach 3.1 of these 3.8."""
    variance = torch.logspace(0, -4, 30, dtype=D64)
    axes = torch.linalg.qr(torch.randn(30, 30, generator=torch.Generator().manual_seed(1), dtype=D64)).Q
    target = GaussianLaw([0.0] * 30, (axes * variance) @ axes.T)
    hessian, lr = (axes / variance) @ axes.T, variance.min().item()
    dynamics = bdl.SGHMC(friction, mass="diagonal", mass_steps=1000)
    run = Chains(target, dynamics, target.sample(200, torch.Generator().manual_seed(1)), lr=lr)
    for steps in (25, 25, 50, 100, 200, 400):
        run.run(0, burn_in=steps)
        root = run.sampler.chain.state.inverse_mass.sqrt()
        curvature = torch.linalg.matrix_norm(root.unsqueeze(2) * hessian * root.unsqueeze(1), 2)
        assert curvature.max() * lr < 1.5
    assert (root.std(1) > 0.1).all()


def test_momenta_follow_a_change_of_masses():
    """Var m is proportional to P, so that m is scaled by the root of the factor by which P changes."""
    dynamics = bdl.SGHMC(friction=0.5, mass="diagonal", mass_steps=50)
    s, zero = dynamics.init(torch.zeros(1, 2, dtype=D64)), torch.zeros(1, 2, dtype=D64)
    s.m.fill_(1.0)
    s.square.copy_(torch.tensor([4.0, 1.0]))
    s.steps = 39  # the next step is the last of a window
    s = dynamics.step(s, zero.clone(), 0.1, 1.0, zero.clone())
    assert (s.inverse_mass[0, 1] / s.inverse_mass[0, 0]).item() == pytest.approx((4 / 2.5 + 0.01) / (1 / 2.5 + 0.01))
    torch.testing.assert_close(s.m, 0.5 * s.inverse_mass.sqrt())


def test_masses_change_at_the_ends_of_windows_only():
    """At 20, 40 and 80 % of the adaptation; earlier windows are too short here. `adapt_steps` says when it is over."""
    dynamics = bdl.SGHMC(friction=1.0, mass="diagonal", mass_steps=100)
    run = Chains(law(STD), dynamics, started(5, STD), lr=1e-10)
    changes, before = [], torch.ones(5, 3, dtype=D64)
    for k in range(1, 151):
        run.step()
        P = run.sampler.chain.state.inverse_mass
        if not torch.equal(P, before):
            changes.append(k)
        before = P.clone()
    assert changes == [20, 40, 80]
    assert dynamics.adapt_steps == 100 and bdl.SGHMC().adapt_steps is None


def test_a_coordinate_that_did_not_move_keeps_a_finite_mass():
    variance = torch.tensor([[1.0, 4.0, 0.0], [0.0, 0.0, 0.0]], dtype=D64)
    P = from_variance(variance, 100, torch.full((2, 3), 2.0, dtype=D64))
    assert (P > 0).all() and P.isfinite().all() and (P[1] == 2).all()
    assert (P[0, 1] / P[0, 0]).item() == pytest.approx(4, rel=0.1)


def test_swapped_momenta_are_rescaled_by_the_masses():
    """Var m is proportional to lr P T. Equal masses change nothing; a chain with masses a quarter as large receives
    momenta twice as long."""
    draw = torch.Generator().manual_seed(0)
    m, g = torch.randn(2, 2, 3, generator=draw, dtype=D64)
    order, T = torch.tensor([1, 0]), torch.tensor([1.0, 4.0], dtype=D64)
    plain, same, lighter = m.clone(), m.clone(), m.clone()
    zero = torch.zeros_like(g)
    rescale_swapped_momentum(plain, order, g, 0.1, 0.1, T)
    rescale_swapped_momentum(same, order, g, 0.1, 0.1, T, torch.ones_like(m))
    torch.testing.assert_close(plain, same)
    P = torch.tensor([[4.0], [1.0]], dtype=D64).expand(2, 3)
    rescale_swapped_momentum(lighter, order, zero, 0.1, 0.1, T, P)
    torch.testing.assert_close(lighter, m)  # sqrt(4 * 1 / (1 * 4)): masses and temperatures cancel


def test_given_batch_noise_is_subtracted_under_masses():
    """The injected variance is 2 a lr tau P - lr² P² V, per coordinate."""
    a, lr, tau, V = 0.5, 0.1, 0.3, 0.2
    dynamics = bdl.SGHMC(friction=a, mass="diagonal", mass_steps=50, grad_var=V)
    s = dynamics.init(torch.zeros(1, 2, dtype=D64))
    s.inverse_mass.copy_(torch.tensor([0.5, 2.0]))
    P, one = s.inverse_mass.clone(), torch.ones(1, 2, dtype=D64)
    moved = dynamics.step(s, 0 * one, lr, tau, one.clone()).theta
    torch.testing.assert_close(moved, (2 * a * lr * tau * P - lr**2 * P**2 * V).sqrt())
