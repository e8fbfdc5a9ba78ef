"""Inputs that are the target in other words."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bdl.advice import override
from bdl.data.columns import Rows
from bdl.data.values import Series
from bdl.errors import BdlWarning

LEAST = 50  # rows, below which a relation one to one may be chance
SAME = 0.9999  # correlation, above which a column is the target but for rounding


def warn_of_copies(train: Rows, targets: Sequence[str], inputs: Sequence[str], place: str) -> None:
    """Warn of inputs that tell a target exactly: the target itself, 2 y + 1, or other words for each of its values."""
    for target in targets:
        seen = np.flatnonzero(train[target].notna())
        rows = train.take(seen)
        y = rows[target]
        if len(y) < LEAST:
            continue
        if copies := [name for name in inputs if is_copy(rows[name], y)]:
            warnings.warn(
                f"{place}: {', '.join(copies[:8])}{', ...' if len(copies) > 8 else ''} "
                f"{'tells' if len(copies) == 1 else 'tell'} {target} one to one in all {len(y):,} training rows. If "
                f"new rows will not have it before {target} is known, {override('data.drop', copies)} leaves it out, "
                "and scores are honest", BdlWarning, 3,
            )  # fmt: skip


def is_copy(values: Series, target: Series) -> bool:
    """Whether an input is a monotone function of numbers, or has one value for each class, and no gap.

    >>> y = pd.Series([1.0, 2.0, 4.0, 8.0])
    >>> is_copy(-np.log(y), y), is_copy(pd.Series([1.0, 2.0, 3.0, 3.5]).iloc[::-1].reset_index(drop=True), y)
    (True, True)
    >>> is_copy(pd.Series(["no", "yes"] * 3), pd.Series([0, 1] * 3)), is_copy(pd.Series([1, 2, 3, 1]), y)
    (True, False)
    """
    if values.isna().any():
        return False
    numeric = all(pd.api.types.is_numeric_dtype(each) for each in (values, target))
    if numeric and not pd.api.types.is_bool_dtype(target) and target.nunique() > 2:
        x, y = (each.to_numpy(np.float64) for each in (values, target))
        order = np.argsort(y, kind="stable")
        before, after, of_target = x[order][:-1], x[order][1:], y[order][:-1] == y[order][1:]
        one_to_one = ((before == after) == of_target).all()
        if one_to_one and ((before <= after).all() or (before >= after).all()):
            return True
        with np.errstate(all="ignore"):  # a constant, or numbers whose squares overflow, are no copies
            return bool(abs(np.corrcoef(x, y)[0, 1]) > SAME)
    try:
        (x, levels), (y, classes) = (pd.factorize(each) for each in (values, target))
    except TypeError:  # lists, which are refused later
        return False
    return 1 < len(levels) == len(classes) < len(y) / 2 and len(np.unique(x * len(classes) + y)) == len(classes)
