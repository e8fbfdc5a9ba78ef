"""Rows of a CSV file that do not fit its header: other tools shift or drop their fields without a word."""

from __future__ import annotations

import csv
import io
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from bdl.disk.files import open_regular
from bdl.errors import ConfigError

COMMENTS = ("#", "%", "//")


def refuse_comment(path: Path, name: str, encoding: str, separator: str) -> None:
    """Raise ConfigError where the first line is a comment: the rows after it have another number of fields."""
    line, first = next(rows_of(path, encoding, separator), (0, [""]))
    start = first[0].strip()
    for_excel = start.startswith("sep=") and not start[4:].isalnum()
    if for_excel or start.startswith(COMMENTS) and len(first) != _fields_of_most(path, encoding, separator):
        raise ConfigError(
            f"{name} begins with a comment in line {line}, {','.join(first)[:40]!r}: remove such lines, the first one "
            "names the columns"
        )


def _fields_of_most(path: Path, encoding: str, separator: str) -> int:
    first = [len(row) for _, row in itertools.islice(rows_of(path, encoding, separator), 50)]
    return max(first, key=first.count)


def refuse_ragged(path: Path, name: str, encoding: str, separator: str) -> None:
    """Raise ConfigError where a row has more or fewer fields than the header, with both counts and the line."""
    rows = rows_of(path, encoding, separator)
    _, header = next(rows, (0, []))
    wrong = [(line, len(row), row[-1]) for line, row in rows if len(row) != len(header)]
    if not wrong:
        return
    (line, count, last), named = wrong[0], len(header)
    others = f" ({len(wrong):,} such rows)" if len(wrong) > 1 else ""
    remedy = "correct these lines, or the header"
    if count == named + 1 and not last:
        remedy = "a separator ends the row, and none the header: remove the one, or add the other"
    elif count == named + 1:
        remedy = "if the first fields number the rows, as R's write.table writes them, col.names=NA gives them a column"
    raise ConfigError(
        f"{name}: the header names {named} columns, and line {line} has {count} field{'s' * (count != 1)}{others}: "
        f"{remedy}"
    )


@contextmanager
def telling_counts(path: Path, name: str, encoding: str, separator: str) -> Iterator[None]:
    """Where pandas meets rows with too many fields, say how many there are, and where."""
    try:
        yield
    except pd.errors.ParserError:
        refuse_ragged(path, name, encoding, separator)
        raise


def rows_of(path: Path, encoding: str, separator: str) -> Iterator[tuple[int, Sequence[str]]]:
    """The line on which each row begins, and its fields. Empty lines are no rows."""
    csv.field_size_limit(sys.maxsize)
    with open_regular(path) as file:
        text = io.TextIOWrapper(file, encoding, newline="")
        reader, line = csv.reader(text, delimiter=separator, skipinitialspace=separator != "\t"), 1
        for row in reader:
            if any(field.strip() for field in row) or len(row) > 1:
                yield line, row
            line = reader.line_num + 1
