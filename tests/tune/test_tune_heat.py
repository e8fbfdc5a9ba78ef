"""Tests of `bdl.tune.heat` and `.rehearse`.

The lr that is found keeps the hottest direction within its budget.
On a linear regression of condition number 58 the noise of batches is known in every direction.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import bdl
from bdl.tune.heat import AFFORDABLE, BatchHeat, CoolDirections, measure_heat, strongest
from bdl.tune.step import NOISE_BUDGET, Limits, choose_lr, factor_by_hottest
from bdl.tune.trial import Problem, Trial
from tests.helpers.oracles import linear_step

N, D, BATCH, CONDITION = 400, 30, 40, 58.0
D64 = torch.float64
TAU = 1 / N


def regression():
    """x (N, D) whose covariance has the condition number, y (N, 1), the Hessian of U/N, and the mode."""
    draw = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(D, D, generator=draw, dtype=D64)).Q
    white = torch.linalg.qr(torch.randn(N, D, generator=draw, dtype=D64)).Q * N**0.5
    x = white * torch.logspace(0, 1, D, CONDITION**0.5, dtype=D64) @ axes.T
    y = x.sum(1, keepdim=True) / D**0.5 + torch.randn(N, 1, generator=draw, dtype=D64)
    hessian = (x.T @ x + torch.eye(D, dtype=D64)) / N
    return x, y, hessian, torch.linalg.solve(hessian, x.T @ y / N)


X, Y, H, MODE = regression()
CURVATURE, AXES = torch.linalg.eigh(H)


def covariance(theta: torch.Tensor) -> torch.Tensor:
    """(D, D) covariance of the gradient of a batch of a pass, at θ (D, 1)."""
    return ((X @ theta - Y) * X).T.cov() / BATCH * (1 - BATCH / N)


def noise_in_posterior() -> np.ndarray:
    """(D, D) the mean of that covariance over the posterior."""
    residuals = (X @ MODE - Y)[:, 0].square() + ((X @ torch.linalg.inv(H) / N) * X).sum(1)
    return ((X * residuals[:, None]).T @ X / N / BATCH * (1 - BATCH / N)).numpy()


def problem(batch_size: int = BATCH, chains: int = 4) -> Problem:
    stack = bdl.ChainStack(torch.nn.Linear(D, 1, bias=False).double(), chains)
    with torch.no_grad():
        for p in stack.parameters():
            p.copy_(MODE.T.expand(chains, 1, D))
    return Problem(stack, bdl.GaussianNLL(1.0), (X, Y), N, batch_size)


def temperatures(dynamics, lr: float) -> np.ndarray:
    """(D,) variance along every axis of the curvature, over the posterior's, by Lyapunov's equation."""
    axes = AXES.numpy()
    law = linear_step(dynamics, H, lr, TAU).theta_covariance(noise_in_posterior())
    return (axes.T @ law @ axes).diagonal() * CURVATURE.numpy() * N


def found(dynamics, **arguments) -> bdl.tune.choice.Tuning:
    given = {"batch_size": BATCH, "prior": bdl.Gaussian(1.0), "friction": 0.1}
    return bdl.find_settings(
        problem().stack, bdl.GaussianNLL(1.0), (X, Y), dynamics=dynamics, steps=20_000, given=given, **arguments
    )


@pytest.mark.parametrize("dynamics", [bdl.SGHMC(), bdl.BAOAB(), bdl.SGNHT()], ids=str)
def test_lr_that_is_found_keeps_hottest_direction_within_budget(dynamics):
    """1.1 T, and the error of the step beside it. The budget for the mean alone would let SGHMC heat it to 1.4 T."""
    tuning = found(dynamics)
    lr = tuning.settings["lr"]
    plain = temperatures(bdl.SGHMC() if isinstance(dynamics, bdl.SGNHT) else dynamics, lr)
    ratio = lr * noise_in_posterior().trace() / D / (2 * 0.1 * TAU)
    t = plain / (1 + ratio) if isinstance(dynamics, bdl.SGNHT) else plain
    assert 1.06 < t.max() < 1.18
    assert tuning.hottest == pytest.approx(1.1, abs=0.001) and tuning.noise_ratio == pytest.approx(ratio, rel=0.2)
    (choice,) = (c for c in tuning.choices if c.name == "lr")
    assert "heat the hottest direction by 10%, the budget" in choice.reason
    by_mean = temperatures(bdl.SGHMC(), lr * NOISE_BUDGET / ratio)
    assert by_mean.max() > 1.3


def test_what_was_found_promises_a_mean_that_a_run_can_measure():
    """At heat 0.1 the hottest direction of the trials has 1.05 T, and the mean is 0.01: it may be twice as large."""
    promised = CoolDirections.of(1.05, 0.01, 0.1)
    assert promised is not None and promised.noise_ratio == pytest.approx(0.02)
    assert CoolDirections.of(45.0, 0.01, 0.1) is None and CoolDirections.of(1.0, 0.0, 0.1) is None
    theta = torch.zeros(200, requires_grad=True, dtype=D64)
    sampler = bdl.Sampler([theta], bdl.SGHMC(0.1), num_data=N, lr=0.01)
    for sign in (1, -1, 1):
        theta.grad = torch.full_like(theta, sign * 0.01)
        sampler.step()
    ratio = float(sampler.noise_ratio)
    assert factor_by_hottest(sampler, None) == (1.0, "")
    assert factor_by_hottest(sampler, CoolDirections(0.1, ratio / 1.2)) == (1.0, "")
    factor, reason = factor_by_hottest(sampler, CoolDirections(0.1, ratio / 2))
    assert factor == pytest.approx(0.45) and "hottest direction by about 20%, the budget is 10%" in reason


def test_the_heat_that_is_allowed_is_an_argument():
    lr, twice = (found(bdl.SGHMC(), heat=heat).settings["lr"] for heat in (0.05, 0.1))
    assert twice == pytest.approx(2 * lr, rel=0.15)
    with pytest.raises(bdl.ConfigError, match="heat must be > 0, got 0"):
        found(bdl.SGHMC(), heat=0.0)


def test_full_batches_have_no_hottest_direction():
    trial = Trial(problem(N), bdl.SGHMC(), bdl.Gaussian(1.0), 1e-4, "test")
    trial.run(20)
    assert measure_heat(trial, bdl.SGHMC()) is None


def test_the_hottest_direction_of_batches_is_measured():
    """At one θ, over 16 chains with draws of their own: c_1 to 12 %, from 64 gradients each, and the mean to 5 %.

    Power: the largest eigenvalue of the covariance of the same draws is too large by more than 20 %.
    """
    trial = Trial(problem(chains=16), bdl.SGHMC(), bdl.Gaussian(1.0), 1e-4, "test")
    trial.losses, trial.energies = [], [torch.zeros(16)] * 1000
    exact = torch.linalg.eigvalsh(covariance(MODE))
    measured = measure_heat(trial, bdl.SGHMC())
    assert measured is not None
    assert measured.hottest == pytest.approx(float(exact[-1]), rel=0.12)
    assert measured.mean == pytest.approx(float(exact.mean()), rel=0.05)
    gradients = trial.gradients(64, 16)
    naive = torch.stack([torch.linalg.eigvalsh(gradients[:, c].T.cov())[-1] for c in range(16)]).mean()
    assert naive > 1.2 * exact[-1]


@pytest.mark.parametrize("d, largest", [(5, 1.6), (200, 1.6)])
def test_even_noise_does_not_seem_uneven(d, largest):
    """Its variance is 1 in all directions. The top eigenvalue of 32 draws is up to 12 there."""
    draw = torch.Generator().manual_seed(0)
    even = [float(strongest(torch.randn(32, d, generator=draw, dtype=D64))) for _ in range(100)]
    assert 1 < sum(even) / 100 < largest


@pytest.mark.parametrize("d", [5, 200])
def test_a_direction_that_stands_apart_has_its_variance(d):
    """100, beside 1 in all others, to 4 standard errors of 200 times 64 draws."""
    draw, scale = torch.Generator().manual_seed(0), torch.ones(d, dtype=D64)
    scale[0] = 10.0
    apart = [float(strongest(scale * torch.randn(64, d, generator=draw, dtype=D64))) for _ in range(200)]
    assert sum(apart) / 200 == pytest.approx(100, abs=4 * 100 * math.sqrt(2 / 64 / 200) + 1)


def test_where_a_direction_cannot_be_cool_lr_stays_and_line_says():
    limits = Limits(curvature=1e-6, noise_per_lr=1.0)
    batches = BatchHeat(bdl.SGHMC(0.1), TAU, 2 * TAU * 2 * AFFORDABLE, 2 * TAU, 256, 10_000)
    choice = choose_lr(limits, 0.1, batches)
    assert choice.value == pytest.approx(0.01)
    assert "batches of 256 heat the hottest direction to about 5 T. 1.1 T would take lr 0.00025" in choice.reason
    assert "40 times as slow, or data.batch_size=5125, or" in choice.reason
    assert 1 / 5125 - 1e-4 == pytest.approx((1 / 256 - 1e-4) / 40, rel=1e-3)
    affordable = replace(batches, hottest=2 * TAU * 0.9 * AFFORDABLE)
    assert choose_lr(limits, 0.1, affordable).value == pytest.approx(0.01 / 0.9 / AFFORDABLE)


@pytest.mark.parametrize("a", [0.05, 0.5])
def test_the_heat_of_a_direction_is_that_of_lyapunovs_equation(a):
    """To first order in lr, in two directions of which one alone has noise: c and 0, the mean c/2."""
    lr, tau, c = 1e-4, 1.0, 400.0
    h, noise = np.eye(2), np.diag([c, 0.0])
    for dynamics in (bdl.SGHMC(a), bdl.BAOAB(a), bdl.SGLD()):
        hot, cold = linear_step(dynamics, h, lr, tau).theta_covariance(noise).diagonal()
        assert dynamics.heat_along(c, c / 2, lr, tau) == pytest.approx(hot, rel=1e-3)
        assert dynamics.heat_along(0.0, c / 2, lr, tau) == pytest.approx(cold, rel=1e-3)
    ratio = lr * c / (2 * a * tau)
    thermostat = bdl.SGNHT(a)
    assert thermostat.heat_along(c, c / 2, lr, tau) == pytest.approx((1 + ratio) / (1 + ratio / 2))
    assert thermostat.heat_along(0.0, c / 2, lr, tau) == pytest.approx(1 / (1 + ratio / 2))
    subtracts = bdl.SGHMC(a, grad_var="estimated")
    assert subtracts.heat_along(c, c / 2, lr, tau) == pytest.approx(1 + ratio / 2)
    assert subtracts.heat_along(c, 1e9, lr, tau) == pytest.approx(ratio)  # at most all that is injected
    assert math.isclose(bdl.SGLRW().heat_along(c, c / 2, lr, tau), 1 + lr * c / 4)
