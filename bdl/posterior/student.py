"""Student's quantile, which widens a standard error from few chains. The import of scipy alone would take 0.2 s."""

from __future__ import annotations

import functools
import math
import statistics


@functools.cache
def student_factor(chains: int) -> float:
    """t/1.96 with the 97.5 % quantile t of Student's law of chains - 1 >= 1 degrees of freedom.

    >>> round(student_factor(2), 4), round(student_factor(1001), 4)
    (6.4829, 1.0012)
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # halves of an interval of angles
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, chains - 1) < 0.95 else (low, middle)
    return math.sqrt(chains - 1) * math.tan(low) / statistics.NormalDist().inv_cdf(0.975)


def _inside(angle: float, degrees: int) -> float:
    """P(|t| < √degrees tan(angle)), by Abramowitz & Stegun (1964), eqs. 26.7.3 (odd) and 26.7.4 (even)."""
    odd, cos, total = degrees % 2, math.cos(angle), 0.0
    term = cos**odd
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * cos * cos
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
