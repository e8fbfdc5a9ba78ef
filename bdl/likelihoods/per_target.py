"""Settings of a likelihood that are one number for all targets, or one for each."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from bdl.errors import ConfigError


def one_or_each(name: str, value: Any) -> float | tuple[float, ...]:
    """A number, or a tuple of one for each target from a list, an array or a tensor, which compare by their values.

    >>> one_or_each("std", 0.5), one_or_each("std", np.array([1.0, 2.0]))
    (0.5, (1.0, 2.0))

    Raises ConfigError for anything else.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=float)
    except (TypeError, ValueError):
        array = np.zeros((0,))
    if value is None or array.ndim > 1 or array.size == 0:
        raise ConfigError(f"{name} must be a number, or a list of one number for each target, got {value!r}")
    plain = array.tolist()
    return tuple(plain) if isinstance(plain, list) else plain


def number(name: str, value: Any) -> float:
    """One number, also from a tensor or an array. Raises ConfigError for anything else."""
    plain = one_or_each(name, value)
    if isinstance(plain, tuple):
        raise ConfigError(f"{name} must be one number, got {value!r}")
    return plain


def positive_or_none(name: str, value: Any) -> float | tuple[float, ...] | None:
    """A number, or one for each target, > 0; None as it is. Raises ConfigError for others."""
    if value is None:
        return None
    value = one_or_each(name, value)
    if not all(v > 0 for v in np.atleast_1d(value)):
        raise ConfigError(f"{name} must be > 0, or null for a predicted one; got {value}")
    return value


def check_each(name: str, value: Any, targets: int) -> int:
    """The number of targets. Raises ConfigError where the value is one for each of another number of targets."""
    if isinstance(value, tuple) and len(value) != targets:
        raise ConfigError(f"{name} has {len(value)} numbers for {targets} targets: give one for each, or one for all")
    return targets
