"""Tests of `bdl.data.missing_codes`: numbers and dates that stand for missing values are told, and made gaps."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest

from bdl.advice import override
from bdl.data import read_table
from bdl.data.frame import Reading
from bdl.data.missing_codes import missing_codes
from bdl.errors import BdlWarning, ConfigError

N = 400
rng = np.random.default_rng(0)
SMOOTH = {
    "normal": rng.normal(40, 5, N).round(1), "skewed": rng.lognormal(3, 1, N).round(2), "ages": rng.integers(18, 99, N),
    "answers": rng.integers(1, 6, N), "yes": rng.integers(0, 2, N), "degrees": rng.normal(5, 8, N).round(),
}  # fmt: skip


@pytest.mark.parametrize(
    "column, codes",
    [
        ("normal", [-200.0]), ("normal", [-999.0]), ("normal", [9999.0]), ("normal", [0.0]),
        ("normal", [-999.0, -888.0]), ("normal", [-99.0, -98.0]), ("ages", [999.0, 998.0, 997.0]),
        ("skewed", [-99.0]), ("skewed", [99999.0]), ("ages", [999.0]), ("ages", [-9.0]), ("ages", [-999.25]),
        ("answers", [99.0]), ("yes", [-9.0]), ("degrees", [-9999.0]), ("degrees", [500.0]), ("normal", [-1e30]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [3, 20, 60])
def test_a_repeated_far_number_is_found(column, codes, rows):
    values = SMOOTH[column].astype(float)
    for k, code in enumerate(codes):
        values[k : (rows - 1) * len(codes) + k + 1 : len(codes)] = code
    assert missing_codes(values) == codes


@pytest.mark.parametrize(
    "values",
    [
        *SMOOTH.values(),
        np.repeat([3, 4, 5, 6, 8], 60), np.repeat([0, 1, 10, 100], 60), np.repeat([0, 1], 60),
        np.where(rng.random(N) < 0.5, 0, rng.exponential(10, N).round()), rng.poisson(0.3, N), rng.poisson(8, N),
        (rng.pareto(1.2, N) * 10).round(), rng.standard_t(2, N).round(1), np.minimum(rng.normal(40, 9, N).round(), 50),
        np.where(rng.random(N) < 0.3, -1, rng.integers(0, 30, N)), np.minimum(rng.poisson(0.4, 1797) ** 2, 16),
        np.array([1.0, 2.0]), np.zeros(N), np.array([]),
    ],
)  # fmt: skip
def test_ordinary_columns_have_none(values):
    assert missing_codes(np.asarray(values, float)) == []


def test_extreme_numbers_that_are_not_repeated_are_values():
    values = SMOOTH["normal"].copy()
    values[:2] = 1e6
    assert missing_codes(values) == []


DAYS = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 1500, N), "D")


@pytest.mark.parametrize(
    "format, code",
    [("%Y-%m-%d", "9999-12-31"), ("%d.%m.%Y", "01.01.1900"), ("%Y%m%d", "99991231"), ("%Y-%m-%d", "1970-01-01"),
     ("%Y-%m-%d %H:%M", "9999-12-31 00:00"), ("%m/%d/%Y", "12/31/9999"), ("%Y-%m-%d", None)],
)  # fmt: skip
def test_a_date_that_stands_for_none_is_told_and_made_a_gap(tmp_path, format, code):
    """Years beyond 2262 need more than pandas' nanoseconds."""
    texts = pd.Series(DAYS.strftime(format)).astype(object)
    texts[::10] = texts[::10] if code is None else code
    pd.DataFrame({"until": texts, "y": SMOOTH["normal"]}).to_csv(tmp_path / "t.csv", index=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        read_table(tmp_path / "t.csv", "y")
    lines = [str(each.message) for each in told if "missing value" in str(each.message)]
    if code is None:
        assert lines == []
        return
    assert len(lines) == 1 and f"until is {code} in 40 of 400 rows (10 %), all others 2" in lines[0]
    assert override("data.missing", ["?", code]) in lines[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (column,) = read_table(tmp_path / "t.csv", "y", missing=["?", code]).encoding.inputs.columns
    assert column.gaps


@pytest.fixture
def table(tmp_path):
    """A target with -200, an input whose 0 is a code, and one whose 0 is a value."""
    frame = pd.DataFrame({"a b": rng.normal(30, 4, N).round(1), "sex": rng.integers(0, 2, N), "y": rng.normal(3, 1, N)})
    frame.loc[:39, "a b"], frame.loc[30:99, "y"] = 0, -200
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_one_warning_names_all_and_its_remedy_makes_them_missing(table):
    with pytest.warns(BdlWarning) as told:
        read_table(table, "y")
    (line,) = [str(w.message) for w in told if "data.missing" in str(w.message)]
    assert "y is -200 in 70 of 400 rows (17.5 %)" in line and "a b is 0 in 40 of 400 rows (10 %)" in line
    assert "data.missing=['?',-200,'\"a b=0\"']" in line
    missing = ["?", "-200", "a b=0"]
    frame = Reading(missing=missing).read(table)
    assert frame.isna().sum().to_dict() == {"a b": 40, "sex": 0, "y": 70}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        data = read_table(table, "y", missing=missing)
    assert not any("data.missing" in str(w.message) for w in told)
    assert sum(len(y) for _, y in data.splits.values()) == N - 70
    assert data.encoding.inputs.columns[0].gaps  # type: ignore[union-attr]
    given = data.encoding.reading.with_gaps(pd.DataFrame({"a b": [0.0, 20.0], "sex": [0, 1]}))
    assert given["a b"].isna().tolist() == [True, False] and given["sex"].tolist() == [0, 1]


def test_numbers_are_words_for_missing_values_in_python_too(table):
    with pytest.warns(BdlWarning):
        assert read_table(table, "y", missing=[-200]).encoding.reading.missing == ("-200",)  # type: ignore[list-item]


def test_a_column_of_data_missing_that_is_not_there_is_refused(table):
    with pytest.raises(
        ConfigError, match=re.escape("data.missing names a c: t.csv has no such column; did you mean a b?")
    ):
        read_table(table, "y", missing=["a c=0"])
