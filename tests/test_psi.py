"""log psi: linear between bin centres, constant outside, and a slope that is its derivative."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bdl.psi import log_psi_and_slope

D64 = torch.float64


@given(
    values=st.lists(st.floats(-9, 0), min_size=3, max_size=8),
    low=st.floats(-5, 5),
    width=st.floats(0.1, 3),
    u=st.lists(st.floats(-30, 60), min_size=1, max_size=9),
)
@settings(max_examples=100, deadline=None)
def test_it_interpolates_between_bin_centres(values, low, width, u):
    """Equal to numpy's interpolation, whose slope a central difference confirms away from the kinks."""
    centres = low + (np.arange(len(values)) + 0.5) * width
    log_psi, at = torch.tensor([values], dtype=D64), torch.tensor(u, dtype=D64)
    low_row, width_row = (torch.tensor([v], dtype=D64) for v in (low, width))
    value, slope = log_psi_and_slope(at, log_psi, low_row, width_row)
    np.testing.assert_allclose(value, np.interp(u, centres, values), atol=1e-9)
    step = 1e-6 * width
    smooth = np.abs(np.subtract.outer(u, centres)).min(1) > 2 * step
    difference = (np.interp(at + step, centres, values) - np.interp(at - step, centres, values)) / (2 * step)
    np.testing.assert_allclose(slope[smooth], difference[smooth], atol=1e-5 / width)


def test_every_energy_reads_its_row():
    log_psi = torch.tensor([[0.0, 1.0], [0.0, 3.0]], dtype=D64)
    low, width = torch.zeros(2, dtype=D64), torch.ones(2, dtype=D64)
    value, slope = log_psi_and_slope(torch.ones(2, dtype=D64), log_psi, low, width, rows=torch.tensor([0, 1]))
    assert value.tolist() == [0.5, 1.5] and slope.tolist() == [1.0, 3.0]
