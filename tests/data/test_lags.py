"""Tests of `bdl.data.lags`: inputs from earlier rows of a series, which no later row changes."""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bdl.data.table import TableDataModule, read_table
from bdl.data.table_encoding import TableEncoding
from bdl.errors import BdlWarning, ConfigError

DAYS = 30
pytestmark = pytest.mark.filterwarnings("ignore:.*have fewer than . rows before them in their series")


def frame(shops: int = 1) -> pd.DataFrame:
    """Daily sales of shops, in random order."""
    random = np.random.RandomState(0)
    table = pd.DataFrame({"shop": np.repeat([f"shop {k}" for k in range(shops)], DAYS)})
    table["date"] = np.tile(pd.date_range("2020-01-01", periods=DAYS).strftime("%d.%m.%Y"), shops)
    table["rain"], table["sky"] = random.rand(len(table)).round(4), random.choice(["clear", "grey"], len(table))
    table["sales"] = (100 * random.rand(len(table))).round(2)
    return table.sample(frac=1, random_state=1).reset_index(drop=True)


def module(folder: Path, table: pd.DataFrame, lags=None, **settings) -> TableDataModule:
    table.to_csv(folder / "table.csv", index=False)
    lags = {"sales": [1, 3], "sky": [1]} if lags is None else lags
    return read_table(folder / "table.csv", "sales", **{"order": "date", "drop": ["date"], "lags": lags} | settings)


def read(folder: Path, table: pd.DataFrame, encoding: TableEncoding) -> pd.DataFrame:
    table.to_csv(folder / "new.csv", index=False)
    return encoding.reading.read(folder / "new.csv", "input", encoding.inputs.written)


def sorted_by_day(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values("date", key=lambda dates: pd.to_datetime(dates, format="%d.%m.%Y"))


@pytest.mark.parametrize("shops", [1, 4])
def test_an_input_is_the_value_of_the_earlier_row(tmp_path, shops):
    """Every split's inputs, against pandas' own shift of sorted rows."""
    table = frame(shops)
    data = module(tmp_path, table, **({"group": "shop"} if shops > 1 else {"drop": ["date", "shop"]}))
    expected = sorted_by_day(table).set_index("sales", drop=False).round(2)
    made = pd.concat([expected.groupby("shop")[name].shift(lag) for name, lag in (("sales", 1), ("sales", 3))], axis=1)
    target, count = data.encoding.target, 0
    columns = {column.name: column for column in data.encoding.inputs.columns}
    first = [name for name in data.encoding.inputs.names].index("sales lag 1") + 2  # `sky` has three inputs
    for split in ("train", "test"):
        x, y = data.tensors(split)
        for row, label in zip(x.double().numpy(), y[:, 0].double().numpy(), strict=True):
            for i, (name, value) in enumerate(zip(("sales lag 1", "sales lag 3"), made.loc[
                round(label * target.std + target.mean, 2)], strict=True)):  # fmt: skip
                assert row[first + i] * columns[name].std + columns[name].mean == pytest.approx(value, abs=1e-3)
            count += 1
    assert count == shops * (DAYS - 3)
    assert {"sky lag 1", "rain", "sky"} < set(data.encoding.inputs.names) and columns["sky lag 1"].levels == (
        "clear",
        "grey",
    )


def test_no_later_row_changes_the_inputs_of_an_earlier_one(tmp_path):
    table = sorted_by_day(frame()).reset_index(drop=True)
    (before, held), after = (module(tmp_path, table, drop=["date", "shop"]) for _ in range(2)), table.copy()
    after.loc[DAYS - 4 :, ["sales", "rain"]] *= 1.5  # all within the test rows
    changed = module(tmp_path, after, drop=["date", "shop"])
    assert (changed.tensors("train")[0] == before.tensors("train")[0]).all()
    kept = len(held.tensors("test")[0]) - 4
    assert (changed.tensors("test")[0][:kept] == held.tensors("test")[0][:kept]).all()
    assert not (changed.tensors("test")[0] == held.tensors("test")[0]).all()


def test_rows_to_predict_follow_the_table_or_their_own_file(tmp_path):
    """The last row of a longer table has the same inputs, whether the table ends before it or the file has the rest."""
    table = sorted_by_day(frame(3)).reset_index(drop=True)
    data = module(tmp_path, table[: -3 * 5], group="shop", split_seed=1)
    encoding = TableEncoding.from_plain(json.loads(json.dumps(data.preprocessing())))
    assert encoding == data.encoding
    next_day, whole = table[-3 * 5 : -3 * 4].drop(columns="sales"), table[: -3 * 4]
    alone, complete = encoding.lags.extend(read(tmp_path, next_day, encoding), "new.csv")
    with pytest.warns(
        BdlWarning, match="new.csv: 9 of 78 rows, the first of their series, have fewer than 3 rows before them"
    ):
        among, held = encoding.lags.extend(read(tmp_path, whole, encoding), "new.csv")
    assert complete.all() and held.sum() == len(whole) - 9 and not held[:9].any()
    names = encoding.lags.names
    pd.testing.assert_frame_equal(alone[names], among[names][-3:].reset_index(drop=True), check_dtype=False)
    x = encoding.inputs.encode(alone, "", "")
    assert (x == encoding.inputs.encode(among[-3:], "", "")).all()


def test_rows_that_are_missing_between_are_said(tmp_path):
    table = sorted_by_day(frame()).reset_index(drop=True)
    encoding = module(tmp_path, table, drop=["date", "shop"]).encoding
    with pytest.warns(
        BdlWarning, match="1 rows, row 1 the first, come up to 8 days after the row before .* 1 days at most"
    ):
        encoding.lags.extend(read(tmp_path, table[:1].assign(date="07.02.2020"), encoding), "new.csv")
    with warnings.catch_warnings(action="error"):
        encoding.lags.extend(read(tmp_path, table[:1].assign(date="31.01.2020"), encoding), "new.csv")


def test_rows_without_what_they_need_are_refused_in_one_line(tmp_path):
    table = sorted_by_day(frame(3)).reset_index(drop=True)
    encoding = module(tmp_path, table, group="shop", split_seed=1).encoding
    later = pd.concat([table[:3].assign(date=f"{day}.02.2020") for day in ("01", "02")])
    for rows, line in (
        (
            later.assign(sales=np.nan),
            "row 4 of new.csv needs sales of earlier rows, .* lags of at least h rows predict",
        ),
        (later.assign(shop="new"), "neither is the earlier one"),
        (table[:1].assign(shop="new"), "no row of shop=new in new.csv has 3 rows before it"),
        (later.drop(columns="sky"), "input: sky: new.csv has no such column"),
        (later.assign(date="soon"), "data.order=date holds no date written as in the other rows in 6 of 6 rows"),
    ):
        with pytest.raises(ConfigError, match=line) as error:
            encoding.lags.extend(read(tmp_path, rows, encoding), "new.csv")
        assert "\n" not in str(error.value)


BAD = {
    "no order": ({"order": None}, "data.lags needs data.order"),
    "order itself": ({"lags": {"date": [1]}}, "data.lags names date, which sorts or groups the rows"),
    "no lag": ({"lags": {"rain": []}}, "takes whole numbers of at least 1, got"),
    "later": ({"lags": {"rain": [-1]}}, r"takes whole numbers of at least 1, got \[-1\]"),
    "no column": ({"lags": {"snow": [1]}}, "data.lags names snow: table.csv has no such column"),
    "too long": ({"lags": {"rain": [DAYS]}}, "no row of table.csv has 30 rows before it"),
    "several series": (
        {"group": None, "drop": ["date", "shop"]},
        "data.group names the column that tells series apart",
    ),
    "files": ({"test_path": "package:airfoil.csv"}, "data.lags takes all rows from one file"),
}


@pytest.mark.parametrize("name", BAD)
def test_lags_that_cannot_be_made_are_refused(tmp_path, name):
    settings, line = BAD[name]
    with pytest.raises(ConfigError, match=line) as error:
        module(tmp_path, frame(3), **{"group": "shop", **settings})
    assert "\n" not in str(error.value)
