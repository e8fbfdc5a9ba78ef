"""Tests of `bdl.data.total_rows`: rows of totals and of means are told, with the key that leaves them out."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from bdl.data import read_table
from bdl.errors import ConfigError

RNG = np.random.default_rng(0)
N = 60
SHOPS = pd.DataFrame({"shop": [f"S{i}" for i in range(N)], "staff": RNG.integers(3, 20, N),
                      "rent": RNG.normal(20, 5, N).round(1)})  # fmt: skip
SHOPS["sales"] = (100 * SHOPS["staff"] + RNG.normal(0, 50, N)).round(2)
NUMBERS = SHOPS.select_dtypes("number")


def ended_with(*rows: tuple) -> pd.DataFrame:
    return pd.concat([SHOPS, pd.DataFrame(rows, columns=SHOPS.columns)], ignore_index=True)


def per_region() -> pd.DataFrame:
    """Halves of the table, each with its subtotal, and the total."""
    halves = []
    for name, half in (("Total north", SHOPS[:30]), ("Total south", SHOPS[30:])):
        halves += [half, pd.DataFrame([(name, *half[NUMBERS.columns].sum().round(2))], columns=SHOPS.columns)]
    total = pd.DataFrame([("Grand total", *NUMBERS.sum().round(2))], columns=SHOPS.columns)
    return pd.concat([*halves, total], ignore_index=True)


CASES = {
    "a word": (ended_with(("Total", *NUMBERS.sum().round(2))), r"row 61 \('Total' in shop\) has the sums", "[61]"),
    "no word": (ended_with((None, *NUMBERS.sum().round(2))), "row 61 has the sums of other rows in staff", "[61]"),
    "some sums": (ended_with(("Summe:", NUMBERS["staff"].sum(), 1.5, np.nan)), "row 61 .*sums.* in staff,", "[61]"),
    "means": (ended_with(("Mean", *NUMBERS.mean().round(1)), ("SD", *NUMBERS.std().round(1))),
              r"row 61 \('Mean' in shop\) has a statistic.*row 62 \('SD'", "[61,62]"),
    "first": (ended_with(("Total", *NUMBERS.sum().round(2))).iloc[[N, *range(N)]], r"row 1 \('Total'", "[1]"),
    "subtotals": (per_region(), "row 31 .*row 62 .*row 63", "[31,62,63]"),
    "a brand": (ended_with(("Total", 7, 21.3, 700.5)), None, None),
    "none": (SHOPS, None, None),
    "a grid": (pd.DataFrame({"x": np.linspace(-1, 1, 40), "sales": RNG.normal(size=40)}), None, None),
    "powers": (pd.DataFrame({"sales": 2.0 ** np.arange(40), "x": RNG.normal(size=40)}), None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rows_of_totals_are_told_and_the_key_leaves_them_out(tmp_path, name):
    table, words, rows = CASES[name]
    table.to_csv(tmp_path / "t.csv", index=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        read_table(tmp_path / "t.csv", "sales", id=["shop"] if "shop" in table else [])
    totals = [str(line.message) for line in told if "of other rows" in str(line.message)]
    if words is None:
        assert not totals
        return
    (line,) = totals
    assert pd.Series([line]).str.contains(words, regex=True).all(), line
    assert f"data.drop_rows={rows} leaves" in line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers = [int(row) for row in rows.strip("[]").split(",")]
        data = read_table(tmp_path / "t.csv", "sales", id=["shop"], drop_rows=numbers)
    assert sum(len(y) for _, y in data.splits.values()) == N


def test_a_total_in_a_column_of_numbers_can_be_left_out(tmp_path):
    number = [*RNG.permutation(N), "Total"]
    ended_with(("Total", *NUMBERS.sum())).assign(shop=number).to_csv(tmp_path / "t.csv", index=False)
    data = read_table(tmp_path / "t.csv", "sales", drop_rows=[N + 1])
    assert data.input_shape == (3,)


@pytest.mark.parametrize("row", [0, N + 2, "a", 1.5, True])
def test_rows_that_the_table_lacks_are_refused(tmp_path, row):
    SHOPS.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ConfigError, match=r"data.drop_rows must hold whole numbers from 1 to 60, .*t.csv"):
        read_table(tmp_path / "t.csv", "sales", id=["shop"], drop_rows=[row])


def test_a_header_that_repeats_amid_the_table_is_named(tmp_path):
    """As in files that were joined one after the other."""
    part = "a,b,y\n" + "".join(f"{i % 9},{i % 7}.5,{3 * i + i % 5}\n" for i in range(30))
    (tmp_path / "joined.csv").write_text(2 * part)
    with pytest.raises(ConfigError, match=r"row 31 repeats the header: data.drop_rows=\[31\] leaves it out") as caught:
        read_table(tmp_path / "joined.csv", "y", task="regression")
    assert "data.missing" not in str(caught.value)
    (tmp_path / "joined.csv").write_text(3 * part)
    with pytest.raises(
        ConfigError, match=r"row 31, row 62 repeat the header: data.drop_rows=\[31,62\] leaves them out"
    ):
        read_table(tmp_path / "joined.csv", "y")
