"""Numbers that a column writes with a unit, a currency, its own signs or as times: '12.3 kg', '$1,200', '12h34'.

How a column is written is learned once, from the whole of it: rows to predict may be too few to tell.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from bdl.data.values import EXACT, Frame, Series, as_texts, is_text

Way: TypeAlias = tuple[str, ...]  # (before, sign of thousands, sign of decimals, after); or one of TIMES
SHARE = 0.9  # of the texts are written in this way; the others are refused by row, or mean a missing value
LOOK = 100  # texts that tell whether a column is worth a look at all
LONGEST = 60  # signs of a text
MONEY = "[$€£¥₹]|(?:USD|EUR|GBP|CHF|JPY|CAD|AUD|CNY|INR|SEK|NOK|DKK|PLN|BRL|ZAR)"
LETTER = r"(?:[^\W\d_]|[%‰°²³/·$€£¥₹])"
WRITTEN = re.compile(
    rf"(?P<sign>[+\-−]?)(?P<before>{MONEY}|)\s?(?P<minus>[+\-−]?)(?P<digits>\d[\d.,'’\s]*\d|\d|\.\d+)"
    rf"\s?(?P<after>(?:{LETTER}+(?:\s{LETTER}+)?)?)"
)
BETWEEN_DIGITS = r"\d(\s|['’])\d|[.,]\d+[.,]|−"  # no table's own signs read these
SIGNS = ((",", "."), (".", ","), (" ", "."), (" ", ","), ("'", "."), ("'", ","), ("", "."), ("", ","))
PATTERNS = {" ": r"\s", "'": "['’]"}  # of signs that are written in several ways
CLOCK = re.compile(
    r"(?:(?P<days>\d{1,6}) days?,? )?(?P<first>\d{1,6}):(?P<second>[0-5]\d)(?::(?P<third>[0-5]\d(?:\.\d{1,9})?))?"
    r"(?:\s?(?P<half>[ap])\.?m\.?)?", re.IGNORECASE,
)  # fmt: skip
HOURS = re.compile(
    r"(?:(?P<days>\d{1,6})\s?d\s?)?(?P<first>\d{1,6})\s?h\s?(?:(?P<second>[0-5]?\d)\s?(?:m(?:in)?)?)?"
    r"(?:\s?(?P<third>[0-5]?\d)\s?s)?(?P<half>)"
)
OF_DAY = re.compile(r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?(\s?[ap]m)?", re.IGNORECASE)
TIMES = {"clock": CLOCK, "hours": HOURS}


def learn_way(values: Series, target: bool, signs: tuple[str, str] = ("", ".")) -> Way | None:
    """How the numbers of a column are written; None for plain numbers, dates and words, and where two readings differ.

    Two different numbers stay words: they say the same as inputs, and classes keep their names.

    Args:
        target: whether times of a day are numbers too; as inputs they are points on a circle.
        signs: of thousands, "" for none, and of decimals in the table.

    >>> learn_way(pd.Series(["7.9 kg", "12 kg", "1.25kg"]), False)
    ('', '', '.', 'kg')
    >>> learn_way(pd.Series(["$1,200", "$950", "$2,300"]), False)
    ('$', ',', '.', '')
    >>> learn_way(pd.Series(["1,200 kg", "2,300 kg", "4,100 kg"]), False) is None  # 1200 or 1.2
    True
    """
    if pd.api.types.is_numeric_dtype(values) or isinstance(values.dtype, pd.CategoricalDtype):
        return None
    texts = values[is_text(values)]
    if texts.empty or len(texts) < SHARE * values.notna().sum():
        return None
    counts = as_texts(texts).value_counts(sort=False)
    if not any(_reads_some(counts, read) for read in (_parts, *(partial(_number_of, way=(name,)) for name in TIMES))):
        return None
    name = next((name for name in TIMES if _reads((name,), counts)), None)
    if name is not None:  # 12:30 and 1:02:03 would have their minutes in two places
        forms = {text.count(":") for text in counts.index if _time(text, CLOCK) is not None}
        of_day = name == "clock" and all(OF_DAY.fullmatch(text) for text in counts.index)
        return (name,) if len(forms) <= 1 and (target or not of_day) else None
    found = [parts for text in counts.index if (parts := _parts(text)) is not None]
    if not found:
        return None
    ((before, after), _) = Counter((parts[0], parts[2]) for parts in found).most_common(1)[0]
    digits = [parts[1] for parts in found if (parts[0], parts[2]) == (before, after)]
    plain = not before and not after and not any(re.search(BETWEEN_DIGITS, text) for text in digits)
    if plain or any(re.match(r"-?0\d", text) for text in digits):  # the table's own signs; 007 names something
        return None
    money = re.fullmatch(MONEY, before or after) is not None
    if (pair := _signs_of(digits, signs, money)) is None:
        return None
    way = (before, *pair, after)
    return way if _reads(way, counts) else None


def numbers_of(values: Series, way: Way) -> Series:
    """The column with numbers in place of the texts that are written in this way; other values stay.

    Times are numbers of the unit before the first colon, or of hours where they have days.
    """
    texts = values[is_text(values)]
    if texts.empty:
        return values
    read = {text: _number_of(text.strip(), way) for text in texts.unique()}
    found = texts.map(read)
    numbers: Any = values.astype(object).mask(found.notna().reindex(values.index, fill_value=False), found)
    return pd.to_numeric(numbers, errors="coerce") if not is_text(numbers).any() else numbers


def words_of_units(frame: Frame, units: Mapping[str, Way], most: int = 8) -> str | None:
    """Which columns of a table have texts that are read as numbers, with an example of each."""
    said = []
    for name, way in units.items():
        texts = frame[name][is_text(frame[name])]
        example = next(text for text in texts if _number_of(text.strip(), way) is not None)
        said.append(f"{name} ('{example}' is {_number_of(example.strip(), way):.6g})")
    more = [f"... ({len(said)} in all)"] if len(said) > most else []
    return f"read as numbers: {', '.join(said[:most] + more)}" if said else None


def looks_like_numbers(values: Series) -> bool:
    """Whether nearly all texts begin as numbers do and go on without names, as addresses do."""
    texts = as_texts(values[is_text(values)].dropna())
    begin = rf"[<>≤≥~≈(+\-−]?\s?(?:{MONEY})?\s?\.?\d(?!.*[A-Z][a-z]{{3}})"
    return len(texts) > 0 and texts.str.match(begin).mean() >= SHARE


def _reads_some(counts: Series, read: Callable[[str], Any]) -> bool:
    """Whether most of a hundred texts can be read, which tells of most columns that there is nothing to learn."""
    some = counts.iloc[:: 1 + len(counts) // LOOK]
    return sum(some[[read(text) is not None for text in some.index]]) >= some.sum() / 2


def _reads(way: Way, counts: Series) -> bool:
    """Whether it reads nearly all texts, as more than two numbers that float64 holds."""
    if not _reads_some(counts, partial(_number_of, way=way)):
        return False
    numbers = [_number_of(text, way) for text in counts.index]
    read = [number for number in numbers if number is not None]
    rows = counts[[number is not None for number in numbers]].sum()
    return rows >= SHARE * counts.sum() and len(set(read)) > 2 and max(map(abs, read)) < EXACT


def _signs_of(digits: Sequence[str], table: tuple[str, str], money: bool) -> tuple[str, str] | None:
    """The signs of thousands and decimals that read all these texts; None where two pairs read other numbers.

    The signs of the table win, as for plain numbers. Money has no thousandths.
    """
    found: tuple[tuple[str, str], list[float | None]] | None = None
    for pair in dict.fromkeys((table, *SIGNS)):
        if money and any(re.search(rf"\d{re.escape(pair[1])}\d{{3}}$", text) for text in digits):
            continue
        if any(_number(text, *pair) is None for text in digits):
            continue
        if pair == table:
            return pair
        numbers = [_number(text, *pair) for text in digits]
        if found is not None and found[1] != numbers:
            return None
        found = found or (pair, numbers)
    return None if found is None else found[0]


def _parts(text: str) -> tuple[str, str, str] | None:
    """The currency, the digits with their sign, and the unit."""
    match = WRITTEN.fullmatch(text) if len(text) <= LONGEST else None
    if match is None or match["sign"] and match["minus"]:
        return None
    unit = " ".join(match["after"].split())
    unit = unit.removesuffix("s") if len(unit) > 3 else unit  # 1 day, 2 days
    return match["before"], match["sign"] + match["minus"] + match["digits"], unit


def _number_of(text: str, way: Way) -> float | None:
    if len(way) == 1:
        return _time(text, TIMES[way[0]])
    parts = _parts(text)
    if parts is None or (parts[0], parts[2]) != (way[0], way[3]):
        return None
    return _number(parts[1], way[1], way[2])


@cache
def _patterns(thousands: str, decimal: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of numbers with these signs, and of the sign of thousands."""
    between, point = (PATTERNS.get(sign, re.escape(sign)) for sign in (thousands, decimal))
    whole = rf"\d+|\d{{1,3}}(?:{between}\d{{3}})+" if thousands else r"\d+"
    return re.compile(rf"[+\-−]?(?:(?:{whole})(?:{point}\d+)?|{point}\d+)"), re.compile(between)


def _number(digits: str, thousands: str, decimal: str) -> float | None:
    number, between = _patterns(thousands, decimal)
    if not number.fullmatch(digits):
        return None
    plain = between.sub("", digits) if thousands else digits
    return float(plain.replace(decimal, ".").replace("−", "-"))


def _time(text: str, pattern: re.Pattern[str]) -> float | None:
    match = pattern.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        return None
    days, first, second, third = (float(match[part] or 0) for part in ("days", "first", "second", "third"))
    if match["half"]:
        first = first % 12 + 12 * (match["half"] in "pP")
    return float(np.round(24 * days + first + second / 60 + third / 3600, 12))
