"""Tests of `bdl.data.odd_values`: categories in two spellings and numbers beyond all others are told before a run."""

import warnings

import numpy as np
import pandas as pd
import pytest

from bdl.data import read_table

N = 100
RNG = np.random.default_rng(0)
X, Y = RNG.normal(50, 9, N).round(2), RNG.normal(10, 3, N).round(3)
COLOURS, FIFTH = RNG.choice(["red", "green", "blue"], N), np.arange(N) == 4
CASES = {
    "capitals": ({"c": np.where(np.arange(N) % 7 == 0, "Red", COLOURS)}, r"c has 'Red' and 'red': they are different"),
    "blanks": ({"c": np.where(np.arange(N) % 2, "dark red", "dark  red")}, "c has 'dark  red' and 'dark red'"),
    "classes": ({"y": RNG.choice(["yes", "Yes", "no"], N)}, "y has 'Yes' and 'yes'"),
    "an input": ({"x": np.where(FIFTH, 1e30, X)}, r"x is 1e\+30 in row 5, and nearly all others 5"),
    "the target": ({"y": np.where(FIFTH, 1e300, Y)}, r"y is 1e\+300 in row 5, and nearly all others"),
    "two rows": ({"x": np.where(np.arange(N) % 50 == 4, -1e9, X)}, r"x is -1e\+09 in row"),
    "a heavy tail": ({"x": np.exp(3 * RNG.normal(size=N))}, None),
    "zeros": ({"x": np.where(RNG.uniform(size=N) < 0.9, 0, X)}, None),
    "ordinary": ({"c": COLOURS}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_probable_mistakes_are_told(tmp_path, name):
    columns, words = CASES[name]
    table = pd.DataFrame({"x": X, "z": RNG.normal(size=N), "c": COLOURS, "y": Y})
    table.assign(**columns).to_csv(tmp_path / "t.csv", index=False)
    if words is not None:
        with pytest.warns(match=words) as told:
            read_table(tmp_path / "t.csv", "y")
        assert all("overflow" not in str(line.message) for line in told)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_table(tmp_path / "t.csv", "y")
