"""The friction at which the slowest prediction moves fastest."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdl.tune.choice import Choice

SMALLEST_FRICTION, LARGEST_FRICTION = 0.01, 1.0
WINDOW = 5.0  # autocorrelation times up to which autocorrelations are summed (Sokal 1997)


def autocorrelation_time(series: Tensor) -> Tensor:
    """(C, quantities) integrated autocorrelation time 1 + 2 Σ ρ(t), in draws, of series (draws, C, quantities).

    The sum ends at the first lag that is WINDOW times the sum so far (Sokal 1997, section 3). A series shorter than
    that gives too small a number. A constant series gives 1. Each chain has its own mean, so
    that differences between chains do not count.
    """
    n = len(series)
    centred = (series - series.mean(0)).double()
    spectrum = torch.fft.rfft(centred, 2 * n, dim=0)
    covariance = torch.fft.irfft(spectrum.abs().square(), 2 * n, dim=0)[:n]
    rho = covariance / covariance[:1].clamp_min(torch.finfo(torch.float64).tiny)
    times = 2 * rho.cumsum(0) - 1  # (lags, C, quantities)
    lags = torch.arange(n, device=series.device).view(-1, 1, 1)
    ended = lags >= WINDOW * times
    first = torch.where(ended.any(0), ended.int().argmax(0), n - 1)
    return times.gather(0, first.unsqueeze(0)).squeeze(0).clamp_min(0).where(covariance[0] > 0, 1.0)


def choose_friction(times: Tensor, friction: float, every: int) -> Choice:
    """The friction at which the slowest direction is forgotten fastest.

    times: (C, quantities) integrated autocorrelation times of predictions, in draws that lie `every` steps apart, at
    this friction. Under SGHMC a direction of curvature h has the time 2 a / (lr h), at any friction: the sum over lags
    of the autocorrelation of the recursion in `Limits.by_energy`, to first order in lr h. Its square, which rings with
    the energy, has the time 2 / a below critical damping. The larger of the two is smallest at a = sqrt(lr h), and the
    measured time tells lr h. The slowest prediction is the 90 % quantile over predictions of the mean over chains.
    """
    slowest = float(times.mean(0).quantile(0.9)) * every
    best = math.sqrt(2 * friction / max(slowest, 2 * friction))
    value = float(f"{min(LARGEST_FRICTION, max(SMALLEST_FRICTION, best)):.2g}")
    return Choice("friction", value, f"predictions are correlated over {slowest:,.0f} steps at friction {friction:g}")
