"""Where distribution functions reach a probability."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ROOT_WIDTH = 1e-9  # largest width of an interval that holds a quantile, in units of the standard deviation
CLOSE = 1e-6  # largest error of the probability of a quantile
ROOT_STEPS = 120  # half of them halve the interval, which then is as narrow as double precision allows


def first_count(cdf: Callable[[Tensor], Tensor], q: float, low: Tensor, high: Tensor) -> Tensor:
    """(n, k) smallest whole numbers in (low, high] with cdf >= q, by bisection."""
    while True:
        middle = ((low + high) / 2).floor()
        if not bool(((middle > low) & (middle < high)).any()):  # beyond 2**53 doubles are more than 1 apart
            break
        below = cdf(middle) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high.clamp_min(0)


def root(
    cdf: Callable[[Tensor], Tensor], q: float | Tensor, low: Tensor, high: Tensor, width: Tensor, close: float | Tensor
) -> Tensor:
    """(n, k) points in [low, high] where cdf = q to `close`, or to `width`: bisection and the secant take turns.

    The secant alone may stall where the function is steep, bisection alone needs three times as many steps.
    """
    q = torch.as_tensor(q, dtype=low.dtype).expand_as(low)
    at_low, at_high = -q, 1 - q  # cdf - q
    root, done = (low + high) / 2, torch.zeros_like(low, dtype=torch.bool)
    for i in range(ROOT_STEPS):
        x = (low + high) / 2 if i % 2 == 0 else low - at_low * (high - low) / (at_high - at_low)
        f = cdf(x) - q
        below = f < 0
        low, at_low = torch.where(below, x, low), torch.where(below, f, at_low)
        high, at_high = torch.where(below, high, x), torch.where(below, at_high, f)
        root = torch.where(done, root, x)
        done |= (f.abs() <= close) | (high - low <= width)
        if bool(done.all()):
            break
    return root
