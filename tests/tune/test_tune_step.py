"""Tests of `bdl.tune.step`, `.curvature` and `.trial`.

The step size: the energy error and the batch noise at the lr that is found are those of laws with known answers.
"""

import math

import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

import bdl
from bdl.tune.curvature import Curvature
from bdl.tune.step import (
    ENERGY_BUDGET,
    NOISE_BUDGET,
    Limits,
    choose_lr,
    factor_by_momenta,
    measure_noise,
    momentum_heat,
    warm_up,
)
from bdl.tune.trial import Problem, Trial


def variance(e: float, a: float) -> float:
    """Stationary variance of θ under SGHMC for lr h = e, over tau / h, by the Lyapunov equation of (θ, m)."""
    step = [[1 - e, 1 - a], [-e, 1 - a]]
    noise = [[2 * a * e, 2 * a * e], [2 * a * e, 2 * a * e]]
    return solve_discrete_lyapunov(step, noise)[0, 0]


@pytest.mark.parametrize("friction", [0.05, 0.1, 0.5, 1.0])
def test_a_gaussians_stiffest_direction_spends_just_the_budget(friction):
    limits = Limits(curvature=7.0)
    lr = limits.by_energy(friction)
    assert variance(lr * 7, friction) - 1 == pytest.approx(ENERGY_BUDGET, rel=1e-6)
    assert limits.energy_error(lr, friction) == pytest.approx(ENERGY_BUDGET)
    assert variance(lr * 0.1, friction) - 1 < 0.02 * ENERGY_BUDGET


def momentum(e: float, a: float) -> float:
    """Stationary temperature of SGHMC's momenta for lr h = e, over T, by the same equation."""
    step = [[1 - e, 1 - a], [-e, 1 - a]]
    noise = [[2 * a * e, 2 * a * e], [2 * a * e, 2 * a * e]]
    return solve_discrete_lyapunov(step, noise)[1, 1] * (2 - a) / (2 * e)


@pytest.mark.parametrize("friction", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("share", [0.3, 0.8, 0.95])
def test_lr_at_which_momenta_of_gaussian_keep_to_budget_of_step(friction, share):
    """share: of the largest stable step."""
    e = share * 2 * (2 - friction)
    heat = momentum(e, friction) - 1
    assert momentum(e * factor_by_momenta(heat, heat), friction) == pytest.approx(1 + ENERGY_BUDGET)


def ratios(mean: float, momenta: int, friction: float) -> torch.Tensor:
    """(1,000, 40) kinetic temperatures over T, 10 steps apart, of normal momenta at `mean` T with this friction."""
    stream = torch.Generator().manual_seed(0)
    keep = math.exp(-10 * friction)
    m, series = torch.randn(1000, momenta, generator=stream, dtype=torch.float64), []
    for _ in range(40):
        m = keep * m + math.sqrt(1 - keep**2) * torch.randn(m.shape, generator=stream, dtype=torch.float64)
        series.append(mean * m.square().mean(1))
    return torch.stack(series, 1)


def falls(row: list[float], momenta: int, friction: float) -> bool:
    return factor_by_momenta(*momentum_heat(range(0, 400, 10), row, momenta, friction)) < 1


@pytest.mark.parametrize("momenta, friction", [(10, 0.5), (10, 0.05), (300, 0.5), (300, 0.02)])
def test_momenta_within_their_error_do_not_lower_lr(momenta, friction):
    """At a true temperature on the limit, 1.25 T, lr falls in 1 of 100 runs at most; where it is surely hot, always."""
    on_limit = [falls(row, momenta, friction) for row in ratios(1.25, momenta, friction).tolist()]
    in_budget = [falls(row, momenta, friction) for row in ratios(1.2, momenta, friction).tolist()]
    hot = [falls(row, 300, friction) for row in ratios(2.0, 300, friction).tolist()]
    assert sum(on_limit) <= 10 and sum(in_budget) <= 2 and all(hot)


def test_heat_that_comes_and_goes_counts_by_its_mean():
    """Unstable chains: for a tenth of the time at 5 T, else at 1 T. Such heat is no error of the measurement."""
    bursts = [5.0 if row % 10 == 9 else 1.0 for row in range(40)]
    heat, surely = momentum_heat(range(0, 4000, 100), bursts, 10_000, 0.05)
    assert heat == pytest.approx(0.4) and 0.3 < surely < 0.4
    assert math.isnan(momentum_heat(range(8), [2.0] * 7 + [math.nan], 10, 0.1)[0])  # too few are known


@pytest.fixture(scope="module")
def linear():
    """A linear regression: 512 items, 4 inputs of very different size, so that everything is known."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(512, 4, generator=stream) * torch.tensor([2.0, 1.0, 0.5, 0.1])
    y = x @ torch.ones(4, 1) + torch.randn(512, 1, generator=stream)
    return x, y


def problem(items, batch_size=512, chains=3) -> Problem:
    stack = bdl.ChainStack(torch.nn.Linear(4, 1, bias=False), chains)
    return Problem(stack, bdl.GaussianNLL(1.0), items, 512, batch_size)


def hessian(x: torch.Tensor) -> torch.Tensor:
    return (x.T @ x + torch.eye(4)) / 512


def test_curvature_is_the_largest_eigenvalue(linear):
    trial = Trial(problem(linear), bdl.SGHMC(), bdl.Gaussian(1.0), 1e-3, "test")
    exact = float(torch.linalg.eigvalsh(hessian(linear[0])).max())
    assert Curvature(trial)(trial).tolist() == pytest.approx([exact] * 3, rel=0.02)


def test_curvature_of_a_logistic_target(linear):
    x, y = linear[0], (linear[1][:, 0] > 0).long()
    stack = bdl.ChainStack(torch.nn.Linear(4, 2, bias=False), 2)
    trial = Trial(Problem(stack, bdl.CategoricalNLL(), (x, y), 512, 512), bdl.SGHMC(), bdl.Gaussian(1.0), 1e-3, "test")
    theta = trial.sampler.chain.theta[1].clone()

    def loss(flat):
        return torch.nn.functional.cross_entropy(x @ flat.view(2, 4).T, y) + flat.square().sum() / 1024

    exact = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, theta)).max()
    assert float(Curvature(trial)(trial)[1]) == pytest.approx(float(exact), rel=0.02)


def test_every_direction_of_a_regression_is_within_the_budget(linear):
    trial = Trial(problem(linear), bdl.SGHMC(), bdl.Gaussian(1.0), 1e-3, "test")
    lr = choose_lr(warm_up(trial, 20), 0.1).value
    errors = [variance(lr * h, 0.1) - 1 for h in torch.linalg.eigvalsh(hessian(linear[0])).tolist()]
    assert max(errors) == pytest.approx(ENERGY_BUDGET, rel=0.05)


def test_a_run_at_the_lr_that_is_found_has_the_energy_of_the_law(linear):
    """E U - min U = T d / 2 on a Gaussian; here d = 4, and at most the budget more. 64 chains, 1,500 steps."""
    trial = Trial(problem(linear, chains=64), bdl.SGHMC(), bdl.Gaussian(1.0), 1e-3, "test")
    warm_up(trial, 300)
    trial.energies.clear()
    trial.run(1500)
    x, y = linear
    best = torch.linalg.solve(hessian(x), x.T @ y / 512)
    least = 0.5 * (y - x @ best).square().sum() + 0.5 * best.square().sum() + 256 * math.log(2 * math.pi)
    excess = trial.energy_trace().double().mean(1) - least  # (64,) independent means
    error = float(excess.std()) / 8
    known = sum(variance(trial.lr * h, 0.1) / 2 for h in torch.linalg.eigvalsh(hessian(x)).tolist())
    assert 4 * error < 0.05 * known
    assert float(excess.mean()) == pytest.approx(known, abs=4 * error)
    assert known <= 2 * (1 + ENERGY_BUDGET)


def test_batch_noise_at_the_lr_that_is_found_is_the_budget(linear):
    """Var(g) of batches without replacement: the covariance of gradients of items, over B, times (N - B) / (N - 1)."""
    x, y = linear
    trial = Trial(problem(linear, batch_size=32, chains=16), bdl.SGHMC(), bdl.Gaussian(1.0), 1e-4, "test")
    with torch.no_grad():
        best = torch.linalg.solve(hessian(x), x.T @ y / 512)
        trial.sampler.chain.theta.copy_(best.T.expand(16, 4))
    trial.run(400)
    limits = measure_noise(trial, Limits(curvature=1e-6))  # the curvature allows any lr here
    lr = choose_lr(limits, 0.1).value
    per_item = (x @ best - y) * x
    var = per_item.var(0) / 32 * (512 - 32) / 512
    ratio = float((lr * var / (2 * 0.1 / 512)).mean())
    assert ratio == pytest.approx(NOISE_BUDGET, rel=0.15)


def test_a_divergence_bounds_lr():
    limits = Limits(curvature=1.0, diverged_at=0.1)
    assert choose_lr(limits, 0.1).value == pytest.approx(0.025)
    assert "diverged" in choose_lr(limits, 0.1).reason


def test_a_trial_that_diverges_goes_on_with_a_smaller_lr(linear):
    trial = Trial(problem(linear), bdl.SGHMC(), bdl.Gaussian(1.0), 50.0, "test")
    start = trial.sampler.chain.theta.clone()
    assert trial.run_stably(200) >= 1
    assert trial.lr < 2 * 1.9 / float(torch.linalg.eigvalsh(hessian(linear[0])).max())
    assert trial.diverged_at > trial.lr and trial.energy_trace().shape == (3, 200)
    assert torch.isfinite(trial.sampler.chain.theta).all() and not torch.equal(start, trial.sampler.chain.theta)
