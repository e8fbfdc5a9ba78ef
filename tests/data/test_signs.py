"""Tests of `bdl.data.signs`: separators and signs of numbers that do not fit are guessed and said, or both named."""

import warnings

import numpy as np
import pytest

from bdl.data.frame import Reading
from bdl.data.table import read_table
from bdl.errors import BdlWarning, ConfigError

ROWS = 60
SIZE, PRICE = np.arange(1, ROWS + 1) * 7.25 % 90, np.arange(1, ROWS + 1) * 131.5 % 4000  # tens, and thousands


def table(path, separator, size, price, header=("size", "price", "y")):
    """Rows of two numbers and a whole one, as `size` and `price` write them."""
    rows = [header, *((size(s), price(p), str(i)) for i, (s, p) in enumerate(zip(SIZE, PRICE, strict=True)))]
    path.write_text("".join(separator.join(row) + "\n" for row in rows))
    return path


def point(number):
    return f"{number:.2f}"


def comma(number):
    return point(number).replace(".", ",")


def grouped(thousands, decimal):
    return lambda number: f"{number:,.2f}".translate(str.maketrans({",": thousands, ".": decimal}))


def thousandths(number):
    return f"{1 + number % 900:.3f}"


GUESSED = {
    "German": (";", comma, grouped(".", ","), "data.separator=semicolon data.decimal=comma data.thousands=point"),
    "Swiss": (";", point, grouped("'", "."), "data.separator=semicolon data.thousands=apostrophe"),
    "French": (";", comma, grouped("\u202f", ","), "data.separator=semicolon data.decimal=comma data.thousands=space"),
    "American": (";", point, grouped(",", "."), "data.separator=semicolon data.thousands=comma"),
    "tabs": ("\t", comma, comma, "data.separator=tab data.decimal=comma"),
    "bars": ("|", point, point, "data.separator=bar"),
    "blanks": ("  ", point, point, "data.separator=space"),
    "tildes": ("~", point, point, "data.separator='\"~\"'"),
    "blanks after semicolons": ("; ", comma, comma, "data.separator=semicolon data.decimal=comma"),
    "no decimals": (";", lambda number: str(int(number)), lambda number: str(int(number)), "data.separator=semicolon"),
}  # fmt: skip


@pytest.mark.parametrize("case", GUESSED)
def test_signs_that_fit_are_guessed_and_said_once(tmp_path, case):
    separator, size, price, words = GUESSED[case]
    path = table(tmp_path / "t.csv", separator, size, price)
    with pytest.warns(BdlWarning) as told:
        data = read_table(path, "y")
    assert len(told) == 1 and f"has one column under data.separator=comma: read with {words}" in str(told[0].message)
    keys = dict(word.removeprefix("data.").split("=") for word in words.replace("'\"~\"'", "~").split())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = read_table(path, "y", **keys)
    assert data.identity() == same.identity()
    whole = case == "no decimals"
    learned = {column.name: column for column in data.encoding.inputs.columns}
    rows = data.encoding.reading.read(path)
    expected = PRICE.astype(int) if whole else PRICE.round(2)
    np.testing.assert_allclose(rows["price"].to_numpy(), expected)
    assert learned["price"].mean == pytest.approx(expected[data._lines["train"]].mean())


ASKED = {
    "points before thousandths or thousands": (
        ";", thousandths, thousandths,
        "data.separator=semicolon ('{0}' is {0}) or data.separator=semicolon data.decimal=comma data.thousands=point",
    ),
    "commas": (
        "\t", lambda number: thousandths(number).replace(".", ","), lambda number: str(int(number)),
        "data.separator=tab data.thousands=comma ('{1}' is {2}) or data.separator=tab data.decimal=comma",
    ),
    "bars and tabs": ("|\t", point, point, "data.separator=tab or data.separator=bar"),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_two_readings_are_asked_for(tmp_path, case):
    separator, size, price, words = ASKED[case]
    number = thousandths(SIZE[0])
    number = max((thousandths(n) for n in [*SIZE, *(PRICE if "points" in case else [])]), key=len)
    words = words.format(number, number.replace(".", ","), number.replace(".", ""))
    with pytest.raises(ConfigError) as refusal:
        read_table(table(tmp_path / "t.csv", separator, size, price), "y")
    line = str(refusal.value)
    assert "two readings are possible: set" in line and words in line and "\n" not in line


def test_rows_that_fit_under_another_separator_are_not_called_ragged(tmp_path):
    path = table(tmp_path / "t.csv", ";", comma, comma, ("size, m", "price", "y"))
    with pytest.warns(BdlWarning, match="rows of several lengths .* data.separator=semicolon data.decimal=comma"):
        read_table(path, "y")


def test_thousandths_beside_another_separator_are_pointed_out(tmp_path):
    """Without a comma between fields, 1.234 may be 1,234; one number of another kind tells."""
    path = table(tmp_path / "t.csv", ";", thousandths, lambda number: str(int(number)))
    with pytest.warns(BdlWarning, match="then set data.separator=semicolon data.decimal=comma data.thousands=point"):
        read_table(path, "y", separator="semicolon")
    path = table(tmp_path / "u.csv", ";", thousandths, point)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_table(path, "y", separator="semicolon")
        assert len(Reading().read(table(tmp_path / "v.csv", ",", thousandths, point))) == ROWS


def test_rows_to_predict_may_have_other_signs_than_the_table_of_the_run(tmp_path):
    path = table(tmp_path / "new.csv", ";", comma, grouped(".", ","))
    with pytest.warns(BdlWarning, match="is not separated by comma, as the table of the run is: read with"):
        rows = Reading().read(path, "input")
    np.testing.assert_allclose(rows["price"], PRICE.round(2))
