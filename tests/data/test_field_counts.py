"""Tests of `bdl.data.field_counts` and `bdl.data.number_columns`: rows that do not fit the header, however read."""

import re

import numpy as np
import pytest

from bdl.data.frame import Reading
from bdl.errors import ConfigError

ROWS = ["1,2.5,x", "3,4.5,y", "5,,z"]
COUNTS = "the header names 3 columns, and line {} has {}"
BAD = {
    "R's row names": ("a,b,c", [f'"{i}",{row}' for i, row in enumerate(ROWS)], COUNTS.format(2, "4 fields") + ".*NA"),
    "more in one": ("a,b,c", [*ROWS, "7,8,w,9,10", *ROWS], COUNTS.format(5, "5 fields: correct")),
    "fewer in one": ("a,b,c", [*ROWS, "7,8", *ROWS], COUNTS.format(5, "2 fields: correct")),
    "a foot": ("a,b,c", [*ROWS, "total: 3 rows"], COUNTS.format(5, "1 field: correct")),
    "a longer header": ("a,b,c,d", ROWS, "the header names 4 columns, and line 2 has 3 fields (3 such rows)"),
    "ends of lines": ("a,b,c", [f"{row}," for row in ROWS], "a separator ends the row, and none the header"),
    "after a field of two lines": ("a,b,c", ['1,2,"x\ny"', "1,2"], COUNTS.format(4, "2 fields")),
    "a comment": ("# made by a machine, 2020\na,b,c", ROWS, "begins with a comment in line 1, '# made by a machine"),
    "a comment without a separator": ("# made\na,b,c", ROWS, "begins with a comment in line 1, '# made': remove"),
    "for Excel": ("sep=,\na,b,c", ROWS, "begins with a comment in line 1, 'sep=,'"),
    "for Excel in Germany": ("sep=;\na;b", ["1;2", "3;4"], "begins with a comment in line 1, 'sep=;'"),
}  # fmt: skip


@pytest.mark.parametrize("key", ["data.path", "input"])
@pytest.mark.parametrize("thousands", ["none", "space"])
@pytest.mark.parametrize("name", BAD)
def test_rows_that_do_not_fit_are_refused_with_both_counts(tmp_path, name, thousands, key):
    header, rows, words = BAD[name]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    pattern = f"{key}={re.escape(str(path))}.*{re.escape(words).replace(re.escape('.*'), '.*')}"
    with pytest.raises(ConfigError, match=pattern):
        Reading(thousands=thousands).read(path, key)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
@pytest.mark.parametrize("separator, sign", [("comma", ","), ("semicolon", ";"), ("tab", "\t")])
def test_rows_that_fit_are_read(tmp_path, separator, sign, encoding):
    path = tmp_path / "t.csv"
    rows = ["\n", "a,b,c", *ROWS, '"1","2","x,\nä"', "", "7,8,"]
    path.write_text("\n".join(rows).replace(",", sign), encoding=encoding)
    frame = Reading(separator=separator, encoding=encoding).read(path)
    assert frame["a"].tolist() == [1, 3, 5, 1, 7] and frame["a"].dtype == np.int64
    assert frame["b"].isna().tolist() == [False, False, True, False, False]
    assert frame["c"].fillna("").tolist() == ["x", "y", "z", f"x{sign}\nä", ""]


def test_a_column_named_like_a_comment_is_a_column(tmp_path):
    (tmp_path / "t.csv").write_text("#,b\n1,2\n3,4\n")
    assert list(Reading().read(tmp_path / "t.csv")) == ["#", "b"]
