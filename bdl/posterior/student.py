"""Student's quantile, which widens a standard error from few chains."""

from __future__ import annotations

import functools


@functools.cache
def student_factor(chains: int) -> float:
    """t/1.96 with the 97.5 % quantile t of Student's law of chains - 1 >= 1 degrees of freedom.

    >>> round(student_factor(2), 4), round(student_factor(1001), 4)
    (6.4829, 1.0012)
    """
    from scipy.special import ndtri, stdtrit  # scipy.stats is slow to import

    return float(stdtrit(chains - 1, 0.975) / ndtri(0.975))
