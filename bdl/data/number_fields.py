"""Columns of a CSV file that hold numbers alone, parsed into arrays of 8 bytes a cell, without a text for each cell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bdl.disk.files import open_regular

CELLS, ROWS = 2**16, 512  # parsed at once, with some 30 bytes a cell; at least so many rows, as each part has its cost
BLOCK = 2**20  # bytes read at once
EXACT = 2**53  # float64 has all whole numbers up to it


def number_columns(read: Callable[..., Any], path: Path, width: int, texts: Collection[int]) -> dict[int, np.ndarray]:
    """The columns of plain numbers, by position: (rows,) int64, or float64 with NaN for gaps.

    A column is left out if it has a field that is no finite number, no number at all, or numbers beyond 2^53, of which
    float64 does not have all: the caller then looks at its fields as they are written.

    Args:
        read: opens the file as `pandas.read_csv` does, with a first line that is no row.
        width: the number of columns.
        texts: columns that are left out unseen.
    """
    rows = max(ROWS, CELLS // width)
    start = next(_parts(read, ROWS, {}), None)
    if start is None:
        return {}
    texts = {*texts, *(i for i in range(width) if start[i].dtype.kind not in "if")}
    most = _most_rows(path)
    columns = {i: np.empty(most) for i in range(width) if i not in texts}  # pages that are not written take no memory
    whole, count = set(columns), 0
    # a text becomes a category here, because that makes one object for all equal fields
    for part in _parts(read, rows, dict.fromkeys(texts, "category")):
        kinds = [dtype.kind for dtype in part.dtypes]
        columns = {i: column for i, column in columns.items() if kinds[i] in "if"}
        whole -= {i for i in whole if kinds[i] == "f"}
        # together, because a column of pandas costs as much as the parsing of a hundred numbers
        values = (part if len(columns) == width else part[list(columns)]).to_numpy(np.float64).T
        plain = _plain(values)
        for column, numbers in zip(columns.values(), values, strict=True):
            column[count : count + len(part)] = numbers
        columns = {i: column for (i, column), kept in zip(columns.items(), plain, strict=True) if kept}
        count += len(part)
        del part, values  # before the next part is parsed
    for i in whole & set(columns):
        columns[i].view(np.int64)[:count] = columns[i][:count]
    read_in = {i: (column.view(np.int64) if i in whole else column)[:count] for i, column in columns.items()}
    return {i: column for i, column in read_in.items() if i in whole or not np.isnan(column).all()}


def _parts(read: Callable[..., Any], rows: int, dtype: dict[int, str]) -> Iterator[pd.DataFrame]:
    """Some rows of the file after the others. low_memory=False keeps pandas from dividing them further."""
    with read(iterator=True, low_memory=False, dtype=dtype) as parser:
        parser.get_chunk(1)
        while True:
            try:
                yield parser.get_chunk(rows)
            except StopIteration:
                return


def _plain(values: np.ndarray) -> np.ndarray:
    """(columns,) whether all of these numbers (columns, rows) are below 2^53 or gaps.

    float64 makes no whole number beyond 2^53 one below it.
    """
    return np.asarray((np.isnan(values) | (values > -EXACT) & (values < EXACT)).all(1))


def _most_rows(path: Path) -> int:
    """The number of line ends, which rows do not exceed."""
    ends, last = 1, b""
    with open_regular(path) as file:
        while block := file.read(BLOCK):
            ends += block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n") - (last + block[:1] == b"\r\n")
            last = block[-1:]
    return ends
