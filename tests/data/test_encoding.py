"""Tests of `bdl.data.encoding`: numbers far from all training rows are told by column, row and share."""

import warnings

import numpy as np
import pandas as pd
import pytest

from bdl.data.encoding import InputEncoding
from bdl.data.kinds import CategoryColumn
from bdl.errors import BdlWarning

N = 300
TRAIN = pd.DataFrame({"size": np.random.default_rng(0).normal(1.7, 0.2, N), "kind": ["a", "b", "c"] * (N // 3)})
ENCODING = InputEncoding.learn(TRAIN, ["size", "kind"], (), 50, "t.csv")


def test_the_training_rows_are_never_far():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ENCODING.warn_of_far(TRAIN, N, "t.csv")
        ENCODING.warn_of_far(TRAIN.assign(size=TRAIN["size"].where(TRAIN.index > 0)), N, "t.csv")


@pytest.mark.parametrize(
    "sizes, words",
    [(TRAIN["size"] * 1000, "size in 300 of 300 rows (100 %)"),
     (TRAIN["size"] / 1000, "size in all 300 rows, 0.00"), ((TRAIN["size"] / 1000)[:5], "size in all 5 rows, 0.00"),
     ([1.7, 1e30, 1.8], "size in 1 of 3 rows (33.3 %), 1e+30 in row 2")],
)  # fmt: skip
def test_numbers_far_from_all_training_rows_are_told(sizes, words):
    frame = pd.DataFrame({"size": sizes, "kind": "a"})
    with pytest.warns(BdlWarning, match="far from all training rows") as told:
        ENCODING.warn_of_far(frame, N, "new.csv")
    assert words in str(told[0].message) and "1.69 ± 0.2 in training" in str(told[0].message)


@pytest.mark.parametrize("column, sizes", [
    ("few", TRAIN["size"][:4] / 1000), ("one value", [0.001] * 9), ("some", [*TRAIN["size"][:9] / 1000, 1.7]),
    ("tenths", TRAIN["size"] / 10), ("around 0", TRAIN["size"] / 1000), ("skewed", TRAIN["size"] / 1000),
])  # fmt: skip
def test_small_numbers_that_may_be_values_are_not_told(column, sizes):
    """Of columns around 0, and of those whose standard deviation exceeds their mean, small numbers are usual."""
    values = {"around 0": TRAIN["size"] - 1.7, "skewed": np.exp(3 * (TRAIN["size"] - 1.7) / 0.2)}.get(column)
    encoding = ENCODING if values is None else InputEncoding.learn(TRAIN.assign(size=values), ["size"], (), 50, "t.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoding.warn_of_far(pd.DataFrame({"size": sizes, "kind": "a"}), N, "new.csv")


def test_a_row_whose_category_is_missing_is_encoded_without_a_word_of_pandas():
    rows = pd.DataFrame({"a": pd.Series([None, None], dtype=object)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CategoryColumn("a", ("x", "y"), "y", True).encode(rows["a"], "t").tolist() == [[0, 1, 0, 1]] * 2
