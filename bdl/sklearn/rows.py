"""The rows of a fit: which of them count, how much, and which belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import column_or_1d
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
    kept = groups if groups is None or len(groups) != len(y) else column_or_1d(groups)[counts]
    return X[counts], y[counts], kept, None if (w[counts] == 1).all() else torch.from_numpy(w[counts])


def group_numbers(groups: Any, rows: int, name: str) -> Tensor | None:
    """(rows,) int64, equal for rows of one group. Raises ConfigError for another number of rows, and for gaps."""
    if groups is None:
        return None
    codes, _ = pd.factorize(pd.Series(column_or_1d(groups)))
    if len(codes) != rows or (codes < 0).any():
        raise ConfigError(f"{name} has {(codes >= 0).sum()} values for {rows} rows: give each row its group")
    return torch.from_numpy(codes)
