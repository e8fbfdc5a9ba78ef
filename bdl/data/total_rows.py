"""Rows that are no items: totals and means of the other rows, as spreadsheets and reports end with them."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Collection

import numpy as np
import pandas as pd

from bdl.advice import override
from bdl.data.frame import brief_list
from bdl.data.values import Frame, as_numbers, is_text
from bdl.errors import BdlWarning

LEAST = 5  # rows below which nothing is known
LOOKED = 20_000  # rows up to which words are looked for in all of them; subtotals stand in small tables
MOST = 50  # rows with such words; more are categories
EDGE = 8  # the last rows, in which words are looked for in any table
COARSE = 20  # times its error that a rounded sum has to be; numbers such as 1.0 at the end of a grid are not
WORD = re.compile(
    r"((grand|sub|over-?all)?[ -]?(totals?|sum|summe|somme|suma|totale)|gesamt(summe)?|insgesamt|subtotals?)\b.{0,40}"
    r"|mean|average|avg\.?|mittelwert|durchschnitt|moyenne|median|sd|std\.?( ?dev\.?)?|min|max|minimum|maximum|count",
    re.IGNORECASE,
)
STATISTICS: tuple[Callable[[np.ndarray], float], ...] = (
    np.mean, np.median, np.min, np.max, lambda x: float(np.std(x, ddof=1)), len,
)  # fmt: skip


def warn_of_totals(frame: Frame, place: str, remedy: str | None = None) -> None:
    """Warn, in one line, of rows that hold sums or other statistics of the rows beside them.

    remedy: what to do about rows that `data.drop_rows` does not reach.
    """
    if not (found := total_rows(frame)):
        return
    rows = [frame.index[at] + 1 for at in found]
    what = "; ".join(f"row {row} {said}" for row, said in zip(rows[:4], found.values(), strict=False))
    more = f"; ... ({len(rows)} such rows)" if len(rows) > 4 else ""
    them = "it" if len(rows) == 1 else "them"
    remedy = remedy or f"{override('data.drop_rows', map(str, rows))} leaves {them} out"
    warnings.warn(f"{place}: {what}{more}, as no item has: {remedy}", BdlWarning, 3)


def total_rows(frame: Frame) -> dict[int, str]:
    """The positions of rows of totals and the like, and what each has, in words.

    A word such as Total is believed where a number beside it is a statistic of other rows. Without one, the last row is
    such a row where half of its numbers are sums of the others, and beyond all of them.

    >>> total_rows(pd.DataFrame({"shop": ["a", "b", "c", "d", "e", "Total"], "staff": [3, 4, 2, 5, 3, 17]}))
    {5: "('Total' in shop) has the sums of other rows in staff"}
    """
    if len(frame) <= LEAST:
        return {}
    words = _words(frame)
    at = sorted({*words, len(frame) - 1})
    parts = {row: _parts(len(frame), {*words, row}, row) for row in at}
    present: dict[int, list[str]] = {row: [] for row in at}
    sums, alike = ({row: [] for row in at} for _ in range(2))
    for name in frame:
        if not pd.api.types.is_numeric_dtype(frame[name]) or pd.api.types.is_bool_dtype(frame[name]):
            continue
        values = as_numbers(frame[name]).to_numpy()
        with np.errstate(over="ignore", invalid="ignore"):  # sums of numbers near the largest
            for row in (row for row in at if np.isfinite(values[row])):
                present[row].append(str(name))
                if any(_is_sum(values, row, part) for part in parts[row]):
                    sums[row].append(str(name))
                elif row in words and _is_statistic(values, row, parts[row][0]):
                    alike[row].append(str(name))
    found = {}
    for row in at:
        start = f"({words[row][1]!r} in {words[row][0]}) " if row in words else ""
        if sums[row] and (start or 2 * len(sums[row]) >= len(present[row])):
            found[row] = f"{start}has the sums of other rows in {brief_list(sums[row], 3)}"
        elif alike[row]:
            found[row] = f"{start}has a statistic of other rows in {brief_list(alike[row], 3)}"
    return found


def _words(frame: Frame) -> dict[int, tuple[str, str]]:
    """The column and the word of each row that has one; words that repeat in their column are categories."""
    found: dict[int, tuple[str, str]] = {}
    first = 0 if len(frame) <= LOOKED else len(frame) - EDGE
    for name in frame:
        if pd.api.types.is_numeric_dtype(frame[name]):
            continue
        values = frame[name].iloc[first:]
        texts = values.where(is_text(values)).astype("str").str.strip()
        for i in np.flatnonzero(texts.str.fullmatch(WORD, na=False)):
            word = texts.iloc[i]
            if (texts == word).sum() == 1 or word.lower().startswith("sub"):
                found.setdefault(first + int(i), (str(name), word))
    return found if len(found) <= MOST else {}


def _parts(rows: int, at: Collection[int], row: int) -> list[np.ndarray]:
    """Rows that a row may count, as masks: those above it, all others, and those up to the next such rows."""
    others = np.ones(rows, bool)
    others[sorted(at)] = False
    before = max((other for other in at if other < row), default=-1)
    after = min((other for other in at if other > row), default=rows)
    parts = []
    for first, end in ((0, row), (0, rows), (before + 1, row), (row + 1, after)):
        part = np.zeros(rows, bool)
        part[first:end] = others[first:end]
        if part.sum() > 1 and not any(np.array_equal(part, other) for other in parts):
            parts.append(part)
    return parts or [others]


def _seen(values: np.ndarray, part: np.ndarray) -> np.ndarray:
    return values[part & np.isfinite(values)]


def _is_sum(values: np.ndarray, row: int, part: np.ndarray) -> bool:
    """Whether a number is the sum of others, to the digits it has, and beyond all of them."""
    seen, number = _seen(values, part), float(values[row])
    if len(seen) < 2 or not np.isfinite(number) or seen.min() <= number <= seen.max():
        return False
    unit = _unit(number)
    rounded = 0.0 if np.allclose(seen / unit, (seen / unit).round(), rtol=0, atol=1e-6) else 0.5 * unit
    total, size = float(seen.sum()), float(np.abs(seen).sum())
    return math.isfinite(size) and COARSE * rounded <= abs(number) and abs(total - number) <= rounded + 1e-12 * size


def _is_statistic(values: np.ndarray, row: int, part: np.ndarray) -> bool:
    seen, number = _seen(values, part), float(values[row])
    near = 0.51 * _unit(number) + 1e-12 * abs(number)
    return len(seen) >= LEAST and any(abs(float(each(seen)) - number) <= near for each in STATISTICS)


def _unit(number: float) -> float:
    """The place value of the last digit that a number is written with: 0.1 of 2.5, 1 of 25."""
    _, _, digits = repr(number).partition(".")
    return 10.0 ** -len(digits.rstrip("0")) if digits.isdigit() else 1.0
