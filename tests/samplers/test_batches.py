"""Tests of `bdl.samplers.batch_noise` and `.dynamics.subtracting`.

Real mini-batches of a regression: subtracting batch noise is right for independent batches, and for those alone.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import bdl
from bdl.data import TensorBatches
from bdl.samplers.batch_noise import BatchNoise, left_by_a_pass
from tests.helpers.oracles import linear_step

N, D, BATCH, CHAINS = 100, 8, 2, 256
T, LR = 0.2, 0.005  # θ relaxes in 1 / lr = 200 steps, or 4 epochs; the noise ratio is about .6


def heat(dynamics, replacement: bool) -> tuple[float, float]:
    """tr(A Cov θ) / (d T) and T_eff / T for U = Σ (y - xθ)²/2 with Hessian A. The first is 1 under exp(-U/T).

    After 16 epochs, in which a start that is off has relaxed by exp(-8) in θ². Squares are correlated over 4 epochs,
    so 50 epochs of 2,048 coordinates have a standard error of sqrt(2 · 4 / 50 / 2048) = 0.9 %. 12 epochs have 1.8 %,
    enough for shuffled epochs, which are at least 30 % too cold.
    """
    draw = torch.Generator().manual_seed(0)
    x = torch.linalg.qr(torch.randn(N, D, generator=draw)).Q * N**0.5  # A = N
    y = torch.randn(N, generator=draw)
    loader = TensorBatches(x, y, BATCH, chains=CHAINS, replacement=replacement)
    theta = torch.zeros(CHAINS, D, requires_grad=True)
    sampler = bdl.Sampler(
        [theta], dynamics, num_data=N, lr=LR, temperature=T, prior=bdl.Uniform(), chains=CHAINS, seed=1
    )
    total, count, mean = 0.0, 0, x.T @ y / N
    for epoch in range(66 if replacement else 28):
        for xb, yb in loader:
            theta.grad = ((xb @ theta.detach().unsqueeze(-1)).squeeze(-1) - yb).unsqueeze(1).bmm(xb).squeeze(1) / BATCH
            sampler.step()
        if epoch >= 16:
            total, count = total + N * (theta.detach() - mean).square().mean().item(), count + 1
    return total / count / T, sampler.t_eff.mean().item() / T


def test_independent_batches_heat_by_t_eff_and_shuffled_by_less():
    """T_eff is right for independent batches, and too high for those of shuffled epochs."""
    (independent, predicted), (shuffled, bound) = (heat(bdl.SGLD(), replacement) for replacement in (True, False))
    assert predicted == pytest.approx(bound, rel=0.05) and predicted > 1.5
    assert independent == pytest.approx(predicted, rel=0.06)
    assert shuffled < bound - 0.4


@pytest.mark.parametrize(
    "dynamics, absolute, share",
    [
        *((bdl.SGHMC(a), 1 / (3 * (2 - a)), (2 + a) / 3) for a in (0.02, 0.1, 0.5, 1.0)),
        *((bdl.BAOAB(a), 1 / 12, (2 + a) / 3) for a in (0.02, 0.1, 0.5, 1.0)),
        (bdl.SGLD(), 1 / 3, 1.0),
    ],
    ids=str,
)
def test_what_the_motion_of_theta_adds_is_as_the_docstring_says(dynamics, absolute: float, share: float):
    """To leading order in lr h, by Lyapunov's equation: the noise ratio of exact gradients, and the share of noise.

    Power: half the squared difference of two gradients has (lr h)² / (2 a (2 - a)), 75 times as much at a = 0.02.
    """
    a, lr, tau, h = dynamics.friction, 1e-4, 1.0, np.eye(1)
    unit = lr / (2 * a * tau)
    step = linear_step(dynamics, h, lr, tau)
    exact = unit * step.second_difference(h, np.zeros((1, 1))).item() / 6
    noise = step.second_difference(h, h).item() / 6 - exact / unit
    assert exact == pytest.approx(absolute * lr**2, rel=0.01)
    assert noise - 1 == pytest.approx(share * lr, rel=0.01)


@pytest.mark.parametrize("dynamics", [bdl.SGLD(), bdl.SGHMC(0.02), bdl.BAOAB(0.02), bdl.SGNHT(0.05)], ids=str)
def test_exact_gradients_have_next_to_no_noise(dynamics):
    """Gradients of all the data in a plain loop, which does not tell the sampler so: T_eff is T within 1 %.

    lr h = 0.1. Half the squared difference of two gradients would show 0.005 / a, up to a quarter of T.
    """
    theta = torch.zeros(64, 50, requires_grad=True, dtype=torch.float64)
    sampler = bdl.Sampler([theta], dynamics, num_data=N, lr=0.1, prior=bdl.Uniform(), chains=64)
    for _ in range(1500):
        theta.grad = theta.detach().clone()
        sampler.step()
    assert 0 < sampler.noise_ratio.mean() < 0.01
    assert sampler.t_eff.mean().item() == pytest.approx(1, abs=0.02 if isinstance(dynamics, bdl.SGNHT) else 0.01)


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 10])
def test_disjoint_batches_have_noise_of_draw_without_replacement(batches: int):
    """At one θ, where (1 - B/N) S²/B is exact, to 5 %: 1,000 chains. Two passes in three batches leave a third of B/N.

    Power: without the correction it is S²/B, at two batches of a pass twice as much, and not 0 for all the data.
    """
    items = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draw = torch.Generator().manual_seed(1)
    size, chains, noise = 60 // batches, 1000, BatchNoise()
    for step in range(400):
        if step % batches == 0:
            order = torch.rand(chains, 60, generator=draw).argsort(1).view(chains, batches, size)
        noise.observe(step, items[order[:, step % batches]].mean(-1, keepdim=True))
    assert noise.variance is not None
    right = (1 - 1 / batches) * items.var() * batches / 60
    estimate = float(left_by_a_pass(batches) * noise.variance.mean())
    across = 1 / 3 / batches if batches in (2, 3) else 0.0  # of three batches, some lie in another pass
    assert (1 - across) * right * 0.95 <= estimate <= right * 1.05
    assert batches > 1 or estimate == 0


def test_a_sampler_corrects_for_disjoint_batches():
    """In T_eff, in noise_ratio and in what is subtracted."""
    theta = torch.zeros(3, requires_grad=True, dtype=torch.float64)
    sampler = bdl.Sampler([theta], bdl.SGHMC(grad_var="estimated"), num_data=N, lr=1e-3)
    for sign in (1, -1, 1):
        theta.grad = torch.full_like(theta, sign)
        sampler.step()
    ratio = sampler.noise_ratio.item()
    sampler.host = replace(sampler.host, noise_share=0.75)
    assert sampler.noise_ratio.item() == pytest.approx(0.75 * ratio)
    torch.testing.assert_close(
        sampler.host.of_one_batch(sampler.batch_noise.variance), 0.75 * sampler.batch_noise.variance
    )


def test_a_step_that_is_seen_twice_does_not_count_twice():
    """As when an error ends a step after the gradient was read, and the step is made again."""
    noise = BatchNoise()
    for step, g in ((0, 1.0), (1, -1.0), (1, -1.0), (2, 1.0)):
        noise.observe(step, torch.tensor([g]))
    assert noise.variance is not None and noise.variance.item() == pytest.approx(16 / 6)
