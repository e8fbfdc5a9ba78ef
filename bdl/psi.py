"""log psi, the weighting's function of energy: one piecewise-linear function, its value and its slope.

The sampler's gradient multiplier, the importance weights and the report's figure all evaluate it here, so they cannot
disagree. Arrays are tensors, or NumPy's: on the few numbers of one step, NumPy takes less than half of
torch's time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Any  # a Tensor or a NumPy array


def log_psi_and_slope(
    u: Array, log_psi: Array, centres: Array, rows: Array | None = None, open_top: bool = False
) -> tuple[Array, Array]:
    """log psi and its exact slope d log psi / du at the energies u (C,), nats; both (C,).

    log_psi is linear between the bin centres and constant below the first one.

    Args:
        log_psi: (R, m) values at the centres of m bins; one row per chain, or one row for all.
        centres: (R, m) or (1, m) ascending bin centres, nats.
        rows: (C,) which row of log_psi each energy reads; None reads the first one.
        open_top: above the last centre log psi goes on with its last slope, because the highest region has no upper
            edge (Liang 2024, E_m = {U > u_(m-1)}). False: it is constant there.
    """
    m = log_psi.shape[1]
    rows = 0 if rows is None else rows
    at = rows if len(centres) > 1 else 0
    j = clip(last_below(u, centres, at), 0, m - 2)
    left, right = log_psi[rows, j], log_psi[rows, j + 1]
    start, width = centres[at, j], centres[at, j + 1] - centres[at, j]
    x = (u - start) / width  # 0 at the centre of bin j, 1 at the next one
    inside = clip(x, 0, np.inf if open_top else 1)
    rise = right - left
    return left + inside * rise, rise / width * (x == inside)


def last_below(u: Array, points: Array, rows: Array) -> Array:
    """(C,) index of the last of the ascending points (R, m) that is not above u (C,), -1 below all of them.

    rows: (C,) the row of points that each energy reads; 0 where there is only one.
    """
    if len(points) > 1:
        return (points[rows] <= u[:, None]).sum(1) - 1
    if isinstance(u, Tensor):
        return torch.searchsorted(points[0], u.contiguous(), right=True) - 1
    return points[0].searchsorted(u, side="right") - 1


def lean(tensor: Tensor) -> Array:
    """The same memory as a NumPy array on a CPU; elsewhere the tensor."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def clip(x: Array, low: float, high: float) -> Array:
    return x.clamp(low, high) if isinstance(x, Tensor) else np.minimum(np.maximum(x, low), high)


def exp(x: Array) -> Array:
    return x.exp() if isinstance(x, Tensor) else np.exp(x)


def larger(x: Array | float, y: float | Tensor) -> Array:
    """The larger of x and a number y, which is a () tensor in a graph."""
    return x.clamp_min(y) if isinstance(x, Tensor) else np.maximum(x, y)
