"""Inputs that are the target in other words."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bdl.advice import override
from bdl.data.columns import Rows
from bdl.data.values import Series
from bdl.errors import BdlWarning

LEAST = 50  # rows, below which a relation one to one may be chance
MOST_CLASSES = 20
BY_CHANCE = 1e9  # orders of the rows, of which one has the classes side by side
SAME = 0.9999  # correlation of values or ranks, above which a column is a function of the target but for rounding
FEW = 2_000  # rows whose ranks are compared first
Array = np.ndarray[Any, np.dtype[np.float64]]


def warn_of_copies(train: Rows, targets: Sequence[str], inputs: Sequence[str], place: str) -> None:
    """Warn of inputs that tell a target exactly: the target itself, 2 y + 1, or other words for each of its values.

    Inputs that tell it by thresholds are named too: classes that are x > 3, and an input that is y > 3.
    """
    for target in targets:
        rows = train.take(np.flatnonzero(train[target].notna()))
        y = rows[target]
        if len(y) < LEAST:
            continue
        told: dict[str, list[str]] = {}
        for name in inputs:
            if (relation := _relation(rows[name], y)) is not None:
                told.setdefault(relation, []).append(name)
        for relation, names in told.items():
            verb = relation if len(names) > 1 else relation.replace("tell", "tells", 1)
            warnings.warn(
                f"{place}: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''} {verb.format(target)} in all "
                f"training rows that have both. If new rows will not have it before {target} is known, "
                f"{override('data.drop', names)} leaves it out, and scores are honest", BdlWarning, 3,
            )  # fmt: skip


def _relation(values: Series, target: Series) -> str | None:
    """What an input tells of a target, over the rows that have both; None where it does not tell it."""
    both = (values.notna() & target.notna()).to_numpy()
    if both.sum() < LEAST:
        return None
    values, target = values[both], target[both]
    try:
        if is_copy(values, target):
            return "tell {} one to one"
        if is_cut(values, target):
            return "tell the class {} exactly, by thresholds"
        return "tell thresholds of {} exactly" if is_cut(target, values) else None
    except TypeError:  # lists, which are refused later
        return None


def is_cut(numbers: Series, classes: Series) -> bool:
    """Whether classes are the intervals between thresholds of numbers, other than by chance.

    >>> x = pd.Series(range(60))
    >>> is_cut(x, x > 20), is_cut(x, x == 59), is_cut(x, x % 2)
    (True, False, False)
    """
    if not pd.api.types.is_numeric_dtype(numbers) or pd.api.types.is_bool_dtype(numbers):
        return False
    codes, levels = pd.factorize(classes)
    if not 1 < len(levels) <= MOST_CLASSES or numbers.nunique() <= MOST_CLASSES:
        return False
    x = numbers.to_numpy(np.float64)
    order = np.argsort(x, kind="stable")
    x, codes = x[order], codes[order]
    ends = np.flatnonzero(np.diff(codes))
    if len(ends) != len(levels) - 1 or not (x[ends] < x[ends + 1]).all():
        return False
    counts = np.bincount(codes)
    ways = math.lgamma(len(x) + 1) - sum(math.lgamma(n + 1) for n in counts) - math.lgamma(len(levels) + 1)
    return ways > math.log(BY_CHANCE)


def _ranked_alike(x: Array, y: Array) -> bool:
    ranks = (pd.Series(each).rank() for each in (x, y))  # corr(method="spearman") would import scipy.stats, a second
    return bool(abs(next(ranks).corr(next(ranks))) > SAME)


def is_copy(values: Series, target: Series) -> bool:
    """Whether an input without gaps is a monotone function of numbers, or has one value for each class.

    >>> y = pd.Series([1.0, 2.0, 4.0, 8.0])
    >>> is_copy(-np.log(y), y), is_copy(pd.Series([1.0, 2.0, 3.0, 3.5]).iloc[::-1].reset_index(drop=True), y)
    (True, True)
    >>> is_copy(pd.Series(["no", "yes"] * 3), pd.Series([0, 1] * 3)), is_copy(pd.Series([1, 2, 3, 1]), y)
    (True, False)
    """
    numeric = all(pd.api.types.is_numeric_dtype(each) for each in (values, target))
    if numeric and not pd.api.types.is_bool_dtype(target) and target.nunique() > 2:
        x, y = (each.to_numpy(np.float64) for each in (values, target))
        order = np.argsort(y, kind="stable")
        before, after, of_target = x[order][:-1], x[order][1:], y[order][:-1] == y[order][1:]
        one_to_one = ((before == after) == of_target).all()
        if one_to_one and ((before <= after).all() or (before >= after).all()):
            return True
        step = -(-len(x) // FEW)
        with np.errstate(all="ignore"):  # a constant, or numbers whose squares overflow, are no copies
            return (
                bool(abs(np.corrcoef(x, y)[0, 1]) > SAME)
                or _ranked_alike(x[::step], y[::step])
                and (step == 1 or _ranked_alike(x, y))
            )
    (x, levels), (y, classes) = (pd.factorize(each) for each in (values, target))
    return 1 < len(levels) == len(classes) < len(y) / 2 and len(np.unique(x * len(classes) + y)) == len(classes)
