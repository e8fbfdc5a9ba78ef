"""log psi, the weighting's function of energy: one piecewise-linear function, its value and its slope.

The sampler's gradient multiplier, the importance weights and the report's figure all evaluate it here, so they cannot
disagree. Arrays are tensors, or NumPy's: on the few numbers of one step, NumPy takes less than half of
torch's time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

Array = Any  # a Tensor or a NumPy array


def log_psi_and_slope(
    u: Array, log_psi: Array, low: Array, width: Array, rows: Array | None = None
) -> tuple[Array, Array]:
    """log psi and its exact slope d log psi / du at the energies u (C,), nats; both (C,).

    log_psi is linear between the bin centres `low + (i + 1/2) width` and constant outside of them.

    Args:
        log_psi: (R, m) values at the centres of m bins; one row per chain, or one row for all.
        low: (R,) lower edge of the first bin, nats.
        width: (R,) width of a bin, nats.
        rows: (C,) which row each energy reads; None reads the first one.
    """
    last = log_psi.shape[1] - 1
    x = (u - low) / width - 0.5  # in units of bins from the first centre
    inside = clip(x, 0, last)
    j = clip(whole(inside), 0, last - 1)
    rows = 0 * j if rows is None else rows
    left, right = log_psi[rows, j], log_psi[rows, j + 1]
    rise = right - left
    return left + (inside - j) * rise, rise / width * (x == inside)


def lean(tensor: Tensor) -> Array:
    """The same memory as a NumPy array on a CPU; elsewhere the tensor."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def clip(x: Array, low: float, high: float) -> Array:
    return x.clamp(low, high) if isinstance(x, Tensor) else np.minimum(np.maximum(x, low), high)


def exp(x: Array) -> Array:
    return x.exp() if isinstance(x, Tensor) else np.exp(x)


def whole(x: Array) -> Array:
    """The whole part of each number, as an index."""
    return x.long() if isinstance(x, Tensor) else x.astype(np.int64)
