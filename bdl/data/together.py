"""Rows of a table that are not exchangeable: those of one group, which stay together, and those in an order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bdl.advice import override
from bdl.data.dates import EPOCH, find_format, holds_dates, parse
from bdl.data.kinds import Refused, of_each
from bdl.data.split import train_test_rows
from bdl.data.values import Series, as_numbers, as_texts, with_numbers
from bdl.display import count_of
from bdl.errors import ConfigError

Parts = tuple[np.ndarray, np.ndarray]  # rows that are kept, and rows that are held out, both in ascending order


@dataclass(frozen=True)
class Order:
    """A column by which rows are sorted: numbers, or dates that are all written in one way.

    Args:
        format, zone: of dates, as in `DateColumn`; None for numbers.
    """

    name: str
    format: str | None = None
    zone: str = ""

    @staticmethod
    def learn(values: Series, day_first: bool | None, place: str) -> Order:
        """Raises ConfigError for what is neither numbers nor dates, and for dates in several formats."""
        return of_each(lambda column: Order._learn(column, day_first), [values], place)[0]

    @staticmethod
    def _learn(values: Series, day_first: bool | None) -> Order:
        name = str(values.name)
        if pd.api.types.is_bool_dtype(values):
            raise Refused(name, "holds truth values, which do not sort rows", "data.order takes numbers or dates")
        present = values.dropna()
        if not (other := _numbers(present).isna()).any():
            return Order(name)
        if not holds_dates(values):
            what = f"does not sort, because it holds texts such as '{present[other].iloc[0]}'"
            raise Refused(name, what, "data.order takes numbers, or dates such as 2020-04-03")
        return Order(name, *find_format(values, day_first))

    def key(self, values: Series, place: str) -> np.ndarray:
        """(n,) float64: the numbers, or days since 1970. Raises ConfigError for gaps and other values."""
        if self.format is None:
            key = _numbers(values)
        else:
            key = (parse(values, self.format, self.zone) - EPOCH) / pd.Timedelta(days=1)
        if (bad := key.isna().to_numpy()).any():
            kind = "number" if self.format is None else "date written as in the other rows"
            raise ConfigError(
                f"{override('data.order', self.name)} holds no {kind} in {bad.sum()} of "
                f"{count_of(len(values), 'row')} of {place}, "
                f"row {values.index[bad][0] + 1} the first, which have no place in the order: fill it in, or leave "
                "them out"
            )
        return key.to_numpy(np.float64)


def _numbers(values: Series) -> Series:
    return as_numbers(with_numbers(values.to_frame())[values.name])


def last_rows(key: np.ndarray, count: int, name: str) -> Parts:
    """The last `count` rows by a key (n,), and others with the key of the first of them: equal ones stay together.

    >>> [rows.tolist() for rows in last_rows(np.array([3, 1, 2, 2]), 2, "data.order=day")]
    [[1], [0, 2, 3]]

    Raises ConfigError where no row is left.
    """
    held = key >= np.sort(key)[len(key) - count] if count else np.zeros(len(key), dtype=bool)
    if held.all():
        raise ConfigError(
            f"{name} has one value in so many rows that none is left for training: lower data.test_fraction and "
            "data.val_fraction, or order the rows by a column with more values"
        )
    return np.flatnonzero(~held), np.flatnonzero(held)


def group_codes(values: Series, place: str) -> np.ndarray:
    """(n,) int64 0, 1, ... for the groups of rows, which are sorted as numbers where all are.

    Raises ConfigError for rows without a group, and for a single group.
    """
    if (missing := values.isna()).any():
        raise ConfigError(
            f"{override('data.group', str(values.name))} is missing in {missing.sum()} of "
            f"{count_of(len(values), 'row')} of "
            f"{place}, row {values.index[missing][0] + 1} the first: fill it in, or leave these rows out"
        )
    texts = as_texts(values)
    numbers: Series = pd.to_numeric(texts, errors="coerce")
    named = texts if numbers.nunique() < texts.nunique() else numbers
    codes, groups = pd.factorize(named, sort=True)
    if len(groups) < 2:
        name = override("data.group", str(values.name))
        raise ConfigError(f"{name} has one group only, {texts.iloc[0]!r}: leave data.group out")
    return codes


def groups_for_test(codes: np.ndarray, fraction: float, seed: int) -> Parts:
    """The rows of scikit-learn's `GroupShuffleSplit(1, test_size=fraction, random_state=seed)`: a share of the groups.

    >>> kept, test = groups_for_test(np.array([0, 0, 1, 1, 2, 2]), 0.2, seed=0)
    >>> test.tolist()
    [4, 5]
    """
    groups, codes = np.unique(codes, return_inverse=True)
    held = np.isin(codes, train_test_rows(len(groups), fraction, seed)[1])
    return np.flatnonzero(~held), np.flatnonzero(held)


def check_apart(groups: Mapping[str, Series], name: str) -> None:
    """Raise ConfigError for a group with rows in several splits, as a column or files may divide it.

    groups: the column of groups, in the rows of each split.
    """
    for one, other in (("train", "test"), ("train", "val"), ("val", "test")):
        if both := sorted(set(as_texts(groups[one])) & set(as_texts(groups[other]))):
            raise ConfigError(
                f"{override('data.group', name)}: {len(both)} groups such as {both[0]!r} have rows in both {one} and "
                f"{other}: mark all rows of a group alike, or leave data.group out"
            )
