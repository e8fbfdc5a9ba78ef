"""Kinds of input columns: numbers and categories. Each is learned from training rows and makes inputs of a network."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from bdl.advice import override, takes
from bdl.data.frame import brief_list
from bdl.data.total_rows import WORD
from bdl.data.values import EXACT, Series, as_numbers, as_texts, holds_complex, is_text, number_hint, spelling
from bdl.display import count_of
from bdl.errors import BdlWarning, ConfigError

T = TypeVar("T")
R = TypeVar("R")

FEW_WORDS = 5  # different words between numbers that a message lists
ROUNDED = 1e-12  # relative differences below it are rounding
TAIL = 0.01  # the share of training rows below `NumberColumn.low`, and above `high`
LARGEST = float(np.finfo(np.float32).max)
CORRECT = "correct them, or leave the fields empty"


@dataclass(eq=False)
class Refused(Exception):
    """A column that cannot be used as it is: what it has, and the remedy.

    `key={columns}` in the remedy names the column, `key={words}` lists the `words` of all columns with this remedy.
    """

    name: str
    what: str
    remedy: str
    words: Sequence[str] = ()


def of_each(function: Callable[[T], R], items: Iterable[T], place: str) -> list[R]:
    """What the function makes of each item.

    Raises ConfigError, in one line, for all items that it refuses. Columns with the same remedy share it.
    """
    made: list[R] = []
    lines: list[str] = []
    by_remedy: dict[str, list[Refused]] = {}
    for item in items:
        try:
            made.append(function(item))
        except Refused as fault:
            by_remedy.setdefault(fault.remedy, []).append(fault)
        except ConfigError as error:
            lines.append(str(error))
    for remedy, alike in by_remedy.items():
        start = "" if lines else f"{place}: "
        faults = brief_list([f"{fault.name} {fault.what}" for fault in alike])
        lists = {
            "columns": [fault.name for fault in alike],
            "words": list(dict.fromkeys(word for fault in alike for word in fault.words)),
        }
        advice = re.sub(r"(\S+)=\{(\w+)\}", lambda found, lists=lists: override(found[1], lists[found[2]]), remedy)
        lines.append(f"{start}{faults}: {advice}")
    if lines:
        raise ConfigError("; ".join(lines))
    return made


def perhaps_gaps(learn: Callable[[], R], values: Series, remedy: str, missing: Sequence[str]) -> R:
    """What is learned of values as numbers. A refusal with this remedy says that few words between them may be gaps.

    missing: the words that mean a missing value already.
    """
    try:
        return learn()
    except Refused as fault:
        words = [word for word in values[is_text(values)].unique() if "=" not in word]  # a=b is the word b of column a
        if fault.remedy != remedy or not 0 < len(words) <= FEW_WORDS:
            raise
        if words == [str(values.name)]:  # files that were joined one after the other
            rows = [str(row + 1) for row in values.index[values == words[0]]]
            repeats = f"{brief_list([f'row {row}' for row in rows])} repeat{'s' * (len(rows) == 1)} the header"
            leave = override("data.drop_rows", rows) if takes("data.drop_rows") else "the table without"
            them = "it" if len(rows) == 1 else "them"
            raise Refused(fault.name, fault.what, f"{repeats}: {leave} leaves {them} out") from None
        gaps = f"data.missing={{words}} if they mean missing values; or {remedy}"
        raise Refused(fault.name, fault.what, gaps, [*missing, *words]) from None


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: (value - mean) / std, with the mean and the standard deviation of the training rows.

    A missing value becomes the median of the training rows, `fill`. If training rows had gaps, a further number is 1
    where the value is missing. The middle 98 % of the training rows go from `low` to `high`, or nobody has noted it.
    """

    name: str
    mean: float
    std: float
    fill: float
    gaps: bool
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(end, float | int | None) for end in (self.low, self.high)):
            raise TypeError("low or high")  # a file that was altered

    @staticmethod
    def learn(values: Series, remedy: str = CORRECT) -> NumberColumn:
        """Raises Refused for text, and for numbers that double precision does not hold."""
        numbers = finite_numbers(values, remedy)
        seen = numbers.to_numpy()
        gaps = np.isnan(seen)
        unit = unit_of(seen[~gaps])  # in it, the sum of the two in the middle is finite
        fill = unit * float(np.median(seen[~gaps] / unit))
        mean, std = standardisation(numbers.fillna(fill) if gaps.any() else numbers)
        tail = int(TAIL * (np.count_nonzero(~gaps) - 1))
        ordered = np.partition(seen[~gaps], (tail, -1 - tail))
        ends = float(ordered[tail]), float(ordered[-1 - tail])
        return NumberColumn(str(values.name), mean, std, fill, bool(gaps.any()), *ends)

    def encode(self, values: Series, place: str) -> np.ndarray:
        """(n, 1 or 2). Raises Refused for text, for infinite numbers, and for those too far from the mean."""
        numbers = finite_numbers(values, CORRECT)
        missing = numbers.isna()
        scaled = standardised(numbers.fillna(self.fill) if missing.any() else numbers, self.mean, self.std)
        return with_gaps(self, [scaled[:, None]], missing)

    @property
    def filling(self) -> str:
        """What a missing value becomes, in words."""
        return f"its median, {self.fill:g}"


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories: a number for each level, and a number for all levels that no training row has.

    The number of a row's own level is 1, and the others are 0. A missing value becomes the most frequent level of the
    training rows, `fill`. If training rows had gaps, a further number is 1 where the value is missing.
    """

    name: str
    levels: tuple[str, ...]
    fill: str
    gaps: bool

    @staticmethod
    def learn(values: Series) -> CategoryColumn:
        texts = as_texts(values)
        levels, fill = sorted(texts.dropna().unique()), texts.mode()[0]  # the alphabet's first of equally frequent ones
        return CategoryColumn(str(values.name), tuple(levels), fill, bool(texts.isna().any()))

    def encode(self, values: Series, place: str) -> np.ndarray:
        """(n, levels + 1 or 2). Warns of levels that no training row has, and counts their rows."""
        texts = as_texts(values)
        codes = pd.Index(self.levels).get_indexer(pd.Index(texts.fillna(self.fill)))
        one_hot = np.zeros((len(codes), len(self.levels) + 1), np.float32)
        one_hot[np.arange(len(codes)), codes] = 1  # -1 is the last level
        if (unseen := codes < 0).any():
            warnings.warn(
                f"{place}: {self.name} has categories in {unseen.sum()} of {count_of(len(texts), 'row')} that no "
                f"training row has ({texts[unseen].iloc[0]!r} is the first): they share one level of their own"
                f"{self._look_alike(texts[unseen].unique())}", BdlWarning, 2,
            )  # fmt: skip
        return with_gaps(self, [one_hot], texts.isna())

    @property
    def filling(self) -> str:
        """What a missing value becomes, in words."""
        return f"the most frequent category, {self.fill}"

    def _look_alike(self, texts: Sequence[str]) -> str:
        """Which of these texts may mean a level, in words; empty where none does."""
        levels = {spelling(level): level for level in self.levels}
        alike = [f"{text!r} looks like {levels[key]!r}" for text in texts if (key := spelling(text)) in levels]
        more = f"; ... ({len(alike)} such categories)" if len(alike) > FEW_WORDS else ""
        return f"; {', '.join(alike[:FEW_WORDS])}{more}: write each as in training" if alike else ""


def unit_of(numbers: np.ndarray) -> float:
    """The power of two just below the largest of these numbers.

    In this unit, squares of numbers beyond 1e154 do not overflow, and squares of numbers below 1e-162 do not vanish.
    The division by a power of two is exact: mean and standard deviation of other numbers keep their last bit.
    """
    return 2.0 ** (int(np.frexp(np.abs(numbers).max())[1]) - 1)


def standardisation(numbers: Series) -> tuple[float, float]:
    """Mean and standard deviation of numbers without gaps, of whatever size; that of a constant is 1.

    Raises Refused for numbers whose differences double precision does not hold.
    """
    values = numbers.to_numpy()
    low, high = float(values.min()), float(values.max())
    if is_rounding(values):
        return low, 1.0
    unit = unit_of(values)
    mean, std = unit * float((values / unit).mean()), unit * float((values / unit).std())
    if not 0 < std or math.isinf(high - low):
        what = f"goes from {low:g} to {high:g}, which double precision does not hold"
        raise Refused(str(numbers.name), what, "give it in other units")
    return mean, std


def is_rounding(numbers: np.ndarray) -> bool:
    """Whether finite numbers, without gaps, are equal to 12 digits, unless they are whole numbers, which are exact."""
    low, high = float(numbers.min()), float(numbers.max())
    largest = max(abs(low), abs(high))
    if low == high or not 0 < largest < math.inf:
        return low == high
    return high / largest - low / largest <= ROUNDED and not bool((numbers == numbers.round()).all())


def standardised(numbers: Series, mean: float, std: float) -> np.ndarray:
    """(n,) (number - mean) / std. Raises Refused where that is no number of single precision, as networks take."""
    scaled = (numbers.to_numpy() - mean) / std
    if (far := ~(np.abs(scaled) < LARGEST)).any():
        example, row = numbers[far].iloc[0], numbers.index[far][0] + 1
        what = (
            f"has {example:g} in row {row}, too far from the mean {mean:g} ({far.sum()} of {count_of(len(far), 'row')})"
        )
        raise Refused(str(numbers.name), what, "correct them, or give them in other units")
    return scaled


def finite_numbers(values: Series, remedy: str) -> Series:
    """(n,) float64, NaN for gaps. It counts the rows that it refuses.

    Raises Refused for text and infinite numbers, and for whole numbers that float64 does not tell apart.
    """
    if holds_complex(values):
        raise Refused(str(values.name), "holds complex numbers", "give their real and imaginary parts a column each")
    numbers = as_numbers(values)
    largest = float(np.abs(numbers.to_numpy()).max(initial=0.0, where=numbers.notna().to_numpy()))
    if largest >= EXACT and pd.api.types.is_integer_dtype(values) and numbers.nunique() < values.nunique():
        example = values[values.abs() > EXACT].iloc[0]
        what = f"has whole numbers beyond 2^53 such as {example}, which double precision does not tell apart"
        raise Refused(str(values.name), what, "data.categorical={columns} for codes, data.drop={columns} leaves it out")
    bad = np.isinf(numbers.to_numpy())
    if not pd.api.types.is_numeric_dtype(values):
        bad |= (numbers.isna() & values.notna()).to_numpy()
    if bad.any():
        example, row = values[bad].iloc[0], values.index[bad][0] + 1
        hint = number_hint(values[bad]) or _hint_of_totals(values[bad])
        what = f"has '{example}' in row {row}, and no finite number in {bad.sum()} of {count_of(len(values), 'row')}"
        raise Refused(str(values.name), what, remedy if hint is None else f"{hint}; or {remedy}")
    return numbers


def _hint_of_totals(values: Series) -> str | None:
    """What to do about values that are words such as Total, as spreadsheets have them in their last row."""
    if not all(isinstance(value, str) and WORD.fullmatch(value.strip()) for value in values):
        return None
    rows = [str(row + 1) for row in values.index]
    if not takes("data.drop_rows"):
        return f"leave {brief_list([f'row {row}' for row in rows])} out, if it holds totals"
    return f"{override('data.drop_rows', rows)} leaves rows of totals out"


def with_gaps(column: Any, encoded: Sequence[np.ndarray], missing: Series) -> np.ndarray:
    """(n, numbers): what is encoded, and 1 where a value is missing if training rows had gaps."""
    return np.concatenate([*encoded, missing.to_numpy()[:, None]] if column.gaps else encoded, 1)
