"""Tests of `bdl.data.units`: numbers with units, currencies, other signs and times are read where one reading fits."""

import json

import numpy as np
import pandas as pd
import pytest

from bdl.data import read_table
from bdl.data.table_encoding import TableEncoding
from bdl.data.units import learn_way, numbers_of
from bdl.errors import ConfigError

NUMBERS = np.round(np.linspace(5.05, 14.3, 60), 2)
WRITTEN = {
    "unit": lambda v: f"{v:.2f} kg",
    "unit without a blank": lambda v: f"{v:.2f}kg",
    "unit of two words": lambda v: f"{v:.2f} sq ft",
    "speed": lambda v: f"{v:.2f} km/h",
    "degrees": lambda v: f"{v:.2f}°C",
    "percent": lambda v: f"{v:.2f} %",
    "currency before": lambda v: f"${v:,.2f}",
    "currency behind": lambda v: f"{v:.2f} €".replace(".", ","),
    "currency by letters": lambda v: f"USD {v:.2f}",
    "hours": lambda v: f"{int(v):02d}h{round(v % 1 * 60):02d}",
    "three parts": lambda v: f"{int(v)}:{int(v % 1 * 60):02d}:{int(v * 60 % 1 * 60):02d}",
    "12 hours": lambda v: f"{int(v) % 12 or 12}:{round(v % 1 * 60):02d} {'PM' if v > 12 else 'am'}",
    "timedelta of pandas": lambda v: f"0 days {int(v):02d}:{round(v % 1 * 60):02d}:00",
}  # fmt: skip


def table(tmp_path, column, name="y"):
    frame = pd.DataFrame({"x": np.cos(np.arange(len(column))).round(3), "y": np.sin(np.arange(len(column))).round(4)})
    frame[name] = list(column)
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_target_with_units_is_a_regression_and_is_told(tmp_path, kind):
    texts = [WRITTEN[kind](v) for v in NUMBERS]
    data = read_table(table(tmp_path, texts), "y")
    assert data.task == "regression" and f"read as numbers: y ('{texts[0]}' is " in str(data.overview)
    ((_, mean, std),) = data.target_units or ()
    read = np.concatenate([data.tensors(s)[1][:, 0].numpy() * std + mean for s in ("train", "test")])
    np.testing.assert_allclose(np.sort(read), NUMBERS, atol=1.01 / 60)


@pytest.mark.parametrize("kind", WRITTEN)
def test_inputs_with_units_are_numbers_but_times_of_a_day(tmp_path, kind):
    data = read_table(table(tmp_path, [WRITTEN[kind](v) for v in NUMBERS], "c"), "y")
    of_day = kind in ("three parts", "12 hours")  # two points of a circle
    assert data.input_shape == (3 if of_day else 2,) and ("read as numbers: c" in str(data.overview)) is not of_day


def test_rows_to_predict_are_read_as_the_table_was(tmp_path):
    """One row alone would not tell whether 9,000 kg are nine tons."""
    texts = [f"{1000 * v:,.0f} kg" for v in NUMBERS]
    texts[7] = "1,000,000 kg"
    path = table(tmp_path, texts, "c")
    data = read_table(path, "y")
    encoding = TableEncoding.from_plain(json.loads(json.dumps(data.preprocessing())))
    row = path.with_name("row.csv")
    row.write_text('x,c\n1,"9,000 kg"\n2,9000\n3,9 tons\n')
    read = encoding.reading.read(row, "input")
    assert read["c"].tolist() == [9000, 9000, "9 tons"]
    with pytest.raises(ConfigError, match="c has '9 tons' in row 3, and no finite number in 1 of 3 rows"):
        encoding.encode(read, "input: ", "row.csv")


def test_tables_without_units_keep_their_record(tmp_path):
    data = read_table(table(tmp_path, NUMBERS, "c"), "y")
    assert "units" not in data.preprocessing()["reading"]


@pytest.mark.parametrize("texts, numbers", [
    (["€1.200", "€950", "€1.300"], [1200, 950, 1300]),  # money has no thousandths
    (["7 858,6", "1 200,5", "950"], [7858.6, 1200.5, 950]),
    (["1.200,5", "3", "7,5"], [1200.5, 3, 7.5]),
    (["1'200", "950", "3’000"], [1200, 950, 3000]),
    (["1 day", "2 days", "3 days"], [1, 2, 3]),
    (["-$5", "$3", "$4.50"], [-5, 3, 4.5]),
    (["45:30", "61:02", "12:00"], [45.5, 61 + 2 / 60, 12]),
    (["1 day, 2:00:00", "3:30:00", "4:00:00"], [26, 3.5, 4]),
    (["12 AM", "1 AM"], None), (["12:00 AM", "1:00 AM", "1:00 PM"], [0, 1, 13]),
    (["1,200 kg", "2,300 kg", "4,100 kg"], None),  # 1200 or 1.2
    (["59:59", "58:00", "1:02:03"], None),  # minutes in two places
    (["10A", "10B", "11A", "12A"], None), (["A1", "A2", "A3"], None), (["007X", "008X", "009X"], None),
    (["1st", "2nd", "3rd"], None), (["36 months", "60 months"], None), (["7 kg", "500 g", "3 kg"], None),
    (["2020-01-02", "2020-01-03", "2020-02-05"], None), (["10.11.12", "11.11.12", "12.11.12"], None),
    (["7-12", "8-13", "9-14"], None), (["1,5", "2,5", "3,5"], None),  # data.decimal=comma is asked for
])  # fmt: skip
def test_only_one_reading_is_taken(texts, numbers):
    way = learn_way(pd.Series(texts), target=True)
    assert (None if way is None else numbers_of(pd.Series(texts), way).tolist()) == (
        None if numbers is None else pytest.approx(numbers)
    )


def test_a_typographers_minus_is_a_minus(tmp_path):
    data = read_table(table(tmp_path, [f"−{v}" if v > 9 else f"{v}" for v in NUMBERS]), "y")
    assert data.task == "regression"


@pytest.mark.parametrize("texts, words", {
    "two units": ([f"{v} kg" if i % 3 else f"{1000 * v:.0f} g" for i, v in enumerate(NUMBERS)], "begin as numbers do"),
    "errors": ([f"{v} ± 0.1" for v in NUMBERS], "begin as numbers do: write one plain number in each field"),
    "limits": ([f"<{v}" if i % 9 == 0 else v for i, v in enumerate(NUMBERS)], "'<5.05'.: write limits .* half"),
    "brackets": ([f"({v})" if i % 3 else v for i, v in enumerate(NUMBERS)], r"write -5 for \(5\)"),
    "gaps": ([f"{v} kg" if i % 20 else "n.a." for i, v in enumerate(NUMBERS)], "data.missing=.'[?]',n.a.. if"),
}.values())  # fmt: skip
def test_what_cannot_be_read_is_no_silent_classification(tmp_path, texts, words):
    with pytest.raises(ConfigError, match=words):
        read_table(table(tmp_path, texts), "y")


@pytest.mark.parametrize(
    "text, word", [("{} g and more", "write '.*' and the others as plain numbers"), ("{} Main St", "")]
)
def test_an_input_that_looks_like_numbers_is_told_so(tmp_path, text, word):
    texts = [text.format(i) + (" or less" if i % 2 else "") for i in range(60)]
    with pytest.raises(ConfigError, match=f"more than data.max_levels=20: {word}") as refusal:
        read_table(table(tmp_path, texts, "c"), "y", max_levels=20)
    assert ("plain numbers" in str(refusal.value)) is bool(word)


def test_words_that_mean_a_gap_are_gaps_before_units_are_read(tmp_path):
    texts = [f"{v} kg" if i % 20 else "n.a." for i, v in enumerate(NUMBERS)]
    with pytest.warns(match="the target y is missing in 3 of 60 rows"):
        assert read_table(table(tmp_path, texts), "y", missing=["n.a."]).task == "regression"


def test_classes_that_are_asked_for_keep_their_names(tmp_path):
    data = read_table(table(tmp_path, ["1 star", "2 star", "3 star"] * 20), "y", task="classification")
    assert data.labels == ("1 star", "2 star", "3 star")


def test_categories_that_are_asked_for_stay_texts(tmp_path):
    data = read_table(table(tmp_path, ["1 star", "2 star", "3 star"] * 20, "c"), "y", categorical=["c"])
    assert data.input_shape == (5,)
