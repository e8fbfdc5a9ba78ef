"""Tests of `bdl.data.frame`: columns of numbers that are parsed in parts, and held once."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from repeats import slow_where

from bdl.data import frame
from bdl.data.frame import GAPS, Reading, require_columns
from bdl.data.table import read_table
from bdl.data.values import with_numbers
from bdl.errors import ConfigError

FIELDS = [
    "1", "-2", "+3", "007", "1.5", "-.5", "2.", "1e3", "1E-3", "1e400", "-inf", "Infinity", "nan", "NaN", "NAN", "NA",
    "?", "", " ", '""', '"4"', '" 5 "', "6 ", " 7", "True", "false", "abc", "1_000", "0x1A", "1,5", '"1,5"', '"1,000"',
    "1.2.3", "9007199254740993", "12345678901234567890", "123456789012345678901234567890", "1e16", "None", "-999",
    "1d5", "-0", "٣", "2020-01-01", "0.1234567890123456789", "5e-324", "1 000",
]  # fmt: skip


def as_texts_first(path: Path, reading: Reading, text: Sequence[str] = ()) -> pd.DataFrame:
    """A table by its definition: all fields are texts, without blanks and gaps; then numbers are found among them."""
    separator, decimal = (",", ".") if reading.separator == "comma" else (";", ",")
    table = pd.read_csv(path, sep=separator, dtype=str, na_filter=False, skipinitialspace=True)
    table = table.apply(lambda column: column.str.strip())
    table = with_numbers(table.mask(table.isin([*GAPS, *reading.missing])), text, decimal)
    return table.mask(table.isin([-999])) if "-999" in reading.missing else table


@pytest.mark.parametrize(
    ("form", "start"),
    slow_where(
        lambda form, start: form == "comma", [("comma", "1"), ("semicolon", "0.25"), ("a number for a gap", "")]
    ),
    ids=["1", "0.25", "gap"],
)
def test_numbers_parsed_in_parts_are_the_numbers_of_texts(tmp_path, monkeypatch, start, form):
    """Each column is of numbers but for one odd field, in the first part, in the last one, or between the others."""
    monkeypatch.setattr(frame, "CELLS", 1)
    monkeypatch.setattr(frame, "ROWS", 4)
    missing = ("?", "-999") if form == "a number for a gap" else ("?",)
    semicolon = form == "semicolon"
    reading = Reading("csv", "semicolon", "comma", missing) if semicolon else Reading(missing=missing)
    between = ";" if semicolon else ","
    fields = [field for field in FIELDS if semicolon or field != "1,5"]
    columns = [[*[start] * row, field, *["3"] * (10 - row)] for field in fields for row in (1, 9)]
    lines = [between.join(f"x{i}" for i in range(len(columns) + 1))]
    lines += [between.join((*row, str(i + 0.5))) for i, row in enumerate(zip(*columns, strict=True))]
    path = tmp_path / "table.csv"
    path.write_bytes("\r\n".join(lines).encode())
    expected = as_texts_first(path, reading, ["x7"])
    pd.testing.assert_frame_equal(reading.read(path, text=["x7"]), expected, check_exact=True)


def test_a_table_of_numbers_is_held_once(tmp_path, monkeypatch):
    """Reading holds 8 bytes a cell and one part of the file, and encoding gives up a column for its inputs."""
    monkeypatch.setattr(frame, "CELLS", 2**10)
    rows, width = 20_000, 20
    x = np.random.default_rng(0).normal(size=(rows, width)).round(3)
    path = tmp_path / "table.csv"
    pd.DataFrame(x, columns=[f"x{i}" for i in range(width)]).to_csv(path, index=False)
    read_table(path, "x0")  # what is allocated once
    tracemalloc.start()
    try:
        read_table(path, "x0")
        peak = tracemalloc.get_traced_memory()[1] / x.size
    finally:
        tracemalloc.stop()
    assert peak < 8 + 8 * 12 / width + 1  # twelve copies of a column, and a part; a second copy of all has 8 more


def test_many_columns_of_text_are_read_in_linear_time(tmp_path, monkeypatch):
    """`DataFrame.pop` copies the list of all columns: 5,000 of them took more than ten minutes."""
    monkeypatch.setattr(pd.DataFrame, "pop", lambda self, name: pytest.fail("a frame gave up a column"))
    path = tmp_path / "wide.csv"
    path.write_text("a,b,y\n" + "red,green,1\nblue,grey,2\n")
    assert Reading().read(path)["b"].tolist() == ["green", "grey"]


def test_names_meant_are_those_of_missing_columns_alone():
    frame = pd.DataFrame({"Temp": [1.0], "lenght": [2.0], "day": [3.0]})
    with pytest.raises(ConfigError, match=r"^input: temp, length: new.csv .* did you mean Temp, lenght\?$"):
        require_columns(frame, ["temp", "length", "day"], "input: ", "new.csv")
