"""Numbers and dates that may stand for missing values: far from all others of their column, and repeated."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bdl.advice import override, takes
from bdl.data.dates import days_of, find_format, holds_dates, parse
from bdl.data.kinds import Refused
from bdl.data.values import Frame, Series, as_numbers, as_texts
from bdl.display import count_of
from bdl.errors import BdlWarning

USUAL = re.compile(r"9+|[1-9]*(77|88|99)|999\.25|98|97")  # codes of questionnaires and instruments, without sign
LEAST, SHARE, MANY = 3, 0.005, 20  # rows with a code: so many, and this share of all or so many
LEVELS = 10  # different values, below which others are levels and not a spread
APART = 5.0  # ranges of the levels between them and a code
GAP, FAR = 1.0, 3.5  # spreads of the others: between a code and the nearest of them, and from their median
STEPS = 3.0  # usual steps between neighbours among the others, which a gap exceeds
MOST = 4  # codes of a column


def warn_of_codes(
    frame: Frame, names: Sequence[str], missing: Sequence[str], place: str, day_first: bool | None = None,
    stacklevel: int = 3,
) -> None:  # fmt: skip
    """Warn, in one line for all columns, of values that may mean "missing", with the `data.missing` that says so.

    Args:
        names: the columns that the run reads, of which those of numbers and of written dates are looked at.
        missing: the words that mean a missing value already.
    """
    numeric = {str(name): frame[name] for name in frame if pd.api.types.is_numeric_dtype(frame[name])}
    found: list[tuple[str, float]] = []
    dated: list[str] = []
    lines = []
    for name in names:
        if name not in numeric:
            if (line := _codes_of_dates(frame[name], day_first, dated)) is not None:
                lines.append(line)
            continue
        if pd.api.types.is_bool_dtype(numeric[name]):
            continue
        values = as_numbers(numeric[name]).to_numpy()
        values = values[np.isfinite(values)]
        if codes := missing_codes(values):
            found += [(name, code) for code in codes]
            others = values[~np.isin(values, codes)]
            counted = (f"{_written(code)} in {(n := (values == code).sum()):,} of {count_of(len(frame), 'row')} "
                       f"({100 * n / len(frame):.3g} %)" for code in codes)  # fmt: skip
            lines.append(f"{name} is {' and '.join(counted)}, all others {others.min():g} to {others.max():g}")
    if not lines:
        return
    words = dict.fromkeys(_word(name, code, numeric, found) for name, code in found) | dict.fromkeys(dated)
    remedy = f"{override('data.missing', [*missing, *words])} makes it one"
    if not takes("data.missing"):
        remedy = "leave these rows out, or fill the gaps, as sklearn.impute.SimpleImputer(add_indicator=True) does"
    warnings.warn(
        f"{place}: {'; '.join(lines[:8])}{f'; ... ({len(lines)} columns in all)' if len(lines) > 8 else ''}: far from "
        f"the others, and repeated. If this stands for a missing value, {remedy}; "
        "if it is a value, nothing is to be done", BdlWarning, stacklevel,
    )  # fmt: skip


def _codes_of_dates(values: Series, day_first: bool | None, words: list[str]) -> str | None:
    """What to say of dates such as 9999-12-31 in a column of written dates, whose texts are added to the words."""
    if pd.api.types.is_datetime64_any_dtype(values) or not holds_dates(values):
        return None
    try:
        dates = parse(values, *find_format(values, day_first))
    except Refused:  # the encoding of the column says why
        return None
    days = days_of(dates)
    codes = missing_codes(days.dropna().to_numpy(np.float64))
    if not codes:
        return None
    coded, texts = days.isin(codes), as_texts(values)
    words += (written := list(texts[coded].unique()))
    others = dates[~coded].dropna()
    return (
        f"{values.name} is {' or '.join(written[:MOST])} in {(n := int(coded.sum())):,} of "
        f"{count_of(len(values), 'row')} "
        f"({100 * n / len(values):.3g} %), all others {others.min():%Y-%m-%d} to {others.max():%Y-%m-%d}"
    )


def missing_codes(values: np.ndarray) -> list[float]:
    """The values of finite numbers (n,) that stand apart from the others, see `_stands_apart`; the farthest first.

    >>> missing_codes(np.array([-999.0] * 5 + [20.1, 19.7, 23.4, 18.8, 21.0, 22.3, 19.1, 20.6, 17.9, 24.2, 21.8]))
    [-999.0]
    >>> missing_codes(np.repeat([3.0, 4.0, 5.0, 6.0, 8.0], 20))  # cylinders of cars
    []
    """
    codes: list[float] = []
    rest, different = values, np.unique(values)
    while len(codes) < MOST and len(rest):
        ends = sorted((different, different[::-1]), key=lambda values: -abs(values[0]))
        sets = (end[: k + 1] for k in range(MOST - len(codes)) for end in ends if k < len(end))
        together = next((few for few in sets if _stand_apart(few, rest, len(values))), None)
        if together is None:
            break
        codes += together.tolist()
        rest, different = (each[~np.isin(each, together)] for each in (rest, different))
    return codes


def _stand_apart(outermost: np.ndarray, values: np.ndarray, rows: int) -> bool:
    """Whether codes (k,) side by side, such as -99 and -98, stand apart: the innermost does, and each is repeated."""
    *outer, code = outermost.tolist()
    repeated = all((values == each).sum() >= _least(rows) for each in outer)
    return repeated and _stands_apart(code, values[~np.isin(values, outer)], rows)


def _least(rows: int) -> float:
    return max(LEAST, min(MANY, SHARE * rows))


def _stands_apart(code: float, values: np.ndarray, rows: int) -> bool:
    """Whether an extreme value is repeated, and no tail of the others.

    Below the density of a tail there is no repeated value with nothing between: where a value is met three times and
    more, neighbours at a standard deviation's distance would be met too. Levels have such gaps, and need the look of a
    code; large positive numbers must be far in ratios as well.
    """
    others = values[values != code]
    if len(values) - len(others) < _least(rows) or len(others) < LEVELS:
        return False
    low, high = float(others.min()), float(others.max())
    gap = low - code if code < low else code - high
    alone = code < 0 <= low  # the only negative number
    usual = USUAL.fullmatch(_written(abs(code))) is not None
    distinct = np.unique(others)
    if len(distinct) < LEVELS:
        return (usual or alone) and gap >= APART * (high - low) > 0
    if alone and usual:
        return True
    if gap < STEPS * np.median(np.diff(distinct)) or not _is_far(code, gap, others):
        return False
    return usual or low <= 0 or code <= 0 or _is_far(np.log(code), abs(np.log((low if code < low else high) / code)),
                                                     np.log(others))  # fmt: skip


def _is_far(code: float, gap: float, others: np.ndarray) -> bool:
    first, middle, third = np.quantile(others, [0.25, 0.5, 0.75])
    spread = (third - first) / 1.349 or others.std()
    return gap >= GAP * spread and abs(code - middle) >= FAR * spread


def _word(name: str, code: float, numeric: Frame, found: Sequence[tuple[str, float]]) -> str:
    """The word for `data.missing`: with the column where the number is an ordinary value of another one."""
    coded = {column for column, other in found if other == code}
    elsewhere = any((values == code).any() for column, values in numeric.items() if column not in coded)
    return f"{name}={_written(code)}" if elsewhere else _written(code)


def _written(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(float(number))
