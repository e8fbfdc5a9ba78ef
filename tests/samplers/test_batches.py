"""Tests of `bdl.samplers.batch_noise` and `.dynamics.subtracting`.

Real mini-batches of a regression: subtracting batch noise is right for independent batches, and for those alone.
"""

from __future__ import annotations

import pytest
import torch

import bdl
from bdl.data import TensorBatches

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


@pytest.mark.slow  # test_laws.py subtracts an estimate too
@pytest.mark.parametrize(
    "dynamics",
    [bdl.SGLD(grad_var="estimated"), bdl.SGNHT(1.0, rate=3e-3)],
    ids=str,
)
def test_noise_of_independent_batches_is_subtracted(dynamics):
    """The temperature is right within 6%, six standard errors. With shuffled epochs it is at least 30% too low."""
    assert heat(dynamics, replacement=True)[0] == pytest.approx(1, abs=0.06)
    assert heat(dynamics, replacement=False)[0] < 0.7


def test_batches_heat_by_t_eff_or_less():
    """T_eff is right for independent batches, and an upper bound for those of shuffled epochs."""
    (independent, predicted), (shuffled, bound) = (heat(bdl.SGLD(), replacement) for replacement in (True, False))
    assert predicted == pytest.approx(bound, rel=0.05) and predicted > 1.5
    assert independent == pytest.approx(predicted, rel=0.06)
    assert shuffled < bound - 0.4
