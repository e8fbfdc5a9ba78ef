"""Tables as pandas frames, read from CSV and Parquet files. Each kind of bad file has one clear line."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from bdl.advice import override
from bdl.data.field_counts import refuse_comment, refuse_ragged, telling_counts
from bdl.data.number_columns import number_columns
from bdl.data.signs import Signs, fitting_signs, warn_of_thousands
from bdl.data.text_encoding import UTF8, guess_encoding, python_name, refuse_other_format, warn_of_utf8
from bdl.data.units import Way, learn_way, numbers_of
from bdl.data.values import BETWEEN, NUMBER, SIGNS, Frame, Series, nearest_name, with_numbers
from bdl.disk.files import is_on_disk
from bdl.errors import BdlWarning, ConfigError
from bdl.interrupts import interruptible

Format = Literal["csv", "parquet"]
NO_SEPARATORS = '\n\r"\\'  # pandas takes them for ends of lines, and around fields
COMPRESSED = (".gz", ".bz2", ".zip", ".xz", ".zst", ".tar")  # pandas unpacks them, but lines are counted in the bytes
CELLS, ROWS = 2**16, 512  # parsed at once, with some 30 bytes a cell; at least so many rows, as each part has its cost
PACKAGED = "package:"  # the path of a table that bdl brings along begins with it
# The words that pandas takes for a gap, without "None", which is a category of many tables: no basement, no symptoms.
GAPS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "n/a", "nan", "null",
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """How the files of a table are written.

    Args:
        format: "csv" with a header line, or "parquet".
        separator: the sign between the fields of a CSV file: comma, semicolon, tab, bar, space, or the sign itself.
        decimal: the decimal point of a CSV file: point, comma, or the sign itself.
        thousands: the sign between the thousands of its numbers: none, comma, point, space, apostrophe, or the sign.
        missing: words that mean a missing value, besides an empty field and those that pandas knows (NA, NaN, null,
            ...; but None is a text). "weight=0" means that 0 is one in the column weight alone.
        day_first: whether 03/04/2020 is 3 April; None finds it, and refuses dates that do not tell.
        encoding: of a CSV file, by Python's name such as "latin-1"; None guesses it of each file, see `guess_encoding`.
        units: how columns write numbers with units and the like, see `learn_way`, which a run learns from its table.

    Raises ConfigError for an unknown encoding, and for more than one sign as a separator: pandas would read it as a
    regular expression, of which a stranger's may never end.
    """

    format: Format = "csv"
    separator: str = "comma"
    decimal: str = "point"
    missing: Sequence[str] = ("?",)
    thousands: str = "none"
    day_first: bool | None = None
    encoding: str | None = None
    units: Mapping[str, Way] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.separator not in SIGNS and (len(self.separator) != 1 or self.separator in NO_SEPARATORS):
            raise ConfigError(
                f"data.separator must be {', '.join(SIGNS)} or one sign, got {self.separator!r}: save the table with "
                "one sign between its fields"
            )
        if self.encoding is not None:
            python_name(self.encoding)
        for name, value in (("decimal", self.decimal), ("thousands", self.thousands)):
            if value not in (*SIGNS, "none") and len(value) != 1:
                raise ConfigError(f"data.{name} must be a name such as point, or one sign, got {value!r}")

    def read(self, path: str | Path, key: str = "data.path", text: Sequence[str] = ()) -> Frame:
        """The table of one file, rows numbered from 0. Texts that are numbers are numbers.

        Args:
            key: name of the path's key, for messages.
            text: columns whose fields are kept as they are written.

        Raises ConfigError for a file that is missing, empty, damaged or no such table, and for a doubled column name.
        """
        name = override(key, str(path))
        with self._file(path, name) as place:
            if self.format == "parquet":
                fit, frame = self, _read_parquet(place)
            else:
                encoding = self._encoding_of(place, key, name)
                fit = self._fitting(place, encoding, name, key == "input")
                frame = fit._read_csv(place, encoding, name, text)
        names = [str(column).strip() for column in frame.columns]
        if doubled := [column for column, count in Counter(names).items() if count > 1]:
            raise ConfigError(f"{name} has two columns with the name {doubled[0]!r}: rename one of them")
        frame.columns = names
        if frame.empty:
            raise ConfigError(f"{name} has column names and no rows: give a table with rows")
        thousands = None if fit.thousands == "none" else BETWEEN.get(fit.thousands, re.escape(fit.thousands))
        signs = (SIGNS.get(fit.decimal, fit.decimal), thousands) if self.format == "csv" else (".", None)
        frame = with_numbers(frame, text, *signs)
        if key == "data.path":
            if self.format == "csv" and fit.separator not in ("comma", ",") and fit.thousands == "none":
                signs = Signs(fit.separator, fit.decimal, fit.thousands)
                warn_of_thousands(frame, place, name, python_name(fit.encoding or UTF8), signs, [*GAPS, *self.missing])
            own = [name for name, _ in map(_parted, self.missing) if name]
            require_columns(frame, own, "data.missing names ", place.name)
        return _without_row_numbers(self.with_gaps(frame), name)

    def with_gaps(self, frame: Frame) -> Frame:
        """The table with gaps in the place of all that means a missing value. -999 stands for -999.0 too.

        Columns of `units` have numbers before that.
        """
        numbers = {name: numbers_of(frame[name], way) for name, way in self.units.items() if name in frame}
        frame = frame.assign(**numbers) if numbers else frame
        general = [word for name, word in map(_parted, self.missing) if not name]
        gaps = {}
        for column in frame:
            words = [*general, *(word for name, word in map(_parted, self.missing) if name == column)]
            if pd.api.types.is_numeric_dtype(frame[column]):
                words = [float(word) for word in words if NUMBER.fullmatch(word)]
            if words and (missing := frame[column].isin(words)).any():
                gaps[column] = frame[column].mask(missing)
        return frame.assign(**gaps) if gaps else frame

    def with_units(self, frame: Frame, names: Iterable[str], targets: Collection[str]) -> Reading:
        """The same, with what is learned of how these columns of a table write their numbers."""
        thousands = "" if self.thousands == "none" else SIGNS.get(self.thousands, self.thousands)
        signs = (thousands, SIGNS.get(self.decimal, self.decimal)) if self.format == "csv" else ("", ".")
        found = {name: learn_way(frame[name], name in targets, signs) for name in names}
        return dataclasses.replace(self, units={name: way for name, way in found.items() if way is not None})

    def _read_csv(self, path: Path, encoding: str, name: str, text: Collection[str]) -> Frame:
        """Columns of plain numbers, and all fields of the others as texts without blanks around them; NaN for gaps."""
        separator = SIGNS.get(self.separator, self.separator)
        read = partial(
            pd.read_csv, path, sep=separator, header=None, encoding=encoding, skipinitialspace=separator != "\t"
        )
        read_texts = partial(read, dtype="str", na_filter=False)
        header = read_texts(nrows=1)  # first, because rows under another separator may have any number of fields
        names, gaps = [str(field).strip() for field in header.iloc[0]], [*GAPS, *self.missing]
        columns: dict[int, Any] = {}
        if self.thousands == "none":  # pandas takes the sign of thousands anywhere between digits
            read_numbers = partial(read, decimal=SIGNS.get(self.decimal, self.decimal), na_values=gaps)
            asked = [i for i, column in enumerate(names) if column not in text]
            read_numbers, rows = partial(read_numbers, keep_default_na=False), max(ROWS, CELLS // len(names))
            with telling_counts(path, name, encoding, separator):
                columns = number_columns(read_numbers, path, asked, rows)
        if others := [i for i in range(len(names)) if i not in columns]:
            with telling_counts(path, name, encoding, separator):  # with usecols, pandas drops fields that are too many
                table = read_texts(usecols=others if columns else None).iloc[1:].reset_index(drop=True)
            fields = dict(table.items())  # a frame of pandas copies its list of columns whenever it gives up one
            del table
            for i in others:
                texts = fields.pop(i).str.strip()
                columns[i] = texts.mask(texts.isin(gaps))
        frame = pd.DataFrame({i: columns[i] for i in range(len(names))}, copy=False)
        frame.columns = [column or f"Unnamed: {i}" for i, column in enumerate(names)]
        if frame.iloc[:, -1].isna().any():  # a row with too few fields looks so too
            refuse_ragged(path, name, encoding, separator)
        return frame

    def of_file(self, path: str | Path, key: str = "data.path") -> Reading:
        """The same, with the encoding and the signs of this file. Warns as `guess_encoding`; raises as `read`."""
        name = override(key, str(path))
        with self._file(path, name) as place:
            if self.format != "csv":
                return self
            encoding = self.encoding or guess_encoding(place, name)
            return dataclasses.replace(self, encoding=encoding)._fitting(place, python_name(encoding), name)

    def _fitting(self, path: Path, encoding: str, name: str, of_run: bool = False) -> Reading:
        """The same, with signs that fit the file, see `fitting_signs`."""
        signs = Signs(self.separator, self.decimal, self.thousands)
        refuse_comment(path, name, encoding, SIGNS.get(self.separator, self.separator))
        fit = fitting_signs(path, name, encoding, signs, [*GAPS, *self.missing], of_run)
        return self if fit is signs else dataclasses.replace(self, **fit._asdict())

    @contextmanager
    def _file(self, path: str | Path, name: str) -> Iterator[Path]:
        """The file of a path, whose errors become lines that begin with `name`."""
        place = locate(path)
        if not place.exists():
            raise ConfigError(f"{name} is not there: looked for {place.absolute()}; give the path of the table")
        if not is_on_disk(place):
            raise ConfigError(f"{name} is no regular file: save the table as a file, and give its path")
        if self.format == "csv" and place.suffix.lower() in COMPRESSED:
            raise ConfigError(f"{name} is compressed: unpack it, or save the table as Parquet, which is small itself")
        if self.format == "csv":
            refuse_other_format(place, name)
        if self.format == "parquet" and not find_spec("pyarrow"):
            raise ConfigError(f"{name} needs the package pyarrow: pip install 'bdl[parquet]'")
        try:
            with interruptible():
                yield place
        except ConfigError:  # a ValueError too
            raise
        except pd.errors.EmptyDataError as error:
            raise ConfigError(
                f"{name} is empty: a table has a line of column names, and a line for each row"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{name} is no {self.encoding or 'UTF-8'} text ({error.reason}): correct data.encoding, or save the "
                "table as CSV in UTF-8"
            ) from error
        except (OSError, ValueError) as error:  # ParserError and pyarrow's errors are ValueErrors
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"{name} cannot be read as {self.format} ({reason.rstrip('.')}): correct it, or save the table again"
            ) from error

    def _encoding_of(self, path: Path, key: str, name: str) -> str:
        """The encoding that is given, or a guess. Rows to predict may have another one than the table of the run."""
        if self.encoding is None or key == "input":
            return python_name(guess_encoding(path, name, self.encoding))
        if (encoding := python_name(self.encoding)) != python_name(UTF8):
            warn_of_utf8(path, name, self.encoding)
        return encoding


def locate(path: str | Path) -> Path:
    """The file of a path; `package:airfoil.csv` is a file that bdl brings along."""
    text = str(path)
    if text.startswith(PACKAGED):
        return Path(str(files("bdl.data") / "files" / text.removeprefix(PACKAGED)))
    return Path(text).expanduser()


def require_columns(frame: Frame, columns: Iterable[str], key: str, place: str) -> None:
    """Raise ConfigError unless the table has all these columns. key: begins the line, `data.drop=` or `input: `."""
    asked, present = list(columns), list(frame.columns)
    absent = [column for column in asked if column not in present]
    if absent:
        near = {column: nearest_name(column, present) for column in absent}
        found = [near.get(column) or column for column in asked]
        hint, named = f"it has {brief_list(present)}", f"{key}{brief_list(absent)}"
        if key.endswith("="):
            named = override(key[:-1], absent if len(absent) > 1 else absent[0])
        if all(near.values()):
            meant = (
                override(key[:-1], found if len(found) > 1 else found[0])
                if key.endswith("=")
                else brief_list([str(near[column]) for column in absent])
            )
            hint = f"did you mean {meant}?"
        raise ConfigError(f"{named}: {place} has no such column{'s' if len(absent) > 1 else ''}; {hint}")


def _parted(word: str) -> tuple[str, str]:
    """The column and the word of "weight=0"; an empty column for a word that counts in all."""
    name, _, value = word.rpartition("=")
    return name, value


def brief_list(names: Sequence[str], most: int = 8) -> str:
    """The names, at most `most` of them.

    >>> brief_list(["a", "b", "c"], most=2)
    'a, b, ... (3 in all)'
    """
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])}, ... ({len(names)} in all)"


def _read_parquet(path: Path) -> Frame:
    """The table. Categories stay categories: Parquet itself forgets it of numbers, and what pandas notes does not."""
    from pyarrow.parquet import read_schema

    columns = (read_schema(path).pandas_metadata or {}).get("columns", [])
    noted = [column["name"] for column in columns if column["pandas_type"] == "categorical"]
    frame = pd.read_parquet(path)
    frame = frame.astype({name: "category" for name in noted if name in frame})
    named = [level for level in frame.index.names if level is not None and level not in frame.columns]
    return frame.reset_index(named).reset_index(drop=True)


def _without_row_numbers(frame: Frame, name: str) -> Frame:
    """Leave out columns without a name that are empty, and a first one that numbers the rows, as pandas writes it."""
    unnamed = [column for column in frame if re.fullmatch(r"Unnamed: \d+|", column)]
    frame = frame.drop(columns=[column for column in unnamed if frame[column].isna().all()])
    first: Series = frame.iloc[:, 0]
    if first.name in unnamed and pd.api.types.is_integer_dtype(first) and first.is_unique:
        warnings.warn(f"{name}: the first column, which has no name, numbers the rows: left out", BdlWarning, 3)
        return frame.iloc[:, 1:]
    return frame
