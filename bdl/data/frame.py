"""Tables as pandas frames, read from CSV and Parquet files. Each kind of bad file has one clear line."""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pandas as pd

from bdl.errors import BdlWarning, ConfigError

# Columns and tables of pandas, whose own annotations do not tell a type checker which of them `frame[name]` is.
Series: TypeAlias = Any
Frame: TypeAlias = Any
Format = Literal["csv", "parquet"]
PACKAGED = "package:"  # the path of a table that bdl brings along begins with it
SIGNS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " ", "point": ".", "apostrophe": "'"}
# The words that pandas takes for a gap, but for "None", which is a category of many tables: no basement, no symptoms.
GAPS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "n/a", "nan", "null",
)  # fmt: skip
MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
DATE = re.compile(
    rf"\s*(\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}([ T].*)?|\d{{1,2}}:\d{{2}}(:\d{{2}}.*)?|\d{{4}}-\d{{2}}"
    rf"|\d{{1,2}}[ -]{MONTH}[ ,-]+\d{{2,4}}.*|{MONTH} \d{{1,2}},? \d{{4}}.*)\s*",
    re.IGNORECASE,
)
# Numbers and truth values as pandas recognises them in a column that has nothing else.
WHOLE = re.compile(r"[+-]?[0-9]{1,300}")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
GROUPED = re.compile(r"[+-]?[0-9]{1,3}([,.'’\s][0-9]{3})+")  # thousands, or a decimal of three digits
WITH_COMMA = re.compile(r"[+-]?[0-9.'’\s]*,[0-9]+")
WITH_POINT = re.compile(r"[+-]?[0-9]*\.[0-9.]*")
TRUTH_VALUES = ("true", "True", "TRUE", "false", "False", "FALSE")
DATE_TYPES = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period")


@dataclass(frozen=True)
class Reading:
    """How the files of a table are written.

    Args:
        format: "csv" with a header line, or "parquet".
        separator: the sign between the fields of a CSV file: comma, semicolon, tab, bar, space, or the sign itself.
        decimal: the decimal point of a CSV file: point, comma, or the sign itself.
        thousands: the sign between the thousands of its numbers: none, comma, point, space, apostrophe, or the sign.
        missing: words that mean a missing value, besides an empty field and those that pandas knows (NA, NaN, null,
            ...; but None is a text).
    """

    format: Format = "csv"
    separator: str = "comma"
    decimal: str = "point"
    missing: Sequence[str] = ("?",)
    thousands: str = "none"

    def read(
        self,
        path: str | Path,
        key: str = "data.path",
        text: Sequence[str] = (),
        numbers: Collection[str] | None = None,
    ) -> Frame:
        """The table of one file, rows numbered from 0.

        Args:
            key: name of the path's key, for messages.
            text: columns whose fields are kept as they are written.
            numbers: columns that may hold numbers; None means all others.

        Raises ConfigError for a file that is missing, empty, damaged or no such table, and for a doubled column name.
        """
        place, name = locate(path), f"{key}={path}"
        if not place.exists():
            raise ConfigError(f"{name} is not there: looked for {place.absolute()}; give the path of the table")
        if self.format == "parquet" and not find_spec("pyarrow"):
            raise ConfigError(f"{name} needs the package pyarrow: pip install 'bdl[parquet]'")
        try:
            frame = (
                _read_parquet(place) if self.format == "parquet" else self._read_csv(place, key, name, text, numbers)
            )
        except ConfigError:  # a ValueError too
            raise
        except pd.errors.EmptyDataError as error:
            raise ConfigError(
                f"{name} is empty: a table has a line of column names, and a line for each row"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name} is no UTF-8 text ({error.reason}): save the table as CSV in UTF-8") from error
        except (OSError, ValueError) as error:  # ParserError and pyarrow's errors are ValueErrors
            reason = " ".join(str(error).split())
            raise ConfigError(f"{name} cannot be read as {self.format}: {reason}") from error
        frame.columns = [str(column).strip() for column in frame.columns]
        _refuse_doubled(frame.columns, name)
        if frame.empty:
            raise ConfigError(f"{name} has column names and no rows: give a table with rows")
        named = [level for level in frame.index.names if level is not None and level not in frame.columns]
        return _without_row_numbers(frame.reset_index(named).reset_index(drop=True), name)

    def _read_csv(self, path: Path, key: str, name: str, text: Sequence[str], numbers: Collection[str] | None) -> Frame:
        separator, decimal = SIGNS.get(self.separator, self.separator), SIGNS.get(self.decimal, self.decimal)
        options: dict[str, Any] = {"sep": separator, "encoding": "utf-8-sig", "skipinitialspace": separator != "\t"}
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **options)
        names = [str(column).strip() for column in header.iloc[0]]
        if len(names) == 1:
            self._refuse_one_column(names[0], key, name)
        _refuse_doubled([column for column in names if column], name)
        thousands = None if self.thousands == "none" else SIGNS.get(self.thousands, self.thousands)
        options |= {"decimal": decimal, "thousands": thousands, "low_memory": False}
        options |= {"na_values": [*GAPS, *self.missing], "keep_default_na": False}
        frame = pd.read_csv(path, dtype=dict.fromkeys(text, str), **options)
        if decimal == ",":
            _refuse_points(frame[[c for c in frame if c not in text and (numbers is None or c in numbers)]], name)
        if len(frame) and not isinstance(frame.index, pd.RangeIndex):
            raise ConfigError(f"{name}: rows have more fields than the {len(names)} column names: name every column")
        return frame

    def _refuse_one_column(self, header: str, key: str, name: str) -> None:
        """Raise ConfigError; but rows to predict may have one column, the only input of a run."""
        signs = (sign for sign, text in SIGNS.items() if text in header and sign not in (self.separator, "point"))
        sign = next(signs, None)
        if key == "input":
            if sign in (None, "space"):
                return
            raise ConfigError(
                f"{name} is separated by {sign}, and the table of the run by {self.separator}: save it with the "
                "separator and the decimal point of that table"
            )
        remedy = "a table has a target and at least one more column; data.separator names the sign between them"
        if sign is not None:
            remedy = f"its header holds another sign that separates: set data.separator={sign}"
        raise ConfigError(f"{name} has one column only under data.separator={self.separator}; {remedy}")


def locate(path: str | Path) -> Path:
    """The file of a path; `package:airfoil.csv` is a file that bdl brings along."""
    text = str(path)
    if text.startswith(PACKAGED):
        return Path(str(files("bdl.data") / "files" / text.removeprefix(PACKAGED)))
    return Path(text).expanduser()


def require_columns(frame: Frame, columns: Iterable[str], key: str, place: str) -> None:
    """Raise ConfigError unless the table has all these columns."""
    absent = [column for column in columns if column not in frame.columns]
    if absent:
        lowered = {column.lower(): column for column in frame.columns}
        near = difflib.get_close_matches(absent[0].lower(), lowered, 1)
        hint = f"did you mean {lowered[near[0]]}?" if near else f"it has {brief_list(list(frame.columns))}"
        names = brief_list(absent)
        raise ConfigError(f"{key}{names}: {place} has no such column{'s' if len(absent) > 1 else ''}; {hint}")


def brief_list(names: Sequence[str], most: int = 8) -> str:
    """The names, at most `most` of them.

    >>> brief_list(["a", "b", "c"], most=2)
    'a, b, ... (3 in all)'
    """
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])}, ... ({len(names)} in all)"


def as_value(names: Sequence[str]) -> str:
    """The names as a value on a command line. Signs that Hydra does not take need quotes, and so do numbers.

    >>> as_value(["age", "price ($)", "Größe", "2020"])
    '[age,"price ($)","Größe","2020"]'
    """
    return "[" + ",".join(map(_quoted_if_needed, names)) + "]"


def _quoted_if_needed(name: str) -> str:
    """Hydra reads letters beyond ASCII as an error, and 2020, true or null as no text."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*( [A-Za-z0-9_.-]+)*", name)
    special = name.lower() in ("true", "false", "null", "nan", "inf")
    return name if plain and not special else json.dumps(name, ensure_ascii=False)


def holds_dates(values: Series) -> bool:
    """Whether the values are dates or times, or nine tenths of its texts read like some."""
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind in DATE_TYPES:
        return True
    present = values.dropna()
    if kind != "string" or present.empty:
        return False
    return present.map(lambda text: DATE.fullmatch(text) is not None).mean() >= 0.9


def holds_truth_values(values: Series) -> bool:
    return pd.api.types.infer_dtype(values, skipna=True) == "boolean"


def as_numbers(values: Series) -> Series:
    """float64 numbers; NaN for what is missing and for what is no number."""
    numbers: Any = pd.to_numeric(values, errors="coerce")
    return numbers.astype("float64")


def as_texts(values: Series) -> Series:
    """Texts without blanks around them; numbers and truth values in one way of writing them. NaN stays.

    pandas reads a field 01 as a number or as text, according to the other fields of its column. A category must have
    one name in all tables, so both become "1".

    >>> as_texts(pd.Series([1.0, 2.5, None])).tolist()
    ['1', '2.5', nan]
    >>> as_texts(pd.Series(["01", "2.50", " A1", "TRUE"])).tolist()
    ['1', '2.5', 'A1', 'True']
    """
    return values.astype(object).map(_as_text, na_action="ignore")


def _as_text(value: Any) -> str:
    text = str(value).strip()
    if WHOLE.fullmatch(text):
        return str(int(text))
    if NUMBER.fullmatch(text):
        number = float(text)
        return str(int(number)) if number.is_integer() else str(number)
    return text.capitalize() if text in TRUTH_VALUES else text


def number_hint(values: Series) -> str | None:
    """What to set where all texts of a column are numbers with commas or with signs between thousands; else None.

    >>> number_hint(pd.Series(["2,020", "950"]))
    'data.thousands=comma if its commas stand between thousands, data.decimal=comma if they begin decimals'
    >>> number_hint(pd.Series(["2,5", "1"]))
    'data.decimal=comma'
    >>> number_hint(pd.Series(["a", "2,5"])) is None
    True
    """
    if pd.api.types.is_numeric_dtype(values):
        return None
    texts = values.dropna().astype(str).str.strip()
    texts = texts[as_numbers(texts).isna()]
    if texts.empty:
        return None
    if texts.map(lambda text: GROUPED.fullmatch(text) is not None).all():
        sign = re.sub("[0-9+-]", "", texts.iloc[0])[0]
        if sign == ",":
            between = "data.thousands=comma if its commas stand between thousands"
            return f"{between}, data.decimal=comma if they begin decimals"
        word = next((word for word, known in SIGNS.items() if known == sign), None)
        return f"data.thousands={word or f'space once the file has plain spaces instead of {sign!r}'}"
    return "data.decimal=comma" if texts.map(lambda text: WITH_COMMA.fullmatch(text) is not None).all() else None


def _read_parquet(path: Path) -> Frame:
    """The table. Categories stay categories: Parquet itself forgets it of numbers, and what pandas notes does not."""
    from pyarrow.parquet import read_schema

    columns = (read_schema(path).pandas_metadata or {}).get("columns", [])
    noted = [column["name"] for column in columns if column["pandas_type"] == "categorical"]
    frame = pd.read_parquet(path)
    return frame.astype({name: "category" for name in noted if name in frame})


def _refuse_points(frame: Frame, name: str) -> None:
    """Raise ConfigError for numbers with points where decimals have commas. Read as decimals they would be others."""
    for column in frame.select_dtypes(exclude="number"):
        texts = frame[column].dropna().astype(str).str.strip()
        if holds_dates(texts):
            continue
        points = texts.map(lambda text: WITH_POINT.fullmatch(text) is not None)
        if points.any() and as_numbers(texts.str.replace(".", "")).notna().mean() > 0.5:
            raise ConfigError(
                f"{name}: {column} has numbers with points, such as {texts[points].iloc[0]}, under data.decimal=comma: "
                f"set data.thousands=point if they stand between thousands, or data.categorical={as_value([column])} "
                "for codes"
            )


def _refuse_doubled(columns: Iterable[str], name: str) -> None:
    seen: set[str] = set()
    for column in columns:
        if column in seen:
            raise ConfigError(f"{name} has two columns with the name {column!r}: rename one of them")
        seen.add(column)


def _without_row_numbers(frame: Frame, name: str) -> Frame:
    """Leave out a first column without a name that numbers the rows, in whatever order, as pandas writes it."""
    first = frame.columns[0]
    if re.fullmatch(r"Unnamed: 0|", first) and pd.api.types.is_integer_dtype(frame[first]) and frame[first].is_unique:
        warnings.warn(f"{name}: the first column, which has no name, numbers the rows: left out", BdlWarning, 3)
        return frame.iloc[:, 1:]
    return frame
