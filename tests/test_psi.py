"""log psi: linear between bin centres, constant below, and a slope that is its derivative."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bdl.psi import log_psi_and_slope


@pytest.mark.parametrize("lean", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
@given(
    values=st.lists(st.floats(-9, 0), min_size=3, max_size=8),
    low=st.floats(-5, 5),
    widths=st.lists(st.floats(0.1, 3), min_size=8, max_size=8),
    u=st.lists(st.floats(-30, 60), min_size=1, max_size=9),
)
@settings(max_examples=100, deadline=None)
def test_it_interpolates_between_bin_centres(lean, values, low, widths, u):
    """Equal to numpy's interpolation, whose slope a central difference confirms away from the kinks."""
    centres, at = low + np.cumsum(widths)[: len(values)], np.array(u)
    for open_top in (False, True):
        last = open_top * (values[-1] - values[-2]) / (centres[-1] - centres[-2])

        def expected(v, last=last):
            return np.interp(v, centres, values) + last * np.maximum(v - centres[-1], 0)

        value, slope = log_psi_and_slope(lean(at), lean(np.array([values])), lean(centres[None]), None, open_top)
        np.testing.assert_allclose(value, expected(at), atol=1e-9)
        step = 1e-7
        smooth = np.abs(np.subtract.outer(at, centres)).min(1) > 2 * step
        difference = (expected(at + step) - expected(at - step)) / (2 * step)
        np.testing.assert_allclose(np.asarray(slope)[smooth], difference[smooth], atol=1e-4)


@pytest.mark.parametrize("lean", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
def test_every_energy_reads_its_row(lean):
    log_psi, centres = np.array([[0.0, 1.0], [0.0, 3.0]]), np.array([[0.5, 1.5], [0.0, 2.0]])
    rows = lean(np.array([0, 1]))
    value, slope = log_psi_and_slope(lean(np.ones(2)), lean(log_psi), lean(centres), rows)
    assert value.tolist() == [0.5, 1.5] and slope.tolist() == [1.0, 1.5]
    value, slope = log_psi_and_slope(
        lean(np.ones(2)), lean(log_psi), lean(centres[:1]), rows
    )  # one row of bins for all
    assert value.tolist() == [0.5, 1.5] and slope.tolist() == [1.0, 3.0]
