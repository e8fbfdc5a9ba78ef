"""Tests of `bdl.data.group_question`: columns that repeat as persons do are told, and ordinary ones are not."""

import warnings

import numpy as np
import pandas as pd
import pytest

from bdl.data import read_table
from bdl.errors import BdlWarning

N = 480
rng = np.random.default_rng(1)
x = rng.normal(size=N)


def persons(count, spread=2.0, noise=0.3, sizes=None):
    who = rng.permutation(np.arange(N) % count) if sizes is None else rng.choice(count, N, p=sizes)
    return who, x + spread * rng.normal(size=count)[who] + noise * rng.normal(size=N)


def smooth(values, noise=0.5):
    return x + 3 * np.sin(np.asarray(values) / 20) + noise * rng.normal(size=N)


def cases():
    zipf = 1 / np.arange(1, 41)
    city, price = persons(30, sizes=zipf[:30] / zipf[:30].sum())
    who, y = persons(60)
    patient, of_patient = persons(40, sizes=zipf / zipf.sum())
    ages, months = rng.integers(18, 80, N), np.arange(N) % 12 + 1
    return {
        "sorted persons": ("who", np.sort(who), y[np.argsort(who)], True),
        "persons in any order": ("case", who * 17 % 1009, y, True),
        "named persons": ("name", [f"p{i:02d}" for i in patient], of_patient, False),
        "patients of any number of rows": ("patient_id", patient + 1000, of_patient, True),
        "labels of persons": ("person", who, np.where(y > 0, "yes", "no"), True),
        "person, nothing alike": ("person", who, x + rng.normal(size=N), False),
        "cities": ("city", [f"c{i}" for i in city], price, False),
        "ages": ("age", ages, smooth(ages), False),
        "sorted ages": ("age", np.sort(ages), smooth(np.sort(ages)), False),
        "months": ("month", months, smooth(10 * months), False),
        "years": ("year", np.sort(rng.integers(1990, 2020, N)), x, False),
        "rooms": ("rooms", rng.poisson(5, N), x, False),
    }


@pytest.mark.parametrize("name", cases())
def test_persons_are_told_and_ordinary_columns_are_not(tmp_path, name):
    column, values, y, told = cases()[name]
    pd.DataFrame({column: values, "x": x, "y": y}).to_csv(tmp_path / "t.csv", index=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        read_table(tmp_path / "t.csv", "y", max_levels=100)
    lines = [str(w.message) for w in seen if f"data.group={column}" in str(w.message)]
    assert bool(lines) == told, [str(w.message) for w in seen]


@pytest.mark.parametrize("settings", [{"group": "who"}, {"order": "x"}, {"drop": ["who"]}, {"id": ["who"]}])
def test_no_question_is_asked_where_the_user_has_answered(tmp_path, settings):
    who, y = persons(60)
    pd.DataFrame({"who": who, "x": x, "z": x**2, "y": y}).to_csv(tmp_path / "t.csv", index=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        read_table(tmp_path / "t.csv", "y", **settings)
    asked = any("data.group=who" in str(w.message) for w in seen if w.category is BdlWarning)
    assert asked == bool({"drop", "id"} & settings.keys())  # an input or not, its rows are on both sides
