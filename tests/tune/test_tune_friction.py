"""Tests of `bdl.tune.friction`.

Friction: the one found is near the best on a spectrum whose autocorrelations are known.
"""

import numpy as np
import pytest
import torch
from repeats import slow_where

from bdl.tune.friction import autocorrelation_time, choose_friction


def autocorrelation(a: float, e: float, lags: int = 20_000) -> np.ndarray:
    """Of θ under SGHMC at friction a and lr h = e: the recursion θ' = (2 - a - e) θ - (1 - a) θ_before + noise.

    It is a sum of powers of the two roots, which begins with 1 and (2 - a - e) / (2 - a).
    """
    one, two = np.roots([1, -(2 - a - e), 1 - a]).astype(complex)
    share = ((2 - a - e) / (2 - a) - two) / (one - two)
    lag = np.arange(lags)
    return (share * one**lag + (1 - share) * two**lag).real


def times(a: float, e: float) -> tuple[float, float]:
    """Integrated autocorrelation times of θ and of θ²."""
    rho = autocorrelation(a, e)
    return 2 * rho.sum() - 1, 2 * np.square(rho).sum() - 1


@pytest.mark.parametrize(
    "slowest, stiffest", slow_where(lambda *case: case != (1e-2, 0.5), [(3e-4, 0.3), (1e-2, 0.5), (0.05, 0.05)])
)
def test_the_friction_found_is_within_a_factor_2_of_the_best(slowest, stiffest):
    spectrum = np.geomspace(slowest, stiffest, 3)
    grid = np.geomspace(0.01, 1, 30)
    worst = [max(max(times(a, e)) for e in spectrum) for a in grid]
    best = grid[int(np.argmin(worst))]
    measured = torch.tensor([[times(0.1, e)[0] for e in spectrum]])
    found = choose_friction(measured.max() * torch.ones(2, 10), 0.1, every=1).value
    assert 0.5 <= found / best <= 2


def test_the_time_at_another_friction_finds_the_same():
    found = [choose_friction(torch.full((1, 5), times(a, 0.01)[0]), a, 1).value for a in (0.05, 0.2, 0.8)]
    assert found == pytest.approx([0.1] * 3, rel=0.05)


def test_autocorrelation_time_of_an_autoregressive_series():
    """AR(1) with coefficient .9 has the time 19. 8 chains of 4,000 draws: a standard error of about 6 %."""
    noise = torch.randn(4000, 8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    series = torch.empty_like(noise)
    series[0] = noise[0] / (1 - 0.81) ** 0.5
    for t in range(1, len(noise)):
        series[t] = 0.9 * series[t - 1] + noise[t]
    found = autocorrelation_time(series + torch.arange(8).view(1, 8, 1))  # chains that differ
    assert found.shape == (8, 4)
    assert float(found.mean()) == pytest.approx(19, rel=0.12)


def test_constant_predictions_have_the_time_1():
    assert autocorrelation_time(torch.ones(50, 2, 3)).tolist() == [[1.0] * 3] * 2
