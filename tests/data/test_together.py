"""Tests of `bdl.data.together` and `.split`: groups that no split divides, and the last rows of an order."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import GroupShuffleSplit

from bdl.data.split import hold_out
from bdl.data.table import TableDataModule, read_table
from bdl.errors import BdlWarning, ConfigError

PERSONS, VISITS = 20, 6
RANDOM = np.random.RandomState(0)


def frame() -> pd.DataFrame:
    """Rows of 20 persons on different days, in random order; y tells the row."""
    rows = PERSONS * VISITS
    table = pd.DataFrame({"person": np.repeat(np.arange(PERSONS), VISITS), "x": np.random.RandomState(1).randn(rows)})
    table["day"] = pd.date_range("2020-01-28", periods=rows, freq="D").strftime("%d/%m/%Y")
    table["y"] = np.arange(rows) + 0.5
    return table.sample(frac=1, random_state=2).reset_index(drop=True)


def module(folder: Path, table: pd.DataFrame, **settings) -> TableDataModule:
    table.to_csv(folder / "table.csv", index=False)
    return read_table(folder / "table.csv", "y", **settings)


def rows_of(data: TableDataModule, split: str) -> np.ndarray:
    target = data.encoding.target
    return np.round(data.tensors(split)[1][:, 0].double().numpy() * target.std + target.mean - 0.5).astype(int)


@pytest.mark.parametrize("fold", [0, 1, 2])
def test_no_split_divides_a_group(tmp_path, fold):
    table = frame()
    data = module(tmp_path, table, group="person", drop=["day"], val_fraction=0.25, fold=fold, split_seed=3)
    persons = {split: set(rows_of(data, split) // VISITS) for split in data.splits}
    assert {split: len(of) for split, of in persons.items()} == {"train": 12, "val": 4, "test": 4}
    assert len(set.union(*persons.values())) == PERSONS
    _, test = next(GroupShuffleSplit(1, test_size=0.2, random_state=3).split(table, groups=table["person"]))
    assert sorted(rows_of(data, "test")) == sorted((table["y"][test] - 0.5).astype(int))
    for split, codes in data.groups.items():
        assert len(set(zip(codes.tolist(), rows_of(data, split) // VISITS, strict=True))) == len(persons[split])
    assert data.encoding.inputs.names == ["x"] and "person stay together, 12 train, 4 val, 4 test" in data.overview


def test_folds_of_groups_hold_out_each_group_once(tmp_path):
    folds = [module(tmp_path, frame(), group="person", drop=["day"], val_fraction=0.25, fold=k) for k in range(4)]
    held = np.concatenate([rows_of(data, "val") for data in folds])
    assert len(held) == len(set(held)) == 16 * VISITS


def test_a_group_is_an_input_where_it_is_asked_for(tmp_path):
    with pytest.warns(BdlWarning, match="person has categories in 24 of 24 rows that no training row has"):
        data = module(
            tmp_path,
            frame().assign(y=lambda rows: RANDOM.permutation(rows.y)),
            group="person",
            categorical=["person"],
            drop=["day"],
        )
    assert data.encoding.inputs.names == ["person", "x"]
    assert (data.tensors("test")[0][:, 16] == 1).all()  # no training row has the persons of the test


def test_held_out_items_are_whole_groups():
    groups = torch.from_numpy(RANDOM.randint(0, 7, 100))
    for seed in range(5):
        kept, out = hold_out(100, 0.05, seed, groups=groups)  # a third of a group, so one
        assert len(groups[out].unique()) == 1 and not set(groups[kept].tolist()) & set(groups[out].tolist())
        assert sorted([*kept.tolist(), *out.tolist()]) == list(range(100))
    one = torch.zeros(100)
    assert len(hold_out(100, 0.1, 0, groups=one)[1]) == 10  # a single group is divided


@pytest.mark.parametrize("drop", [["person"], ["person", "day"]])
def test_the_last_rows_are_for_testing(tmp_path, drop):
    data = module(tmp_path, frame(), order="day", drop=drop, val_fraction=0.25)
    rows = np.arange(PERSONS * VISITS)
    for split, part in (("train", rows[:72]), ("val", rows[72:96]), ("test", rows[96:])):
        assert sorted(rows_of(data, split)) == part.tolist()
    assert "ordered by day, the last rows, from 03/05/2020 on" in data.overview and data.held_out in data.overview


def test_equal_rows_of_an_order_stay_together(tmp_path):
    table = frame().assign(year=lambda table: 2000 + table["y"] // 50)  # of 50, 50 and 20 rows
    data = module(tmp_path, table, order="year", drop=["person", "day", "year"], test_fraction=0.3)
    assert sorted(rows_of(data, "test")) == list(range(50, 120))


BAD = {
    "no order": ({"order": "day"}, lambda t: t.assign(day="spring"), "day does not sort.* 'spring': data.order takes"),
    "gap": ({"order": "day"}, lambda t: t.assign(day=t["day"].where(t["y"] > 1)), "day holds no date .* in 1 of 120"),
    "fold": ({"order": "day", "fold": 1, "val_fraction": 0.2}, lambda t: t, "data.fold=1 names a part"),
    "constant": ({"order": "day"}, lambda t: t.assign(day=3), "data.order=day has one value in so many rows"),
    "no column": ({"order": "days"}, lambda t: t, "data.order=days: .*; did you mean data.order=day"),
    "no group": ({"group": "person"}, lambda t: t.assign(person=t["person"].where(t["y"] > 1)), "missing in 1 of 120"),
    "one group": ({"group": "person"}, lambda t: t.assign(person="A"), "has one group only, 'A': leave data.group out"),
    "target": ({"group": "y"}, lambda t: t, "data.group names y, which is the target"),
    "divided": (
        {"group": "person", "split_column": "part"},
        lambda t: t.assign(part=np.where(t["y"] % VISITS < 4, "train", "test")),
        "data.group=person: 20 groups such as '0' have rows in both train and test: mark all rows of a group alike",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_held_out_is_refused_in_one_line(tmp_path, name):
    settings, change, line = BAD[name]
    with pytest.raises(ConfigError, match=line) as error:
        module(tmp_path, change(frame()), **settings)
    assert "\n" not in str(error.value)
