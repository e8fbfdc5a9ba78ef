"""log psi, the weighting's function of energy: one piecewise-linear function, its value and its slope.

The sampler's gradient multiplier, the importance weights and the report's figure all evaluate it here, so they cannot
disagree.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_psi_and_slope(
    u: Tensor, log_psi: Tensor, low: Tensor, width: Tensor, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
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
    inside = x.clamp(0, last)
    j = inside.long().clamp_(max=last - 1)
    rows = torch.zeros_like(j) if rows is None else rows
    left, right = log_psi[rows, j], log_psi[rows, j + 1]
    rise = right - left
    return left + (inside - j) * rise, rise / width * (x == inside)
