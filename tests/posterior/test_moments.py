"""Tests of `bdl.posterior.moments` and `.running`.

Running moments against numpy in double precision.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bdl.posterior.moments import WeightedMoments


def in_parts(values: torch.Tensor, weights: torch.Tensor, sizes: list[int]) -> WeightedMoments:
    moments = WeightedMoments()
    for v, w in zip(values.split(sizes), weights.split(sizes), strict=True):
        moments.add(v, w)
    return moments


@pytest.mark.parametrize("sizes", [[60], [1] * 60, [1, 20, 39]], ids=["at once", "one by one", "in parts"])
@pytest.mark.parametrize("std", [1e-3, 1.0])
def test_a_small_spread_around_a_large_mean_keeps_its_digits(sizes, std):
    """Float32 resolves 1e-3 at 1e4: the values have this spread after rounding, and E x² - (E x)² does not see it."""
    generator = np.random.default_rng(0)
    values = torch.from_numpy(1e4 + std * generator.standard_normal((60, 5, 2))).float()
    weights = torch.from_numpy(generator.uniform(0.1, 2.0, 60))
    moments = in_parts(values, weights, sizes)
    mean = np.average(values.double(), 0, weights)
    expected = np.sqrt(np.average((values.double().numpy() - mean) ** 2, 0, weights))
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-14)
    np.testing.assert_allclose(moments.std, expected, rtol=1e-9)
    naive = values.square().mean(0) - values.mean(0).square()
    if std == 1e-3:
        assert not np.allclose(naive.clamp_min(0).sqrt(), expected, rtol=0.5)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 2**31))
def test_the_order_of_arrival_in_parts_does_not_matter(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    count = sum(sizes)
    values = 100 * torch.randn(count + 1, 3, generator=generator)
    weights = torch.rand(count + 1, generator=generator) + 0.01
    moments = in_parts(values, weights, [*sizes, 1])
    whole = in_parts(values, weights, [count + 1])
    torch.testing.assert_close(moments.mean, whole.mean, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(moments.std, whole.std, rtol=1e-9, atol=1e-9)


def test_values_without_weight_count_for_nothing():
    moments = WeightedMoments()
    moments.add(torch.full((2, 1), 7.0), torch.zeros(2))
    moments.add(torch.tensor([[1.0], [100.0], [3.0]]), torch.tensor([1.0, 0.0, 1.0]))
    assert (moments.mean.item(), moments.std.item(), moments.weight) == (2.0, 1.0, 2.0)
