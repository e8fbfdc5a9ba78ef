"""The values of a table's columns, which of their texts are numbers, one way of writing each category, and names."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from bdl.advice import takes

# Columns and tables of pandas, whose own annotations do not tell a type checker which of them `frame[name]` is.
Series: TypeAlias = Any
Frame: TypeAlias = Any
Task = Literal["classification", "regression", "counts"]  # what is predicted of an item
SIGNS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " ", "point": ".", "apostrophe": "'"}
BETWEEN = {"comma": ",", "point": r"\.", "space": r"\s", "apostrophe": "['’]"}  # thousands, as patterns
EXACT = 2**53  # beyond, float64 does not have all whole numbers
WHOLE = re.compile(r"[+-]?[0-9]{1,300}")
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")  # in linear time, whatever the text
BETWEEN_LETTERS = re.compile(r"(?<=[^\W\d_])[-_](?=[^\W\d_])")
TRUTH_VALUES = {"true": "True", "false": "False"}
MANY_DIGITS = r"[+-]?[0-9]{16,300}"  # float64 does not have all of these numbers
# Texts that are numbers under other signs, and what to set or do; the first that fits all texts of a column counts
HINTS = {
    r"[+-]?\d{1,3}(,\d{3})+": "set data.thousands=comma if its commas stand between thousands, data.decimal=comma if "
    "they begin decimals",
    r"[+-]?\d{1,3}(,\d{3})+\.\d+": "set data.thousands=comma",
    r"[+-]?\d{1,3}(\.\d{3})+": "set data.thousands=point if its points stand between thousands, data.decimal=point if "
    "they begin decimals",
    r"[+-]?\d{1,3}(\s\d{3})+([.,]\d+)?": "set data.thousands=space",
    r"[+-]?\d{1,3}(['’]\d{3})+([.,]\d+)?": "set data.thousands=apostrophe",
    r"[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+": "set data.decimal=comma, and data.thousands=point if it has points too",
    r"[+-]?\d*\.\d+": "set data.decimal=point",
    r"[<>≤≥]\s?\d+([.,]\d+)?": "write limits such as <0.5 as numbers, say half of the limit, or leave them empty",
    r"\([€$£¥]?\d[\d.,]*\)": "write -5 for (5)",
    r"(?=.*[€$£¥%])[€$£¥%]?\s?[+-]?\d[\d.,]*\s?[€$£¥%]?": "write its numbers without €, $ or %",
}


def with_numbers(frame: Frame, text: Collection[str] = (), decimal: str = ".", thousands: str | None = None) -> Frame:
    """The table with numbers in place of texts that are numbers.

    Whole numbers of more than 15 digits stay texts where the column has other texts too, and where two of them are the
    same number in float64: they name things.

    Args:
        text: columns that stay as they are written.
        decimal: the sign before decimals.
        thousands: a pattern of the sign that stands before every three digits.
    """
    columns = {name: frame[name] if name in text else _converted(frame[name], decimal, thousands) for name in frame}
    return pd.DataFrame(columns, index=frame.index, copy=False)


def _converted(values: Series, decimal: str, thousands: str | None) -> Series:
    if pd.api.types.is_numeric_dtype(values) or isinstance(values.dtype, pd.CategoricalDtype):
        return values
    texts = values.where(is_text(values))
    if texts.isna().all():
        return values
    texts = texts.astype("str").where(texts.notna())  # a column of texts alone has methods for all of them
    plain = texts = texts.str.replace("−", "-", regex=False)  # typographers' minus
    if decimal != "." or thousands:
        whole = rf"(?:\d+|\d{{1,3}}(?:{thousands}\d{{3}})+)" if thousands else r"\d+"
        point = re.escape(decimal)
        number = rf"[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+)([eE][+-]?\d+)?"
        plain = plain.where(plain.str.fullmatch(number, na=False))
        plain = plain.str.replace(thousands, "", regex=True) if thousands else plain
        plain = plain.str.replace(decimal, ".", regex=False)
    numbers: Series = pd.to_numeric(plain, errors="coerce")
    many = texts.str.fullmatch(MANY_DIGITS, na=False)
    exact = texts[many].astype(object).map(int)
    if (numbers.notna() | values.isna()).all() and exact.nunique() == exact.map(float).nunique():
        return numbers
    return values.astype(object).mask(numbers.notna() & ~many, numbers.astype(object))


def is_text(values: Series) -> Series:
    """(n,) whether a value is a text."""
    if pd.api.types.is_numeric_dtype(values):
        return pd.Series(False, values.index)
    if isinstance(values.dtype, pd.StringDtype):
        return values.notna()
    return values.map(lambda value: isinstance(value, str)).astype(bool)


def holds_complex(values: Series) -> bool:
    """Whether a column holds complex numbers, which lose their imaginary part as numbers."""
    return values.dtype.kind == "c" or values.dtype == object and bool(values.map(np.iscomplexobj).any())


def as_numbers(values: Series) -> Series:
    """float64 numbers; NaN for what is missing and for what is no number."""
    if values.dtype == np.float64:
        return values
    if not pd.api.types.is_numeric_dtype(values):
        values = values.astype(object).where(~is_text(values))
    numbers: Any = pd.to_numeric(values, errors="coerce")
    return numbers.astype("float64")


def as_texts(values: Series) -> Series:
    """Texts without blanks around them; numbers and truth values are written in one way. NaN stays.

    A column may hold the field 01 as a number or as a text. A category must have one name in all tables, so both
    become "1".

    >>> as_texts(pd.Series([1.0, 2.5, None])).tolist()
    ['1', '2.5', nan]
    >>> as_texts(pd.Series(["01", "2.50", " A1", "TRUE"])).tolist()
    ['1', '2.5', 'A1', 'True']
    """
    if values.empty or pd.api.types.infer_dtype(values) != "string":
        return values.astype(object).map(_as_text, na_action="ignore").astype(object)  # gaps alone would be floats
    codes, distinct = pd.factorize(values)  # a category stands in many rows, and is written once
    texts = pd.Series([*map(_as_text, distinct), np.nan])
    return texts.iloc[codes].set_axis(values.index).rename(values.name)  # a gap has the code -1


def _as_text(value: Any) -> str:
    text = str(value).strip()
    if WHOLE.fullmatch(text):
        return str(int(text))
    if NUMBER.fullmatch(text):
        number = float(text)
        return str(int(number)) if number.is_integer() else str(number)
    return TRUTH_VALUES.get(text.lower(), text)


def spelling(text: str) -> str:
    """The same for texts that differ in capitals, blanks, accents, and hyphens between letters alone.

    >>> spelling("São  Paulo") == spelling("sao-paulo"), spelling("A+") == spelling("A-")
    (True, False)
    """
    letters = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(BETWEEN_LETTERS.sub("", letters).casefold().split())


def holds_truth_values(values: Series) -> bool:
    if pd.api.types.is_bool_dtype(values):
        return True
    different = () if pd.api.types.is_numeric_dtype(values) else as_texts(values.dropna()).unique()
    return len(different) > 0 and set(different) <= set(TRUTH_VALUES.values())


def number_hint(values: Series) -> str | None:
    """What to do where all texts of a column are numbers under other signs; None elsewhere.

    Where nobody can set `data.decimal`, as for rows to predict, it names the arguments of `pandas.read_csv`.

    >>> number_hint(pd.Series(["2,020", "950,5"]))
    'set data.decimal=comma, and data.thousands=point if it has points too'
    >>> number_hint(pd.Series(["a", "2,5"])) is None
    True
    """
    if pd.api.types.is_numeric_dtype(values):
        return None
    texts = {text.strip() for text in values[is_text(values)].unique()}
    if not texts:
        return None
    hint = next((hint for pattern, hint in HINTS.items() if all(re.fullmatch(pattern, t) for t in texts)), None)
    if hint is None or takes("data.decimal"):
        return hint
    return re.sub(
        r"data\.(\w+)=(\w+)",
        lambda m: f"{m[1]}={SIGNS[m[2]]!r}",
        hint.replace("set ", "make numbers of it, as pandas.read_csv does with ", 1),
    )


def nearest_name(name: str, columns: Sequence[str]) -> str | None:
    """The column that is meant by a name: one that YAML or Hydra reads as the same number, or one spelt nearly so."""
    alike = [column for column in columns if _as_value(column) == _as_value(name)]
    if alike:
        return alike[0]
    lowered = {column.lower(): column for column in columns}
    near = difflib.get_close_matches(name.lower(), lowered, 1)
    return lowered[near[0]] if near else None


def _as_value(name: str) -> float | str:
    try:
        return float(name)
    except ValueError:
        return "none" if name == "null" else name.lower()
