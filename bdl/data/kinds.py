"""Kinds of input columns: numbers and categories. Each is learned from training rows and makes inputs of a network."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from bdl.data.frame import as_value, brief_list
from bdl.data.values import Series, as_numbers, as_texts, number_hint
from bdl.errors import BdlWarning, ConfigError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(eq=False)
class Refused(Exception):
    """A column that cannot be used as it is: what it has, and the remedy, in which {columns} stands for its name."""

    name: str
    what: str
    remedy: str


def of_each(function: Callable[[T], R], items: Iterable[T], place: str) -> list[R]:
    """What the function makes of each item.

    Raises ConfigError, in one line, for all columns that it refuses. Those with the same remedy share it.
    """
    made: list[R] = []
    by_remedy: dict[str, list[Refused]] = {}
    for item in items:
        try:
            made.append(function(item))
        except Refused as fault:
            by_remedy.setdefault(fault.remedy, []).append(fault)
    if not by_remedy:
        return made
    lines = [
        f"{brief_list([f'{fault.name} {fault.what}' for fault in alike])}: "
        + remedy.replace("{columns}", as_value([fault.name for fault in alike]))
        for remedy, alike in by_remedy.items()
    ]
    raise ConfigError(f"{place}: {'; '.join(lines)}")


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: (value - mean) / std, and 1 where the value is missing if training rows had gaps.

    mean and std are those of the training rows. A missing value becomes their median, `fill`.
    """

    name: str
    mean: float
    std: float
    fill: float
    gaps: bool

    @staticmethod
    def learn(values: Series) -> NumberColumn:
        numbers = as_numbers(values)
        fill, gaps = float(numbers.median()), bool(numbers.isna().any())
        numbers = numbers.fillna(fill)
        mean, std = float(numbers.mean()), float(numbers.std(ddof=0))
        return NumberColumn(str(values.name), mean, std if std > 1e-12 * max(1.0, abs(mean)) else 1.0, fill, gaps)

    def encode(self, values: Series, place: str) -> np.ndarray:
        """(n, 1 or 2). Raises Refused for text and for infinite numbers."""
        numbers = finite_numbers(values, "correct them, or leave the fields empty")
        scaled = ((numbers.fillna(self.fill) - self.mean) / self.std).to_numpy()
        return with_gaps(self, [scaled[:, None]], numbers.isna(), place, f"its median, {self.fill:g}")


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories: one number per level and one for a level that no training row has; 1 where it is so.

    A missing value becomes the most frequent level of the training rows, `fill`; a further number is 1 where the value
    is missing if training rows had gaps.
    """

    name: str
    levels: tuple[str, ...]
    fill: str
    gaps: bool

    @staticmethod
    def learn(values: Series) -> CategoryColumn:
        texts = as_texts(values)
        counts = texts.value_counts()
        fill = min(counts.index[counts == counts.max()])  # the first of equally frequent levels in the alphabet
        return CategoryColumn(str(values.name), tuple(sorted(counts.index)), fill, bool(texts.isna().any()))

    def encode(self, values: Series, place: str) -> np.ndarray:
        """(n, levels + 1 or 2). Warns of levels that no training row has, and counts their rows."""
        texts = as_texts(values)
        codes = pd.Index(self.levels).get_indexer(pd.Index(texts.fillna(self.fill)))
        one_hot = np.eye(len(self.levels) + 1)[codes]  # -1 is the last level
        encoded = with_gaps(self, [one_hot], texts.isna(), place, f"the most frequent category, {self.fill}")
        if (unseen := codes < 0).any():
            first = texts[unseen].iloc[0]
            warnings.warn(
                f"{place}: {self.name} has categories in {unseen.sum()} of {len(texts)} rows that no training row has "
                f"({first!r} is the first): they share one level of their own", BdlWarning, stacklevel=2,
            )  # fmt: skip
        return encoded


def finite_numbers(values: Series, remedy: str) -> Series:
    """(n,) float64, NaN for gaps. Raises Refused for text and infinite numbers; it counts the rows."""
    numbers = as_numbers(values)
    bad = (numbers.isna() & values.notna() | np.isinf(numbers)).to_numpy()
    if bad.any():
        example, row = values[bad].iloc[0], values.index[bad][0] + 1
        hint = number_hint(values[bad])
        what = f"has '{example}' in row {row}, and no finite number in {bad.sum()} of {len(values)} rows"
        raise Refused(str(values.name), what, remedy if hint is None else f"{hint}; or {remedy}")
    return numbers


def with_gaps(column: Any, encoded: Sequence[np.ndarray], missing: Series, place: str, fill: str) -> np.ndarray:
    """(n, numbers): what is encoded, and 1 where a value is missing if training rows had gaps.

    Where they had none, the network does not know gaps: warns, and says what they become, `fill`.
    """
    if column.gaps:
        encoded = [*encoded, missing.to_numpy()[:, None]]
    elif missing.any():
        warnings.warn(
            f"{place}: {column.name} is missing in {missing.sum()} of {len(missing)} rows, though in no training row: "
            f"it becomes {fill}", BdlWarning, stacklevel=3,
        )  # fmt: skip
    return np.concatenate(encoded, 1)
