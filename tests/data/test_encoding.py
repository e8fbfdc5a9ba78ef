"""Tests of `bdl.data.encoding`: numbers far from all training rows are told by column, row and share."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from bdl.data.encoding import InputEncoding
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
     ([1.7, 1e30, 1.8], "size in 1 of 3 rows (33.3 %), 1e+30 in row 2")],
)  # fmt: skip
def test_numbers_far_from_all_training_rows_are_told(sizes, words):
    frame = pd.DataFrame({"size": sizes, "kind": "a"})
    with pytest.warns(BdlWarning, match="far from all training rows") as told:
        ENCODING.warn_of_far(frame, N, "new.csv")
    assert words in str(told[0].message) and "1.69 ± 0.2 in training" in str(told[0].message)
