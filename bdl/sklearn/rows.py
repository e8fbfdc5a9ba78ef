"""The rows of a fit: what X and y hold, which rows count, how much, and which belong together."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.sparse import issparse
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from bdl.data.values import holds_complex
from bdl.display import count_of
from bdl.errors import BdlWarning, ConfigError


def rows_that_count(X: np.ndarray, y: np.ndarray, groups: Any, weights: Any) -> tuple[Any, Any, Any, Tensor | None]:
    """X, y and groups of the rows whose weight is above 0, and their weights (n,); None for 1 each.

    Raises ConfigError unless the weights are one finite number >= 0 for each row, or one for all, and two are above 0.
    """
    if weights is None:
        return X, y, groups, None
    try:
        given = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        given = np.full(0, np.nan)  # which is refused
    w = given if given.ndim else np.full(len(y), given)
    if w.shape != (len(y),) or not np.isfinite(w).all() or (w < 0).any():
        raise ConfigError(
            f"sample_weight must have one finite number >= 0 for each of {count_of(len(y), 'row')}: correct it"
        )
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


def checked_inputs(X: Any) -> Any:
    """X. Raises ConfigError for columns of a DataFrame that are no numbers, or have one name."""
    if not isinstance(X, pd.DataFrame):
        return X
    if not X.columns.is_unique:
        twice = X.columns[X.columns.duplicated()][0]
        raise ConfigError(f"X has several columns named {twice!r}: give each a name of its own")
    for name in X:
        column: Any = X[name]
        kind = _not_numbers(column)
        if kind is not None:
            raise ConfigError(
                f"X: column {name!r} holds {kind}: make numbers of it, as sklearn.preprocessing.OneHotEncoder does of "
                "categories; bdl.data.read_table reads tables with text, dates and gaps"
            )
    return X


def checked_numbers(y: Any) -> Any:
    """y of a regression. Raises ConfigError for text, dates and values that are missing."""
    return _checked(y, lambda values, name: _refuse(_not_numbers(values), name))


def _refuse(kind: str | None, name: str) -> None:
    if kind is not None:
        classes = ": BayesianMLPClassifier predicts classes" if kind.startswith("text") else ": give numbers"
        raise ConfigError(f"{name} holds {kind}, and BayesianMLPRegressor predicts numbers{classes}")


def checked_classes(y: Any) -> Any:
    """y of a classification; numbers in an array of objects as numbers.

    Raises ConfigError for dates, values that are missing, words beside numbers, and probabilities. Warns of classes
    that may be one-hot.
    """
    return _checked(y, _refuse_classes)


def _refuse_classes(values: pd.Series, name: str) -> None:
    kinds = {"a word" if isinstance(v, str) else "a number" for v in values} if values.dtype.kind == "O" else set()
    if values.dtype.kind in "mM":
        raise ConfigError(f"{name} holds dates or times: give classes as words or whole numbers")
    if len(kinds) > 1:
        raise ConfigError(f"{name} holds words and numbers, such as {values[0]!r}: write all classes as words")


def _checked(y: Any, refuse: Callable[[pd.Series, str], None]) -> Any:
    """y, where numbers in arrays of objects are numbers. refuse: called with each column and its name."""
    if y is None or issparse(y):
        return y
    try:
        given = y if isinstance(y, pd.Series | pd.DataFrame | pd.Index) else np.asarray(y)
    except ValueError:  # rows of several lengths, which scikit-learn refuses
        return y
    if given.ndim not in (1, 2):
        return y
    columns = pd.DataFrame(given).infer_objects()
    for j, label in enumerate(columns):
        values: Any = columns[label]
        name = "y" if given.ndim == 1 else f"y[:, {j}]"
        if values.dtype.kind != "f" and (gaps := values.isna()).any():  # scikit-learn refuses NaN among floats
            first = int(gaps.to_numpy().argmax())
            raise ConfigError(f"{name} has {count_of(int(gaps.sum()), 'missing value')}, the first in row {first}: "
                              "leave these rows out")  # fmt: skip
        refuse(values, name)
    return columns.to_numpy().reshape(given.shape) if np.asarray(given).dtype.kind == "O" else y


def refuse_probabilities(y: np.ndarray) -> None:
    """Raise ConfigError for rows y (n, k) of probabilities, and warn of rows with a single 1 among zeros."""
    numeric = y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "fiub"
    if not numeric or (y < 0).any() or not np.allclose(y.sum(1, dtype=float), 1, atol=1e-4):
        return
    if not np.isin(y, (0, 1)).all():
        raise ConfigError(
            f"y holds probabilities of {(k := y.shape[1])} classes, which sum to 1: give each row once for each class, "
            f"weighted: fit(np.repeat(X, {k}, axis=0), np.tile(np.arange({k}), len(X)), sample_weight=y.ravel(), "
            f"groups=np.repeat(np.arange(len(X)), {k}))"
        )
    warnings.warn(
        f"y has a single 1 in each row of {y.shape[1]} columns, which are fitted as labels independent of each other: "
        "if they are one-hot classes, give y.argmax(1)", BdlWarning, stacklevel=3,
    )  # fmt: skip


def _not_numbers(values: pd.Series) -> str | None:
    """What a column holds that is no number, in words; None for numbers."""
    if values.dtype.kind in "mM":
        return "dates or times"
    if holds_complex(values):
        return "complex numbers (Complex data not supported)"  # the words for which scikit-learn's checks look
    if values.dtype.kind in "biuf" or pd.api.types.is_numeric_dtype(values):
        return None
    texts = [v for v in values if isinstance(v, str) and not _is_number(v)]
    return f"text ({texts[0]!r})" if texts else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
