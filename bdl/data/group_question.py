"""Columns that repeat like the number of a person, whose rows should perhaps not be divided among splits."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping

import numpy as np
import pandas as pd

from bdl.advice import override
from bdl.data.columns import Columns, Rows, TableSplit
from bdl.data.values import Series, as_texts, is_text
from bdl.errors import BdlWarning

NAMED = re.compile(
    r"(?i)(.*[\W_])?(id|nr|no|person|patient|subject|user|customer|client|student|household|participant)s?"
)
FEWEST = 10  # values, below which rows of one value are an ordinary category
BALANCED = 20, 20.0  # so many values with about as many rows each, and with so many rows at most, name things
UNEVEN = 0.3  # standard deviation over mean of the numbers of rows, up to which they are about as many
ALIKE = 0.3  # share of the target's variance between values that is not explained by their order
SURE = 1e-6  # probability of the test statistic where rows of one value are no more alike


def warn_of_groups(rows: Mapping[str, Rows], columns: Columns, split: TableSplit, place: str) -> None:
    """Warn of columns whose values, like those of persons, have rows in training and test rows that are alike.

    Nothing is asked where the user has chosen groups or an order.
    """
    if split.group is not None or split.order is not None or not len(rows["test"]):
        return
    used = {*columns.targets, columns.exposure, columns.weight, split.column}
    train, test = rows["train"], rows["test"]
    for name in (name for name in train.columns if name not in used):
        values = train[name]
        if not _may_name(values) or not _names_things(values):
            continue
        alike = [target for target in columns.targets if _are_alike(values, train[target])]
        shared = int(as_texts(test[name]).isin(as_texts(values).unique()).sum())
        if not alike or shared < len(test) / 2:
            continue
        count = values.nunique()
        warnings.warn(
            f"{place}: {name} repeats as the numbers of persons do: {count} values with {len(values) / count:.1f} rows "
            f"on average, which are alike in {alike[0]}, and {shared} of {len(test)} test rows share theirs with "
            f"training rows. If new rows will be of others, scores are too good: {override('data.group', name)} keeps "
            "rows of one value on one side", BdlWarning, 3,
        )  # fmt: skip


def _may_name(values: Series) -> bool:
    """Whether a column holds whole numbers or texts, of which each is met twice on average and none in most rows."""
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if not (numeric or is_text(values).all()) or values.isna().any():
        return False
    if numeric and not (values == values.round()).all():
        return False
    return FEWEST <= values.nunique() <= len(values) / 2


def _names_things(values: Series) -> bool:
    """Whether a column is called so, its rows lie together in the file, or its values have few rows, equally many."""
    counts = values.value_counts().to_numpy()
    if counts.max() > len(values) / 2:
        return False
    codes = pd.factorize(values)[0]
    together = np.count_nonzero(np.diff(codes)) + 1 == len(counts)
    many, most = BALANCED
    even = len(counts) >= many and counts.mean() <= most and counts.std() <= UNEVEN * counts.mean()
    return together or even or NAMED.fullmatch(str(values.name)) is not None


def _are_alike(values: Series, target: Series) -> bool:
    """Whether targets of one value are more alike than those of neighbouring values.

    F = mean of (m_(i+1) - m_i)^2 / (1/n_i + 1/n_(i+1)) over neighbouring values in order, with means m_i of n_i rows,
    over the variance within values. Where the target follows the value smoothly, as it follows an age, neighbours have
    about the same mean, and F is about 1; the order of numbers of persons says nothing, and F shows them.
    """
    from scipy.stats import f

    seen = target.notna().to_numpy()
    y, x = target[seen], values[seen]
    y = (y.rank() if pd.api.types.is_numeric_dtype(y) else (y == y.mode()[0])).astype(float)
    order: Series = pd.to_numeric(x, errors="coerce")
    by_value = y.groupby((x if order.isna().any() else order).to_numpy())
    counts, means = by_value.size().to_numpy(), by_value.mean().to_numpy()
    free = len(y) - len(counts)
    within = float(((y - by_value.transform("mean")) ** 2).sum()) / max(free, 1)
    between = float((np.diff(means) ** 2 / (1 / counts[1:] + 1 / counts[:-1])).mean())
    if free < 1 or between == 0:
        return False
    if within == 0:
        return True
    ratio = between / within
    share = (ratio - 1) / (ratio - 1 + counts.mean())
    return bool(share > ALIKE and f.sf(ratio, 2 * (len(counts) - 1) / 3, free) < SURE)
