"""The rows of a fit: which of them count, and how much."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.errors import ConfigError


def rows_that_count(X: np.ndarray, y: np.ndarray, groups: Any, weights: Any) -> tuple[Any, Any, Any, Tensor | None]:
    """X, y and groups of the rows whose weight is above 0, and their weights (n,); None for 1 each.

    Raises ConfigError unless the weights are one finite number >= 0 for each row, or one for all, and two are above 0.
    """
    if weights is None:
        return X, y, groups, None
    given = np.asarray(weights, dtype=np.float64)
    w = given if given.ndim else np.full(len(y), given)
    if w.shape != (len(y),) or not np.isfinite(w).all() or (w < 0).any():
        raise ConfigError(f"sample_weight must have one finite number >= 0 for each of {len(y)} rows: correct it")
    counts = w > 0
    if counts.sum() < 2:
        raise ConfigError("sample_weight is zero in all rows but one, or in all: give more rows a weight above 0")
    kept = groups if groups is None or len(groups) != len(y) else np.asarray(groups).ravel()[counts]
    return X[counts], y[counts], kept, None if (w == 1).all() else torch.from_numpy(w[counts])
