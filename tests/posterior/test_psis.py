"""Tests of `bdl.posterior.psis`."""

from __future__ import annotations

import numpy as np
import pytest
from arviz_stats.base.array import array_stats

from bdl.posterior.psis import smoothed_weights


@pytest.mark.parametrize("draws", [25, 60, 225, 226, 400])
@pytest.mark.parametrize("spread", [0.05, 1.0, 4.0])
def test_weights_and_k_are_those_of_arviz(draws, spread):
    ratios = spread * np.random.default_rng(draws).standard_t(4, (130, draws))
    weights, k = smoothed_weights(ratios)
    expected, expected_k = array_stats.psislw(-ratios, axis=1)  # it takes log densities
    assert np.allclose(weights, expected, rtol=1e-7, atol=1e-9) and np.allclose(k, expected_k, rtol=1e-7, atol=1e-9)
    assert np.allclose(np.exp(weights).sum(1), 1)


def test_a_tail_of_equal_ratios_has_no_fit():
    ratios = np.zeros((2, 50))
    ratios[:, 0], ratios[1] = -1.0, np.random.default_rng(0).normal(size=50)
    with np.errstate(all="ignore"):
        weights, k = smoothed_weights(ratios)
    assert not np.isfinite(weights[0]).all() and np.isfinite(k[1]) and np.isfinite(weights[1]).all()
