"""Probable mistakes in a table: categories that are written in two ways, and single numbers beyond all others."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bdl.data.dates import holds_dates
from bdl.data.values import Frame, Series, as_numbers, as_texts, is_text, spelling
from bdl.errors import BdlWarning

LEAST, LEVELS = 20, 10  # rows, and different values, below which nothing is known of a column
MOST_LEVELS = 1000  # texts beyond which a column has no categories
FEW = 3  # rows that may be beyond all others
BEYOND = 1000.0  # times as far from the median as all others


def warn_of_odd_values(frame: Frame, names: Sequence[str], place: str) -> None:
    """Warn of categories that differ in their spelling alone, and of numbers that dwarf a column; a line for each.

    names: the columns that the run reads, targets included.
    """
    lines: dict[str, list[str]] = {"spelt": [], "alone": []}
    for name in names:
        values = frame[name]
        if pd.api.types.is_bool_dtype(values):
            continue
        if pd.api.types.is_numeric_dtype(values):
            if (row := lone_row(as_numbers(values).to_numpy())) is not None:
                middle = np.nanquantile(as_numbers(values), 0.5, method="lower")
                line = f"{name} is {values.iloc[row]:g} in row {values.index[row] + 1}, and nearly all others "
                lines["alone"].append(f"{line}{middle:g} or so")
        elif alike := spellings(values):
            lines["spelt"].append(f"{name} has {' and '.join(map(repr, alike))}")
    for kind, remedy in (
        ("spelt", "they are different categories; if they mean the same, write them in one way"),
        ("alone", "such a number makes all others the same; correct it, or leave the field empty"),
    ):
        if said := lines[kind]:
            more = f"; ... ({len(said)} columns in all)" if len(said) > 8 else ""
            warnings.warn(f"{place}: {'; '.join(said[:8])}{more}: {remedy}", BdlWarning, 3)


def spellings(values: Series) -> list[str]:
    """The first categories of a column that differ in their `spelling` alone; [] where there are none.

    >>> spellings(pd.Series(["red", "Red", "blue"]))
    ['Red', 'red']
    """
    if not is_text(values).any():
        return []
    distinct = values[is_text(values)].unique()
    if len(distinct) > MOST_LEVELS or holds_dates(values):
        return []
    seen: dict[str, list[str]] = {}
    for text in sorted(set(as_texts(pd.Series(distinct, dtype=object)))):
        seen.setdefault(spelling(text), []).append(text)
    return next((alike for alike in seen.values() if len(alike) > 1), [])


def lone_row(numbers: np.ndarray) -> int | None:
    """The row of the number farthest from the median, where a few are far beyond all others; None elsewhere.

    >>> lone_row(np.array([*range(30), 1e30])), lone_row(np.array([*range(30), 400.0]))
    (30, None)
    """
    finite = np.flatnonzero(np.isfinite(numbers))
    if len(finite) < LEAST or len(np.unique(numbers[finite])) < LEVELS + FEW:
        return None
    halves = numbers[finite] / 2  # whose differences do not overflow
    distance = np.abs(halves - np.median(halves))
    order = np.argsort(distance)
    farthest = distance[order[-FEW - 1 :]]
    apart = (farthest[1:] / BEYOND > farthest[:-1]) & (farthest[:-1] > 0)
    return int(finite[order[-1]]) if apart.any() else None
