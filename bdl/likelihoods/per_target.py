"""Settings of a likelihood that are one number for all targets, or one for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from bdl.errors import ConfigError


def one_or_each(value: Any) -> float | tuple[float, ...]:
    """A number, or a tuple of one for each target from a list, an array or a tensor, which compare by their values.

    >>> one_or_each(0.5), one_or_each(np.array([1.0, 2.0]))
    (0.5, (1.0, 2.0))
    """
    plain = np.asarray(value, dtype=float).tolist()
    return value if isinstance(value, int | float) else tuple(plain) if isinstance(plain, list) else plain


def check_each(name: str, value: Any, targets: int) -> int:
    """The number of targets. Raises ConfigError where the value is one for each of another number of targets."""
    if isinstance(value, tuple) and len(value) != targets:
        raise ConfigError(f"{name} has {len(value)} numbers for {targets} targets: give one for each, or one for all")
    return targets
