"""Tests of `bdl.data.encoding` and `bdl.data.far`: rows far from all training rows are told by column and share."""

import contextlib
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from bdl.advice import naming
from bdl.data.encoding import InputEncoding
from bdl.data.far import warn_of_far
from bdl.data.kinds import CategoryColumn, NumberColumn
from bdl.data.values import number_hint
from bdl.errors import BdlWarning, ConfigError

N = 300
TRAIN = pd.DataFrame({"size": np.random.default_rng(0).normal(1.7, 0.2, N), "kind": ["a", "b", "c"] * (N // 3)})
ENCODING = InputEncoding.learn(TRAIN, ["size", "kind"], (), 50, "t.csv")


def test_the_training_rows_are_never_far():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_far(ENCODING.columns, TRAIN, N, "t.csv")
        warn_of_far(ENCODING.columns, TRAIN.assign(size=TRAIN["size"].where(TRAIN.index > 0)), N, "t.csv")


@pytest.mark.parametrize(
    "sizes, words",
    [(TRAIN["size"] * 1000, "size in 300 of 300 rows (100 %)"),
     (TRAIN["size"] / 1000, "size in all 300 rows, 0.00"), ((TRAIN["size"] / 1000)[:5], "size in all 5 rows, 0.00"),
     ([1.7, 1e30, 1.8], "size in 1 of 3 rows (33.3 %), 1e+30 in row 2")],
)  # fmt: skip
def test_numbers_far_from_all_training_rows_are_told(sizes, words):
    frame = pd.DataFrame({"size": sizes, "kind": "a"})
    with pytest.warns(BdlWarning, match="far from all training rows") as told:
        warn_of_far(ENCODING.columns, frame, N, "new.csv")
    assert words in str(told[0].message) and "1.69 ± 0.2 in training" in str(told[0].message)


@pytest.mark.parametrize("column, sizes", [
    ("few", TRAIN["size"][:4] / 1000), ("one value", [0.001] * 9), ("some", [*TRAIN["size"][:9] / 1000, 1.7]),
    ("tenths", TRAIN["size"][:15] / 10), ("around 0", TRAIN["size"] / 1000), ("skewed", TRAIN["size"] / 1000),
])  # fmt: skip
def test_small_numbers_that_may_be_values_are_not_told(column, sizes):
    """Of columns around 0, and of those whose standard deviation exceeds their mean, small numbers are usual."""
    values = {"around 0": TRAIN["size"] - 1.7, "skewed": np.exp(3 * (TRAIN["size"] - 1.7) / 0.2)}.get(column)
    encoding = ENCODING if values is None else InputEncoding.learn(TRAIN.assign(size=values), ["size"], (), 50, "t.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_far(encoding.columns, pd.DataFrame({"size": sizes, "kind": "a"}), N, "new.csv")


def test_a_row_whose_category_is_missing_is_encoded_without_a_word_of_pandas():
    rows = pd.DataFrame({"a": pd.Series([None, None], dtype=object)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CategoryColumn("a", ("x", "y"), "y", True).encode(rows["a"], "t").tolist() == [[0, 1, 0, 1]] * 2


DAYS = pd.Series(pd.date_range("2015-01-01", "2020-12-31", N), name="when")


@pytest.mark.parametrize("way", [None, "%d.%m.%Y %H:%M"])
def test_dates_farther_from_training_than_training_is_long_are_told(way):
    def written(days):
        return pd.DataFrame({"when": days if way is None else days.dt.strftime(way)})

    (column,) = InputEncoding.learn(written(DAYS), ["when"], (), 50, "t.csv").columns
    older = InputEncoding.from_plain(_without_ends(column))
    near = pd.Series(pd.to_datetime(["2010-06-01", "2026-01-01", None]))
    for columns in ([column], older.columns):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_far(columns, written(DAYS), N, "t.csv")
            warn_of_far(columns, written(near), N, "t.csv")
        with pytest.warns(
            BdlWarning, match=r"training rows: when in 1 of 3 rows \(33.3 %\), 2099-01-01 in row 2"
        ) as told:
            warn_of_far(columns, written(pd.Series(pd.to_datetime(["2016-01-01", "2099-01-01", None]))), N, "t.csv")
        assert "to 202" in str(told[0].message) and len(told) == 1


def _without_ends(column):
    (plain,) = InputEncoding((column,)).to_plain()
    return [{**plain, "parts": [{**part, "low": None, "high": None} for part in plain["parts"]]}]


@pytest.mark.parametrize("factor", [1 / 2.54, 2.54, 2.2046, 1 / 2.2046])
def test_a_whole_column_in_another_unit_is_told(factor):
    rows = TRAIN.iloc[::10].assign(size=factor * TRAIN["size"][::10])
    with pytest.warns(BdlWarning, match="unlike those of training: size has the median") as told:
        warn_of_far(ENCODING.columns, rows, N, "new.csv")
    assert "in 30 rows, and 1.2" in str(told[0].message) and "is this another unit?" in str(told[0].message)


@pytest.mark.parametrize("sizes", [TRAIN["size"][::10], TRAIN["size"][:15] * 2, [2.4] * 30, TRAIN["size"] * 1.1])
def test_other_rows_and_few_rows_are_no_other_unit(sizes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_far(ENCODING.columns, pd.DataFrame({"size": list(sizes), "kind": "a"}), N, "new.csv")


@pytest.mark.parametrize("text", ["BLUE", "bl\u00fbe", "b lue ", "b-lue"])
def test_an_unseen_category_names_the_level_it_looks_like(text):
    column = CategoryColumn.learn(pd.Series(["blue", "red", "A-"] * 5, name="color"))
    with pytest.warns(BdlWarning) as told:
        column.encode(pd.Series([text, "blue", "A+", "green"]), "new.csv")
    assert len(told) == 1
    assert f"; {text.strip()!r} looks like 'blue': write each as in training" in str(told[0].message)


def test_gaps_that_no_training_row_has_are_told_in_one_line():
    rows = pd.DataFrame({"size": [1.7, None, None], "kind": ["a", None, "b"]})
    with pytest.warns(BdlWarning) as told:
        x = ENCODING.encode(rows, "", "new.csv")
    assert len(told) == 1 and x.isfinite().all()
    assert "of 3 rows, size in 2, which becomes its median, 1.6" in str(told[0].message)
    assert "; kind in 1, which becomes the most frequent category, a" in str(told[0].message)


@pytest.mark.parametrize("sizes", [[1j, 2j, 1 + 1j], pd.Series([1.7, 1.8, 1 + 1j], dtype=object)])
def test_complex_numbers_are_refused(sizes):
    with pytest.raises(
        ConfigError, match="t: size holds complex numbers: give their real and imaginary parts a column"
    ):
        ENCODING.encode(pd.DataFrame({"size": sizes, "kind": "a"}), "", "t")
    with pytest.raises(ConfigError, match="size holds complex numbers"):
        InputEncoding.learn(pd.DataFrame({"size": sizes}), ["size"], (), 50, "t")


@pytest.mark.parametrize("keys, remedy", [
    (True, "data.drop_rows=[4] leaves rows of totals out"), (False, "leave row 4 out, if it holds totals"),
])  # fmt: skip
def test_a_total_among_numbers_is_no_gap(keys, remedy):
    rows = pd.DataFrame({"size": [1.7, 1.8, 1.9, "Total"]})
    learned = InputEncoding((NumberColumn("size", 1.7, 0.1, 1.7, False),))
    with pytest.raises(ConfigError, match=re.escape(remedy)), contextlib.nullcontext() if keys else naming({}):
        learned.encode(rows, "", "t")
    if keys:
        with pytest.raises(ConfigError, match=re.escape(remedy)):
            InputEncoding.learn(rows, ["size"], (), 50, "t")


def test_signs_of_numbers_are_told_as_the_reader_can_set_them():
    texts = pd.Series(["170,5", "1.171,2"])
    assert number_hint(texts) == "set data.decimal=comma, and data.thousands=point if it has points too"
    with naming({}):
        assert number_hint(texts) == (
            "make numbers of it, as pandas.read_csv does with decimal=',', and thousands='.' if it has points too"
        )


def test_one_row_is_no_rows():
    with pytest.raises(ConfigError, match="no finite number in 1 of 1 row: "):
        ENCODING.encode(pd.DataFrame({"size": ["big"], "kind": "a"}), "", "t")


@pytest.mark.parametrize(
    "name, cells, words",
    [
        ("kind", [b"a", b"b"], r"kind holds bytes \(b'a'\): decode them, as .str.decode\('utf-8'\) does"),
        ("size", [b"1.7", b"1.8"], "size holds bytes"),
        ("size", [np.array(1.7), np.array(1.8)], "size holds lists: make columns of them"),
        ("size", [torch.tensor(1.7)] * 2, "size holds lists"),
        ("kind", [{"a": 1}, "b"], "kind holds lists"),
    ],
)
def test_cells_that_hold_no_single_value_are_refused(name, cells, words):
    frame = pd.DataFrame({"size": [1.7, 1.8], "kind": ["a", "b"]}).astype({name: object})
    frame[name] = pd.Series(cells, dtype=object)
    with pytest.raises(ConfigError, match=words), naming({}):
        ENCODING.encode(frame, "input: ", "the table")
    long = pd.concat([frame] * 20, ignore_index=True)
    with pytest.raises(ConfigError, match=f"{name} holds"):
        InputEncoding.learn(long, ["size", "kind"], (), 50, "t.csv")
