"""Columns of plain numbers of a CSV file, parsed in parts, so that a table takes 8 bytes a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bdl.data.values import EXACT
from bdl.disk.files import open_regular


def number_columns(read: Callable[..., Any], path: Path, asked: Sequence[int], rows: int) -> dict[int, np.ndarray]:
    """The columns of plain numbers, by position: (rows,) int64, or float64 with NaN for gaps.

    A column is left out if it has a field that is no finite number, no number at all, or numbers beyond 2^53, of which
    float64 does not have all: the caller then looks at its fields as they are written. The file is parsed in parts, so
    that a table takes 8 bytes a cell, without a text for each.

    Args:
        read: opens the file as `pandas.read_csv` does, with a first line that is no row.
        asked: positions of the columns that may be of numbers.
        rows: how many of them are parsed at once.
    """
    with open_regular(path) as file:
        blocks = iter(partial(file.read, 2**20), b"")
        most = 1 + sum(block.count(b"\n") + block.count(b"\r") for block in blocks)  # no fewer than there are rows
    columns: dict[int, Any] = {i: np.empty(most) for i in asked}  # pages that are not written take no memory
    whole, count = set(columns), 0
    with read(chunksize=rows, low_memory=False) as parts:  # pandas would divide the parts further
        parts.get_chunk(1)
        for part in parts:
            kinds = [dtype.kind for dtype in part.dtypes]
            columns = {i: column for i, column in columns.items() if kinds[i] in "if"}
            whole -= {i for i in columns if kinds[i] == "f"}
            # together, because a column of pandas costs as much as the parsing of a hundred numbers
            values = part[list(columns)].to_numpy(np.float64).T
            plain = (np.isnan(values) | (np.abs(values) < EXACT)).all(1)
            for column, numbers in zip(columns.values(), values, strict=True):
                column[count : count + len(part)] = numbers
            columns = {i: column for (i, column), kept in zip(columns.items(), plain, strict=True) if kept}
            count += len(part)
    for i, column in columns.items():
        columns[i] = column[:count].astype(np.int64) if i in whole else column[:count]
    return {i: column for i, column in columns.items() if i in whole or not np.isnan(column).all()}
