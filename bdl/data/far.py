"""Rows that are far from all that training rows had: other units, other times."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bdl.data.dates import EPOCH, DateColumn, days_of, parse
from bdl.data.encoding import Column
from bdl.data.kinds import NumberColumn
from bdl.data.values import Frame, Series, as_numbers
from bdl.display import count_of, figures
from bdl.errors import BdlWarning

FAR = 10.0  # standard deviations from the mean, below which no input is called far: a few rows bound nothing
FEW_ROWS, SMALLER = 5, 100.0  # rows that tell a unit, and how many times smaller their numbers are
ROWS = 20  # whose median tells another unit: by chance, not one of 8,080 columns of random splits had such a median
UNIFORM = math.sqrt(3)  # standard deviations from the middle of a uniform law to its ends


def warn_of_far(columns: Sequence[Column], frame: Frame, rows: int, place: str) -> None:
    """Warn of inputs beyond all that training rows have, as those in another unit are; two lines for all columns.

    Of N numbers none is farther from their mean than std sqrt(N - 1). Numbers in a larger unit, such as kilometres for
    metres, are near 0, and no farther than that. Where the unit is not so far off, as inches are from centimetres, the
    median of many rows lies beyond nearly all training rows. A date is far where it is farther from the training rows
    than these are from each other.

    rows: N, how many training rows there were.
    """
    bound = max(FAR, math.sqrt(max(0, rows - 1)))
    far, shifted = [], []
    for column in columns:
        line = None
        if isinstance(column, DateColumn):
            line = _far_dates(column, frame[column.name])
        elif isinstance(column, NumberColumn):
            values = as_numbers(frame[column.name])
            if (other := _other_unit(column, values, bound)) is not None:
                shifted.append(other)
            else:
                line = _far_numbers(column, values, bound)
        if line is not None:
            far.append(line)
    remedy = "correct them, or give them in the unit of training"
    _warn(far, f"{place}: inputs are far from all training rows", f"predictions of these rows say nothing; {remedy}")
    question = f"is this another unit? Then predictions say nothing: {remedy}. If not, few training rows are like these"
    _warn(shifted, f"{place}: inputs are unlike those of training", question)


def _warn(lines: list[str], start: str, remedy: str) -> None:
    more = f"; ... ({len(lines)} columns in all)" if len(lines) > 8 else ""
    if lines:
        warnings.warn(f"{start}: {'; '.join(lines[:8])}{more}: {remedy}", BdlWarning, 4)


def _far_numbers(column: NumberColumn, values: Series, bound: float) -> str | None:
    in_training = f"{figures(column.mean)} ± {figures(column.std, 2)} in training"
    if _is_smaller_unit(values, column):
        return f"{column.name} in all {len(values):,} rows, {values.min():g} to {values.max():g}, and {in_training}"
    far = (values - column.mean).abs() > bound * column.std
    return f"{_counted(column.name, values, far, '{:g}')}, and {in_training}" if far.any() else None


def _is_smaller_unit(values: Series, column: NumberColumn) -> bool:
    """Whether different numbers are all SMALLER times below the training median of a column that keeps away from 0.

    Of few rows, of equal ones, and of columns whose standard deviation exceeds their mean, nothing is known.
    """
    seen = values.dropna().abs()
    apart = len(seen) >= FEW_ROWS and seen.nunique() > 1 and abs(column.mean) >= column.std
    return apart and SMALLER * seen.max() < abs(column.fill)


def _other_unit(column: NumberColumn, values: Series, bound: float) -> str | None:
    """What to say where the median of different numbers lies beyond 99 % of the training rows, though not far away."""
    seen = values.to_numpy()[np.isfinite(values.to_numpy())]
    if column.low is None or column.high is None or len(seen) < ROWS or seen.min() == seen.max():
        return None
    if _is_smaller_unit(values, column):
        return None
    middle = float(np.median(seen))
    if column.low <= middle <= column.high or abs(middle - column.mean) > bound * column.std:
        return None
    ends = f"{figures(column.low)} to {figures(column.high)} in 98 % of the training rows"
    return f"{column.name} has the median {figures(middle)} in {len(seen):,} rows, and {ends}"


def _far_dates(column: DateColumn, values: Series) -> str | None:
    """What to say of dates; nothing where all training rows have the same, which the network does not see."""
    day = next((part for part in column.parts if part.name == "day"), None)
    if day is None:
        return None
    dates = parse(values, column.format, column.zone)
    if day.low is None or day.high is None:  # a run that is older than these
        low, high = day.mean - UNIFORM * day.std, day.mean + UNIFORM * day.std
    else:
        low, high = day.low, day.high
    days = days_of(dates)
    far = (days < 2 * low - high) | (days > 2 * high - low)
    first, last = (f"{EPOCH + pd.Timedelta(days=int(end)):%Y-%m-%d}" for end in (low, high))
    return (
        f"{_counted(column.name, dates, far, '{:%Y-%m-%d}')}, and {first} to {last} in training" if far.any() else None
    )


def _counted(name: str, values: Series, far: Series, form: str) -> str:
    share = f"{name} in {int(far.sum()):,} of {count_of(len(far), 'row')} ({100 * far.mean():.3g} %)"
    return f"{share}, {form.format(values[far].iloc[0])} in row {values.index[far][0] + 1}"
