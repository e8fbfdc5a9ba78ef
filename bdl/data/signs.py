"""Which sign separates the fields of a CSV file, and which stand in its numbers, where those that are given do not fit.

A guess is said with the keys that end it. Where two readings are possible, both are named, and none is taken.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Collection
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from bdl.advice import override
from bdl.data.field_counts import rows_of
from bdl.data.values import BETWEEN, SIGNS, Frame
from bdl.errors import BdlWarning, ConfigError

RANKS = (("tab", "semicolon", "bar"), ("comma",), ("space",))  # a comma or a blank stands in words and numbers too
LOOK = 200  # rows that tell the separator
DECIMALS, THOUSANDS = ("point", "comma"), ("none", "comma", "point", "space", "apostrophe")
NAMES = {sign: name for name, sign in SIGNS.items()}
PAIRS = tuple((decimal, between) for decimal in DECIMALS for between in THOUSANDS if decimal != between)
ONES = str.maketrans("023456789−", "111111111-")
LIKE_NUMBERS = re.compile(r"[+-]?[\d.,'’\s]*\d[\d.,'’\s]*([eE][+-]?\d+)?")
NO_SEPARATORS = "_-.'\"\\+#/()[]%"  # signs within names of columns


class Signs(NamedTuple):
    """Names of the signs of a CSV file, as the keys data.separator, data.decimal and data.thousands have them."""

    separator: str
    decimal: str
    thousands: str

    def words(self) -> str:
        """The keys that differ from bdl's own values, ready to be pasted.

        >>> Signs("semicolon", "comma", "none").words()
        'data.separator=semicolon data.decimal=comma'
        """
        usual = Signs("comma", "point", "none")
        keys = (override(f"data.{key}", value) for key, value in self._asdict().items() if value != getattr(usual, key))
        return " ".join(keys) or "data.separator=comma"


def fitting_signs(
    path: Path, name: str, encoding: str, given: Signs, missing: Collection[str], of_run: bool = False
) -> Signs:
    """The given signs where the separator fits the first rows of a file; else those that do, with a warning.

    Args:
        name: key and value of the path, for messages.
        missing: fields that are gaps.
        of_run: whether the given signs are those of the table of a run, and the file has rows to predict. They may have
            one column.

    Raises ConfigError for one column only, where no other sign makes several, and where two readings are possible.
    """
    header, *rows = [row for _, row in itertools.islice(rows_of(path, encoding, _sign(given.separator)), LOOK)] or [[]]
    if len(header) > 1 and all(len(row) == len(header) for row in rows) or not header:
        return given
    found = _separators(path, encoding, given, _sign(given.separator).join(header), of_run)
    if not found:
        if len(header) == 1 and not of_run:
            _refuse_one_column(name, given, header[0])
        return given
    what = f"{name} has {'one column' if len(header) == 1 else 'rows of several lengths'} under "
    what += f"{override('data.separator', given.separator)}"
    if of_run:
        what = f"{name} is not separated by {given.separator}, as the table of the run is"
    options, example = [given._replace(separator=separator) for separator in found], ""
    if len(found) == 1:
        options, example = _with_numbers(path, encoding, options[0], missing)
    if len(options) > 1:
        readings = " or ".join(_words(option, example) for option in options)
        remedy = f"set {readings}" if not of_run else f"{readings} fit: save it as the table of the run was"
        raise ConfigError(f"{what}; two readings are possible: {remedy}")
    remedy = "" if of_run else "; these words end the guess"
    warnings.warn(f"{what}: read with {_words(options[0], example)}{remedy}", BdlWarning, 2)
    return options[0]


def warn_of_thousands(
    frame: Frame, path: Path, name: str, encoding: str, signs: Signs, missing: Collection[str]
) -> None:
    """Warn where all numbers with a decimal sign, in the whole table, have three digits after it, as thousands have.

    frame: what was read of the file.
    """
    columns = [column for column in frame if pd.api.types.is_float_dtype(frame[column])]
    for column in columns:  # the numbers of nearly every table tell that its text need not be read again
        values = np.abs(frame[column].to_numpy())
        values = values[values % 1 != 0]  # gaps too
        if (values < 1).any() or (np.abs(1000 * values - np.round(1000 * values)) > 1e-6).any():
            return
    options, example = _with_numbers(path, encoding, signs, missing, columns) if columns else ([], "")
    other = next((each for each in options if each.thousands == NAMES.get(signs.decimal, signs.decimal)), None)
    if len(options) > 1 and other is not None:
        warnings.warn(
            f"{name}: '{example}' and all numbers of its kind are read as {_read(example, options[0])}, and may be "
            f"{_read(example, other)}: then set {other.words()}", BdlWarning, 2,
        )  # fmt: skip


def _sign(name: str) -> str:
    """The sign of a key, which may be the sign itself."""
    return SIGNS.get(name, name)


def _separators(path: Path, encoding: str, given: Signs, header: str, of_run: bool) -> list[str]:
    """The separators of the first rank in which one gives each of the first rows as many fields as the header."""
    others = dict.fromkeys(sign for sign in header if not sign.isalnum() and sign not in NO_SEPARATORS)
    ranks = [*(RANKS[:2] if of_run else RANKS), [sign for sign in others if sign not in SIGNS.values()]]
    for rank in ranks:
        if fit := [each for each in rank if each != given.separator and _fits(path, encoding, _sign(each))]:
            return fit
    return []


def _fits(path: Path, encoding: str, sign: str) -> bool:
    counts = {len(row) for _, row in itertools.islice(rows_of(path, encoding, sign), LOOK)}
    return len(counts) == 1 and counts != {1}


def _refuse_one_column(name: str, given: Signs, header: str) -> None:
    remedy = "a table has a target and at least one more column; data.separator names the sign between them"
    ends = [sign for sign in itertools.chain(*RANKS) if _sign(sign) in header and sign != given.separator]
    if ends:
        remedy = f"its header holds another sign that separates: set {override('data.separator', ends[0])}"
    raise ConfigError(f"{name} has one column only under {override('data.separator', given.separator)}; {remedy}")


def _with_numbers(
    path: Path, encoding: str, signs: Signs, missing: Collection[str], among: Collection[str] = ()
) -> tuple[list[Signs], str]:
    """These signs with each meaning of points, commas and blanks that reads all numbers of the file, and an example.

    The given signs stay where no meaning reads all columns of numbers, and where no number has any sign.

    among: names of the columns that count; all by default.
    """
    given = NAMES.get(signs.decimal, signs.decimal), NAMES.get(signs.thousands, signs.thousands)
    if given not in PAIRS:  # signs of the user's own
        return [signs], ""
    rows = rows_of(path, encoding, _sign(signs.separator))
    names = [field.strip() for field in next(rows)[1]]
    columns = [_ColumnOfNumbers() for _ in names]
    for _, row in rows:
        for column, field in zip(columns, row, strict=False):
            if (text := field.strip()) and text not in missing:
                column.take(text)
    counted = [c for c, name in zip(columns, names, strict=True) if c.is_of_numbers and (not among or name in among)]
    pairs = set(PAIRS).intersection(*(column.pairs for column in counted))
    used = set().union(*(column.signs for column in counted))
    meanings: dict[frozenset[tuple[str, str]], list[tuple[str, str]]] = {}
    for pair in sorted(pairs, key=lambda pair: (pair != given, pair[0] != given[0], pair[1] != "none")):
        roles = frozenset((role, sign) for role, sign in zip(("decimal", "thousands"), pair, strict=True)
                          if sign in used)  # fmt: skip
        meanings.setdefault(roles, []).append(pair)
    example = max((column.example for column in counted), key=len, default="")
    return [signs._replace(decimal=p[0][0], thousands=p[0][1]) for p in meanings.values()] or [signs], example


class _ColumnOfNumbers:
    """What the fields of a column tell of the signs in its numbers."""

    def __init__(self) -> None:
        self.pairs, self.signs, self.example = set(PAIRS), set[str](), ""
        self._numbers = self._others = 0

    def take(self, text: str) -> None:
        """Count a field that is no gap."""
        if text.isdecimal():
            self._numbers += 1
            return
        pairs, signs = _reading_pairs(text.translate(ONES), text.lstrip("+-−").startswith("0"))
        self._numbers, self._others = self._numbers + (pairs is not None), self._others + (pairs is None)
        if pairs is not None:
            self.pairs &= pairs
            self.signs |= signs
            self.example = max(self.example, text, key=len)

    @property
    def is_of_numbers(self) -> bool:
        """Whether most fields are numbers, and some have signs; dates have points that no pair reads."""
        return self._numbers > self._others and bool(self.pairs) and bool(self.signs)


@lru_cache(2**16)
def _reading_pairs(shape: str, zero: bool) -> tuple[frozenset[tuple[str, str]] | None, frozenset[str]]:
    """The pairs of signs that read a number, and the signs in it; None for other texts.

    shape: the text, whose digits are all 1; zero: whether they begin with 0.
    """
    if not LIKE_NUMBERS.fullmatch(shape):
        return None, frozenset()
    read = (pair for pair in PAIRS if _pattern(*pair, zero).fullmatch(shape))
    return frozenset(read), frozenset(name for name, sign in BETWEEN.items() if re.search(sign, shape))


@cache
def _pattern(decimal: str, thousands: str, zero: bool) -> re.Pattern[str]:
    """Numbers with these signs. zero: whether they begin with 0, as no number with thousands does."""
    between = rf"|\d{{1,3}}(?:{BETWEEN[thousands]}\d{{3}})+" if thousands != "none" and not zero else ""
    point = re.escape(SIGNS[decimal])
    return re.compile(rf"[+-]?(?:(?:\d+{between})(?:{point}\d*)?|{point}\d+)([eE][+-]?\d+)?")


def _read(text: str, signs: Signs) -> str:
    """A number as these signs read it, as Python writes it."""
    plain = text if signs.thousands == "none" else re.sub(BETWEEN[signs.thousands], "", text)
    return plain.replace(SIGNS[signs.decimal], ".")


def _words(signs: Signs, example: str) -> str:
    return f"{signs.words()} ('{example}' is {_read(example, signs)})" if example else signs.words()
