"""Tests of `bdl.data.target_copies`: inputs that are the target in other words are told before a run."""

import warnings

import numpy as np
import pandas as pd
import pytest

from bdl.data import read_table

N = 200
rng = np.random.default_rng(0)
x, y = rng.normal(size=N), rng.normal(3, 1, N).round(3)
kinds = rng.choice(["a", "b", "c"], N)
CASES = {
    "itself": (y, y, True), "2y + 1": (2 * y + 1, y, True), "rounded": (y.round(2), y, True),
    "reversed ranks": (-pd.Series(y).rank(), y, True), "noisy": (y + 0.1 * x, y, False), "unrelated": (x, y, False),
    "exponential, of more digits": (np.exp(3 * y + 1e-4 * x), y, True), "cube, noisy": (y**3 + x, y, False),
    "with gaps": (np.where(x > 1, np.nan, 3 * y), y, True),
    "words of classes": (np.char.add("kind ", kinds), kinds, True),
    "numbers of classes": (pd.factorize(kinds)[0], kinds, True),
    "two of three": (np.where(kinds == "a", "a", "z"), kinds, False),
    "yes": (np.where(y > 3, "yes", "no"), (y > 3).astype(int), True),
    "half": (np.where(x > 0, "yes", "no"), (y > 3).astype(int), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_copy_of_the_target_is_told(tmp_path, name):
    values, target, told = CASES[name]
    pd.DataFrame({"my input": values, "x": x, "y": target}).to_csv(tmp_path / "t.csv", index=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        read_table(tmp_path / "t.csv", "y")
    lines = [str(w.message) for w in seen if "one to one" in str(w.message)]
    assert bool(lines) == told
    assert not told or "data.drop=['my input'] leaves it out" in lines[0]


CUTS = {
    "a class above a number": (x, np.where(x > 0.3, "ill", "well"), True),
    "three classes": (x, np.digitize(x, [-0.5, 0.7]), True),
    "the numbers have gaps": (np.where(y > 4, np.nan, x), np.where(x > 0.3, "ill", "well"), True),
    "an input is a part of the target": (np.where(y > 3.1, "dear", "cheap"), y, True),
    "an input is 1 above": ((y > 3).astype(int), y, True),
    "few rows in error": (x, np.where((x > 0.3) ^ (np.arange(N) % 20 == 7), "ill", "well"), False),
    "by chance": (x, np.where(x >= x.max(), "ill", "well"), False),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_threshold_is_told(tmp_path, name):
    values, target, told = CUTS[name]
    pd.DataFrame({"my input": values, "x2": rng.normal(size=N), "y": target}).to_csv(tmp_path / "t.csv", index=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        read_table(tmp_path / "t.csv", "y", task=None if "class" not in name else "classification", test_fraction=0.1)
    lines = [str(w.message) for w in seen if "threshold" in str(w.message)]
    assert len(lines) == told
    assert not told or "data.drop=['my input'] leaves it out" in lines[0]
