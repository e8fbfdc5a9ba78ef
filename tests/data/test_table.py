"""Tests of `bdl.data.table`, `.table_encoding`, `.columns`, `.frame`, `.values`, `.kinds`, `.encoding` and `.target`.

Tables: what is learned from the training rows, splits, tasks, and one clear line for each kind of bad table.
"""

import dataclasses
import json
import os
import warnings
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from bdl.data.encoding import InputEncoding
from bdl.data.table import TableDataModule, read_table
from bdl.data.table_encoding import TableEncoding
from bdl.data.values import as_texts
from bdl.errors import BdlWarning, ConfigError

ROWS = 40


def frame() -> pd.DataFrame:
    """Numbers, categories and truth values without gaps, a name for every row, and a target y."""
    random = np.random.RandomState(0)
    return pd.DataFrame(
        {
            "name": [f"row {i}" for i in range(ROWS)],
            "size": random.randn(ROWS) * 3 + 10,
            "city": random.choice(["Aachen", "Bonn", "Köln"], ROWS),
            "new": random.rand(ROWS) < 0.5,
            "y": random.randn(ROWS) * 100 + 1000,
        }
    )


def written(folder: Path, table: pd.DataFrame | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(table if isinstance(table, bytes) else table.to_csv(index=False).encode())
    return path


def module(folder: Path, table: pd.DataFrame | bytes, **settings) -> TableDataModule:
    return read_table(written(folder, table), **{"target": "y", "drop": ["name"], **settings})


def test_inputs_are_standardised_numbers_and_number_per_category(tmp_path):
    data, table = module(tmp_path, frame()), frame()
    test = np.sort(np.random.RandomState(0).permutation(ROWS)[:8])
    train = np.setdiff1d(np.arange(ROWS), test)
    for split, rows in (("train", train), ("test", test)):
        part = table.iloc[rows]
        size = (part["size"] - table["size"][train].mean()) / table["size"][train].std(ddof=0)
        cities = [part["city"] == city for city in ("Aachen", "Bonn", "Köln")]
        expected = np.stack([size, *cities, 0 * size, ~part["new"], part["new"], 0 * size], 1)
        x, y = data.tensors(split)
        torch.testing.assert_close(x, torch.from_numpy(expected.astype(np.float32)))
        scaled = (part["y"] - table["y"][train].mean()) / table["y"][train].std(ddof=0)
        torch.testing.assert_close(y[:, 0], torch.from_numpy(scaled.to_numpy(np.float32)))
    assert data.input_shape == (8,) and data.num_data == 32 and data.task == "regression"


def test_gaps_become_median_or_commonest_category_and_a_number(tmp_path):
    table = frame().assign(new=0.5)
    table.loc[[0, 3, 5], "size"] = np.nan
    table.loc[[1, 3], "city"] = np.nan
    table.loc[4, "size"] = np.inf  # in a column that is dropped below, so that it is not read
    settings = {"split_column": "part", "drop": ["name", "new"]}
    table["part"] = ["train"] * 30 + ["test"] * 10
    table.loc[4, "size"] = 7.0
    data = module(tmp_path, table, **settings)
    x, _ = data.tensors("train")
    present = table["size"][:30].dropna()
    filled = table["size"][:30].fillna(present.median())
    torch.testing.assert_close(
        x[0, 0].item(), (present.median() - filled.mean()) / filled.std(ddof=0), rtol=1e-5, atol=0
    )
    assert x[:, 1].nonzero().flatten().tolist() == [0, 3, 5]
    most = table["city"][:30].value_counts().idxmax()
    level = ["Aachen", "Bonn", "Köln"].index(most)
    assert x[1, 2:].tolist() == x[3, 2:].tolist() == [*np.eye(4)[level], 1.0]


def test_categories_without_training_rows_share_a_level(tmp_path):
    table = frame().assign(part=["train"] * 30 + ["test"] * 10)
    table.loc[[31, 33], "city"] = ["Rome", "Oslo"]
    with pytest.warns(BdlWarning, match=r"city has categories in 2 of 10 rows that no training row has \('Rome' is"):
        data = module(tmp_path, table, split_column="part")
    x, _ = data.tensors("test")
    assert x[:, 4].nonzero().flatten().tolist() == [1, 3]
    assert (x[:, 1:5].sum(1) == 1).all()


def test_numbers_may_name_categories(tmp_path):
    data = module(tmp_path, frame().assign(plan=[1, 2, 3, 10] * 10), categorical=["plan"])
    assert data.encoding.inputs.columns[-1].levels == ("1", "10", "2", "3")
    assert data.input_shape == (13,)


def test_columns_without_information_are_left_out(tmp_path):
    with pytest.warns(BdlWarning, match="same, gone left out"):
        data = module(tmp_path, frame().assign(same=1, gone=np.nan))
    assert [column.name for column in data.encoding.inputs.columns] == ["size", "city", "new"]


def test_what_a_run_saves_makes_the_same_inputs_again(tmp_path):
    table = frame().assign(part=["train"] * 30 + ["test"] * 10)
    table.loc[2, "size"] = np.nan
    data = module(tmp_path, table, split_column="part", drop=[], id=["name"])
    encoding = TableEncoding.from_plain(json.loads(json.dumps(data.preprocessing())))
    assert encoding == data.encoding
    rows = encoding.reading.read(tmp_path / "table.csv")
    assert torch.equal(encoding.inputs.encode(rows[:30], "", ""), data.tensors("train")[0])


def test_a_file_of_version_3_is_read(tmp_path):
    """It has the rounding of its target, and neither a likelihood nor an encoding."""
    encoding = module(tmp_path, frame()).encoding
    plain, target = encoding.to_plain(), encoding.target
    old = {"task": "regression", "name": "y", "mean": target.mean, "std": target.std, "step": 0.5}
    reading = {key: value for key, value in plain["reading"].items() if key != "encoding"}
    read = TableEncoding.from_plain({**plain, "format_version": 3, "target": old, "reading": reading})
    without = dataclasses.replace(encoding.reading, encoding=None)
    assert read == dataclasses.replace(encoding, reading=without, target=dataclasses.replace(target, loss={}))
    with pytest.raises(ConfigError, match="format_version is 2, and this bdl reads 3 and 4"):
        TableEncoding.from_plain({**plain, "format_version": 2})


@pytest.mark.parametrize("text", [(), ("plan",)], ids=["as pandas reads it", "as text"])
def test_a_category_has_one_name_however_its_column_is_read(tmp_path, text):
    """Beside a word, pandas reads 01 and TRUE as text; alone, as a number and a truth value."""
    table = frame().assign(plan=["01", "02", "2.50", "A"] * 10, new=["TRUE", "FALSE", "?", "TRUE"] * 10)
    data = module(tmp_path, table, categorical=["plan"])
    alone = pd.DataFrame({"size": 1.0, "city": "Bonn", "plan": ["01", "02", "2.5"], "new": ["TRUE", "false", "TRUE"]})
    mixed = pd.concat([alone, alone[:1].assign(plan="A", new="maybe")])
    read = [data.encoding.reading.read(written(tmp_path, table, "new.csv"), text=text) for table in (alone, mixed)]
    with pytest.warns(BdlWarning, match="new has categories in 1 of 4 rows"):
        first, second = (data.encoding.inputs.encode(rows, "", "") for rows in read)
    assert torch.equal(first, second[:3])
    plan = [column.name for column in data.encoding.inputs.columns].index("plan")
    before = InputEncoding(data.encoding.inputs.columns[:plan])
    start = before.encode(alone, "", "").shape[1]
    assert data.encoding.inputs.columns[plan].levels == ("1", "2", "2.5", "A")
    assert first[:, start : start + 5].argmax(1).tolist() == [0, 1, 2]


def test_rows_to_predict_may_have_one_column(tmp_path):
    reading = read_table(written(tmp_path, frame()[["size", "y"]]), "y").encoding.reading
    for name in ("size", "living area"):
        path = written(tmp_path, frame()[["size"]].set_axis([name], axis=1), "new.csv")
        assert list(reading.read(path, "input")) == [name]
    with pytest.warns(BdlWarning, match="input=.* is not separated by comma, as the table of the run is"):
        reading.read(written(tmp_path, b"a;b\n1;2\n"), "input")


def test_data_are_named_by_their_training_rows(tmp_path):
    first, same = module(tmp_path, frame()), module(tmp_path, frame(), batch_size=3, seed=4)
    other = module(tmp_path, frame().assign(y=frame()["y"][::-1].to_numpy()))
    assert first.identity() == same.identity() != other.identity()
    assert first.identity() != module(tmp_path, frame(), split_seed=1).identity()


def test_the_split_by_seed_is_that_of_scikit_learn():
    """Rows 15, 23, ... of airfoil are those of scikit-learn: train_test_split(test_size=.2, random_state=42)."""
    data = read_table("package:airfoil.csv", "target", split_seed=42, batch_size=None)
    assert len(data.tensors("test")[1]) == 301 and data.num_data == data.batch_size == 1202
    raw = data.encoding.reading.read("package:airfoil.csv")["target"].to_numpy()
    y = data.tensors("test")[1][:, 0] * data.encoding.target.std + data.encoding.target.mean
    np.testing.assert_allclose(y[:8], raw[[15, 23, 29, 30, 32, 43, 44, 49]], rtol=1e-6)


def test_the_packaged_table_comes_with_its_source_and_licence():
    about = (files("bdl.data") / "files" / "README.md").read_text()
    assert "Brooks, Pope & Marcolini (1989)" in about and about.count("CC BY 4.0") == 2


def test_validation_rows_are_taken_from_the_training_rows(tmp_path):
    plain, held = module(tmp_path, frame()), module(tmp_path, frame(), val_fraction=0.25)
    assert [len(held.tensors(split)[1]) for split in ("train", "val", "test")] == [24, 8, 8]
    names = held.encoding.target
    assert held.target_units == (("y", names.mean, names.std),)
    unscaled = [held.tensors(split)[1] * names.std + names.mean for split in ("train", "val", "test")]
    whole = [
        plain.tensors(split)[1] * plain.encoding.target.std + plain.encoding.target.mean for split in ("train", "test")
    ]
    torch.testing.assert_close(torch.cat(unscaled[:2]).sort(0).values, whole[0].sort(0).values)
    torch.testing.assert_close(unscaled[2], whole[1])


def test_a_column_or_files_name_the_splits(tmp_path):
    table = frame()
    marks = np.array([["Train", "test", "validation", "train"][i % 4] for i in range(ROWS)])
    by_column = module(tmp_path, table.assign(part=marks), split_column="part")
    paths = {f"{s}_path": written(tmp_path, table[marks == m], s) for s, m in (("test", "test"), ("val", "validation"))}
    kept = table[np.char.lower(marks) == "train"]
    by_file = module(tmp_path, kept, **paths)
    for split in ("train", "val", "test"):
        for one, other in zip(by_column.tensors(split), by_file.tensors(split), strict=True):
            assert torch.equal(one, other)


def test_validation_rows_come_from_marked_training_rows(tmp_path):
    table = frame().assign(part=["train"] * 32 + ["test"] * 8)
    data = module(tmp_path, table, split_column="part", val_fraction=0.25)
    assert [len(data.tensors(split)[1]) for split in ("train", "val", "test")] == [24, 8, 8]


TARGETS = {
    "texts": (["no", "yes"] * 20, "classification", ("no", "yes"), "2 different texts"),
    "truth": ([True, False] * 20, "classification", ("False", "True"), "2 different truth values"),
    "two whole numbers": ([10, 9] * 20, "classification", ("9", "10"), "2 different whole numbers"),
    "many whole numbers": (range(ROWS), "regression", (), "40 different whole numbers"),
    "numbers": (np.arange(ROWS) / 7, "regression", (), "40 different numbers"),
    "few numbers": ([0.5, 1.5] * 20, "regression", (), "2 different numbers"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_the_task_is_found_from_the_target_and_said(tmp_path, name):
    values, task, labels, reason = TARGETS[name]
    data = module(tmp_path, frame().assign(y=list(values)))
    assert data.task == task and data.labels == labels and data.num_classes == len(labels)
    assert f"target y: {task} ({reason}" in data.overview
    assert data.tensors("train")[1].dtype == (torch.int64 if labels else torch.float32)


@pytest.mark.parametrize("values", [[3, 4, 5, 8] * 10, [0.0, 1.0, 2.0, 1.0] * 10], ids=["quality", "as decimals"])
def test_few_whole_numbers_may_be_classes_so_task_is_asked_for(tmp_path, values):
    words = "data.target=y has . different whole numbers, . to ., which may .*: data.task=regression .* data.task=class"
    with pytest.raises(ConfigError, match=words):
        module(tmp_path, frame().assign(y=values))
    assert module(tmp_path, frame().assign(y=values), task="classification").labels[0] == str(int(min(values)))
    assert module(tmp_path, frame().assign(y=values), task="regression").num_classes == 0


def test_labels_are_numbered_in_the_order_of_their_names(tmp_path):
    values = ["b", "a", "c", "b"] * 10
    data = module(tmp_path, frame().assign(y=values, part=["train"] * 30 + ["test"] * 10), split_column="part")
    assert [data.labels[k] for k in data.tensors("train")[1]] == values[:30]


def test_a_task_may_be_asked_for(tmp_path):
    counts = frame().assign(y=[0, 1, 2, 5] * 10)
    assert module(tmp_path, counts, task="classification").labels == ("0", "1", "2", "5")
    assert module(tmp_path, counts, task="regression").tensors("train")[1].mean().abs() < 1e-6
    data = module(tmp_path, counts, task="counts")
    assert set(data.tensors("train")[1].flatten().tolist()) == {0.0, 1.0, 2.0, 5.0}


def test_a_rounded_target_bounds_the_predicted_scale(tmp_path):
    """Whole numbers err by 1 / sqrt(12) at least; steps of a thousandth of the spread are left alone."""
    table = frame()
    table["y"] = np.tile([3.0, 5.0, 6.0, 8.0], ROWS // 4)
    data = read_table(written(tmp_path, table), "y", drop=["name"], task="regression")
    assert data.target_units is not None
    assert data.loss["min_std"] * data.target_units[0][2] == pytest.approx(12**-0.5)
    assert data.loss["_target_"] == "bdl.HeteroscedasticNLL" and "4 levels" in (data.overview or "")
    assert "min_std" not in read_table(written(tmp_path, frame()), "y", drop=["name"]).loss


def test_rows_without_a_target_are_left_out_and_counted(tmp_path):
    table = frame()
    table.loc[[3, 7, 11], "y"] = np.nan
    with pytest.warns(BdlWarning, match="the target y is missing in 3 of 40 rows"):
        assert len(module(tmp_path, table).tensors("test")[1]) + 29 == 37


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_first_column_that_numbers_the_rows_is_left_out(tmp_path, shuffled):
    with pytest.warns(BdlWarning, match="the first column, which has no name, numbers the rows"):
        table = frame().sample(frac=1, random_state=0) if shuffled else frame()
        data = module(tmp_path, table.to_csv().encode())
    assert data.input_shape == (8,)


def test_a_small_table_is_one_batch(tmp_path):
    assert module(tmp_path, frame()).batch_size == 32
    assert read_table("package:airfoil.csv", "target").batch_size == 100


def with_one(column: str, value: object, row: int = 6) -> pd.DataFrame:
    table = frame()
    table[column] = table[column].astype(object)
    table.loc[row, column] = value
    return table


SPREAD = np.random.RandomState(1).randn(ROWS)
FIRST_COMMA = "a,y\n" + "".join(f'"1,{i}",{i}\n' for i in range(40))  # without its comma, 1,5 would be 15
BAD = {
    "no column": (frame(), {"target": "Y"}, r"data.target=Y: .*.csv has no such column; did you mean data.target=y\?"),
    "no columns": (
        frame(), {"target": "Y", "drop": ["a"], "id": ["who"]},
        "data.target=Y: .* mean data.target=y.; data.id=who: .*; data.drop=a: table.csv has no",
    ),
    "none to drop": (frame(), {"drop": ["a", "b"]}, r"data.drop=\[a,b\]: table.csv has no such columns; it has name"),
    "constant": (frame().assign(y=3.5), {}, "data.target=y is 3.5 in all 32 training rows of table.csv"),
    "one class": (frame().assign(y="a"), {}, "data.target=y: all 40 rows of table.csv are of one class, 'a'"),
    "classes": (frame(), {"target": "name", "drop": []}, "data.target=name has 40 classes in 40 rows of table.csv"),
    "text": (with_one("size", "abc"), {}, r"size has 'abc' in row 7, and no finite .*: data.missing=\['\?',abc\]"),
    "infinite": (with_one("size", np.inf), {}, "size has 'inf' in row 7, and no finite number in 1 of 32 rows"),
    "text in target": (with_one("y", "abc"), {}, "y has 'abc' in row 7, and no finite number in 1 of 40 rows"),
    "numbers as classes": (frame(), {"task": "classification"}, "data.task=regression predicts numbers"),
    "counts": (frame(), {"task": "counts"}, "data.task=counts does not fit the target y: .* is no count"),
    "text as numbers": (frame().assign(y=["u", "v"] * 20), {"task": "regression"}, "data.task=classification takes"),
    "free text": (frame(), {"drop": [], "max_levels": 9}, r"name has 32 different texts .* data.drop=\[name\] leaves"),
    "target dropped": (frame(), {"drop": ["y"]}, "data.drop names y, which is the target"),
    "nothing left": (frame(), {"drop": ["name", "size", "city", "new"]}, "no column has information about the target"),
    "no target": (frame().assign(y=np.nan), {}, "data.target=y: no row of table.csv has a value"),
    "split word": (frame(), {"split_column": "city"}, r"names no split \(40 of 40 rows\): write train, val or test"),
    "no test rows": (frame().assign(p="train"), {"split_column": "p"}, "data.split_column=p has no row with test"),
    "two splits": (
        frame(), {"split_column": "city", "test_path": "package:airfoil.csv", "target": "y"},
        "data.target=y: airfoil.csv has no such column",
    ),
    "fraction": (frame(), {"test_fraction": 0}, r"data.test_fraction must be in \(0, 1\), got 0"),
    "all for testing": (frame(), {"test_fraction": 0.99}, "leaves no training row of 40"),
    "doubled": (b"a,a,y\n1,2,3\n", {"drop": []}, "data.path=.* has two columns with the name 'a': rename one"),
    "empty": (b"", {}, "data.path=.* is empty"),
    "no rows": (b"a,b,y\n", {}, "has column names and no rows"),
    "semicolons": (b"a;b;y\n1;2\n", {}, "one column only under data.separator=comma; .* data.separator=semicolon"),
    "one column": (b"y\n1\n2\n", {}, "one column only .* data.separator names the sign between them"),
    "more fields": (b"a,y\n1,2,3\n1,2,3\n", {"drop": []}, "names 2 columns, and line 2 has 3 .*col.names=NA"),
    "ragged": (b"a,y\n1,2\n1,2,3\n", {"drop": []}, "names 2 columns, and line 3 has 3 fields: "),
    "coding": ("a,y\nKöln,2\n".encode("latin1"), {"encoding": "utf-8"}, "is no utf-8 text"),
    "no thousands": (
        FIRST_COMMA.encode(), {"drop": [], "task": "regression", "thousands": "comma"},
        r"a holds numbers that are texts \('1,0'\): set data.decimal=comma",
    ),
    "marked and held out": (
        frame().assign(p=["train"] * 30 + ["val"] * 5 + ["test"] * 5), {"split_column": "p", "val_fraction": 0.25},
        "set data.val_fraction=0",
    ),
    "apart": (frame().assign(size=np.where(SPREAD > 0, 1.7e308, -1.7e308)), {}, "size goes from -1.7e[+]308 to 1.7e"),
    "too fine": (frame().assign(size=np.where(SPREAD > 0, 5e-324, 0)), {}, "size goes from 0 to 4.9.*e-324"),
    "far": (frame().assign(y=[3.0 + 1e300 * (i == 3) for i in range(ROWS)]), {"task": "counts"}, "y has 1e[+]300"),
    "batch": (frame(), {"batch_size": 33}, "batch_size must be between 1 and the 32 training items, got 33"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_refused_in_one_line_that_names_remedy(tmp_path, name):
    table, settings, words = BAD[name]
    with pytest.raises(ConfigError, match=words) as error:
        module(tmp_path, table, **settings)
    assert "\n" not in str(error.value)


def test_decimal_commas_are_named_and_read(tmp_path):
    text = "a;y\n" + "".join(f"{i},5;{(i - 40) ** 2},25\n" for i in range(80))
    settings = {"separator": "semicolon", "drop": []}
    with pytest.raises(ConfigError, match=r"a holds numbers that are texts \('0,5'\): set data.decimal=comma, .*categ"):
        module(tmp_path, text.encode(), **settings, task="classification", max_levels=20, target="y")
    with pytest.raises(ConfigError, match="data.target=y holds numbers that are texts .*: set data.decimal=comma"):
        module(tmp_path, text.encode(), **settings, target="y")
    data = module(tmp_path, text.encode(), **settings, decimal="comma")
    assert data.input_shape == (1,) and data.task == "regression"


def test_a_missing_file_and_a_missing_reader_are_named(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="data.path=.*none.csv is not there"):
        read_table(tmp_path / "none.csv", "y")
    monkeypatch.setattr("bdl.data.frame.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package pyarrow: pip install 'bdl\[parquet\]'"):
        read_table(written(tmp_path, frame()), "y", format="parquet")


def test_parquet_gives_what_csv_gives(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra [parquet] is not installed")
    frame().to_parquet(tmp_path / "table.parquet")
    data = read_table(tmp_path / "table.parquet", "y", drop=["name"], format="parquet")
    for one, other in zip(data.tensors("train"), module(tmp_path, frame()).tensors("train"), strict=True):
        torch.testing.assert_close(one, other)


THOUSANDS = {
    "comma": ("comma", "point", ["2,020", "950", "12,345,678", "1,234"]),
    "point": ("semicolon", "comma", ["2.020", "950", "12.345.678", "1.234"]),
    "space": ("comma", "point", ["2 020", "950", "12 345 678", "1 234"]),
    "apostrophe": ("comma", "point", ["2'020", "950", "12'345'678", "1'234"]),
}  # fmt: skip


@pytest.mark.parametrize("sign", THOUSANDS)
@pytest.mark.parametrize("column", ["input", "target"])
def test_signs_between_thousands_are_read_and_never_as_decimals(tmp_path, sign, column):
    separator, decimal, texts = THOUSANDS[sign]
    between = {"comma": ",", "semicolon": ";"}[separator]
    rows = [(texts[i % 4], f"{i}") if column == "input" else (f"{i * 3 % 41}", texts[i % 4]) for i in range(40)]
    text = "".join(between.join(f'"{field}"' for field in row) + "\n" for row in [("a", "y"), *rows])
    settings = {"separator": separator, "decimal": decimal, "drop": [], "target": "y", "task": "regression"}
    with pytest.raises(ConfigError, match=f"data.thousands={sign}"):
        module(tmp_path, text.encode(), **settings)
    data = module(tmp_path, text.encode(), **settings, thousands=sign)
    learned = data.encoding.inputs.columns[0] if column == "input" else data.encoding.target
    values = np.array([2020.0, 950.0, 12345678.0, 1234.0])
    assert values.min() < learned.mean < values.max() and learned.std > 1e5


def test_narrow_spaces_between_thousands_are_spaces(tmp_path):
    text = "a,y\n" + "".join(f"2\u202f02{i % 3},{i}\n" for i in range(40))
    data = module(tmp_path, text.encode(), drop=[], target="y", task="regression", thousands="space")
    assert 2020 < data.encoding.inputs.columns[0].mean < 2022


def test_codes_with_points_are_categories_beside_decimal_commas(tmp_path):
    text = "a;b;y\n" + "".join(f"{i % 3}.{i % 2};{i},5;{i}\n" for i in range(40))
    settings = {"separator": "semicolon", "decimal": "comma", "drop": [], "target": "y", "task": "regression"}
    with pytest.raises(
        ConfigError, match=r"a holds numbers that are texts \('0.0'\): set data.decimal=point, or .*=\[a\] for"
    ):
        module(tmp_path, text.encode(), **settings)
    assert module(tmp_path, text.encode(), **{**settings, "drop": ["a"]}).input_shape == (1,)
    data = module(tmp_path, text.encode(), **settings, categorical=["a"])
    assert data.encoding.inputs.columns[0].levels == ("0", "0.1", "1", "1.1", "2", "2.1")


def test_none_is_a_category_and_na_is_a_gap(tmp_path):
    table = frame()
    table["y"] = ["None", "Mild", "Severe", "NA"] * 10
    with pytest.warns(BdlWarning, match="the target y is missing in 10 of 40 rows"):
        data = module(tmp_path, table.to_csv(index=False).encode())
    assert data.encoding.target.labels == ("Mild", "None", "Severe")


def test_lists_in_a_column_are_refused_by_its_name(tmp_path):
    pytest.importorskip("pyarrow")
    table = frame()
    table["tags"] = [[1, 2]] * len(table)
    table.to_parquet(tmp_path / "table.parquet")
    with pytest.raises(ConfigError, match="tags holds lists"):
        read_table(tmp_path / "table.parquet", "y", format="parquet")


def test_parquet_keeps_its_categories_and_its_named_index(tmp_path):
    pytest.importorskip("pyarrow")
    table = pd.DataFrame({"zip": pd.Categorical([10115, 20095] * 20), "y": np.arange(40.0)})
    table.index = pd.Index([f"row {i}" for i in range(40)], name="name")
    table.to_parquet(tmp_path / "table.parquet")
    data = read_table(tmp_path / "table.parquet", "y", format="parquet", id=["name"], task="regression")
    assert data.encoding.inputs.columns[0].levels == ("10115", "20095") and data.input_shape == (3,)


def test_all_refused_columns_and_target_are_named_in_one_line(tmp_path):
    table = frame().assign(
        note=[f"n{i}" for i in range(ROWS)], a=["1,5"] * 39 + ["2,25"], b=["1,5"] * 20 + ["3,5"] * 20
    )
    table["y"] = [1, 2, 3, 4] * 10
    with pytest.raises(ConfigError) as error:
        module(tmp_path, table, drop=[], max_levels=20)
    line = str(error.value)
    assert line.startswith("data.target=y has 4 different whole numbers") and "\n" not in line
    assert "name has 32 different texts" in line and "note has 32 different texts" in line
    assert "data.drop=[name,note]" in line and "a holds numbers that are texts ('1,5'), b holds" in line
    assert line.count("set data.decimal=comma") == 1 and "data.categorical=[a,b]" in line


def test_signs_around_the_fields_of_a_spreadsheet_change_nothing(tmp_path):
    """A byte order mark, blanks around fields and names, empty columns without a name, and lines without a field."""
    lines = [",".join(map(str, row)) for row in [("name", "size", "city", "new", "y"), *frame().values]]
    lines = [line.replace(",", " , ").replace("Köln", "Köln ") + ",," for line in lines]
    text = "\ufeff" + "\r\n".join([*lines[:20], ",,,,,,", "", *lines[20:]])
    with pytest.warns(BdlWarning, match="the target y is missing in 1 of 41 rows"):
        data = module(tmp_path, text.encode())
    assert data.encoding.inputs == module(tmp_path, frame()).encoding.inputs
    assert data.encoding.inputs.columns[1].levels == ("Aachen", "Bonn", "Köln")


def test_a_word_for_a_gap_that_is_a_number_stands_for_the_number(tmp_path):
    table = frame()
    table.loc[[0, 3, 5], "size"] = -999.0
    data = module(tmp_path, table, missing=["-999"])
    assert data.encoding.inputs.columns[0].gaps and data.encoding.inputs.columns[0].mean > 0


def test_columns_that_seem_to_number_the_rows_are_named(tmp_path):
    shuffled = np.random.RandomState(0).permutation(ROWS)
    table = frame().assign(count=range(5, ROWS + 5), size_nr=shuffled, population=shuffled)
    with pytest.warns(
        BdlWarning, match=r"count, size_nr has another whole number in every row, .*id=\[count,size_nr\]"
    ):
        assert module(tmp_path, table).input_shape == (11,)


def test_test_rows_that_are_copies_of_training_rows_are_counted(tmp_path):
    table = pd.concat([frame()[:30], frame()[:10]]).assign(part=["train"] * 30 + ["test"] * 10)
    with pytest.warns(BdlWarning, match="10 of 10 different test rows are training rows too, value for value"):
        module(tmp_path, table, split_column="part")


def test_all_rows_may_be_for_training(tmp_path):
    table = frame().assign(part=["train"] * 30 + ["test"] * 5 + ["val"] * 5)
    for settings in ({}, {"split_column": "part"}, {"val_fraction": 0.5}):
        drop = ["name"] if "split_column" in settings else ["name", "part"]
        data = module(tmp_path, table, all_rows=True, **{**settings, "drop": drop})
        assert data.num_data == ROWS and not data.has("test") and not data.has("val")
        assert data.encoding.target.mean == pytest.approx(table["y"].mean())
    with pytest.raises(ConfigError, match="has no test items"):
        data.slices("test")


SIZES = {
    "huge": SPREAD / 4 * 1e308, "squares overflow": SPREAD * 1e200, "squares vanish": SPREAD * 1e-200,
    "denormal": SPREAD * 1e-310, "tiny": SPREAD * 1e-13, "whole and large": 2**53 + 2 * np.arange(ROWS)[::-1] ** 2,
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("column", ["size", "y"])
def test_numbers_of_every_size_are_standardised(tmp_path, name, column):
    """Their squares overflow, vanish, or lie below a fixed bound: the column became zeros, without a word."""
    data = module(tmp_path, frame().assign(**{column: SIZES[name]}), drop=["name", "city", "new"])
    x, y = data.tensors("train")
    values, spread = (y if column == "y" else x).double(), SIZES[name].max() - SIZES[name].min()
    rounding = max(1e-5, 4 * np.spacing(np.abs(SIZES[name] / spread).max()))  # the mean is a double too; std > spread/4
    assert values.mean().abs() < rounding and values.std(correction=0) == pytest.approx(1, abs=rounding)


def test_numbers_that_differ_by_rounding_are_named_and_left_out(tmp_path):
    with pytest.warns(BdlWarning, match="size left out: the same value in all training rows, to 12 digits"):
        data = module(tmp_path, frame().assign(size=1 + np.arange(ROWS) * 1e-15))
    assert "size" not in data.encoding.inputs.names


def test_whole_numbers_that_doubles_would_merge_are_names(tmp_path):
    codes = [2**53 + i % 3 for i in range(ROWS)]
    data = module(tmp_path, frame().assign(size=codes))
    assert data.encoding.inputs.columns[0].levels == tuple(str(2**53 + i) for i in range(3))
    path = tmp_path / "table.parquet"
    frame().assign(size=[2**53 + i for i in range(ROWS)]).to_parquet(path)
    with pytest.raises(ConfigError, match=r"size has whole numbers beyond 2\^53 such as 90.*data.drop=\[size\]"):
        read_table(path, "y", drop=["name"], format="parquet")


def test_a_new_row_far_beyond_the_others_is_refused(tmp_path):
    """In single precision it is infinite, and its prediction NaN."""
    encoding = module(tmp_path, frame()).encoding.inputs
    with pytest.raises(ConfigError, match=r"size has 1e\+60 in row 7, too far from the mean .* \(1 of 40 rows\)"):
        encoding.encode(with_one("size", 1e60), "", "rows")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "kernel"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    """A file of /proc says that it is a regular one, and a reader of /proc/kmsg waits for messages."""
    path = {"device": Path("/dev/zero"), "folder": tmp_path}.get(kind, tmp_path / kind)
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "kernel":
        path.symlink_to("/proc/self/status")
    with pytest.raises(ConfigError, match=f"data.path={path} is no regular file"):
        read_table(path, "y")


@pytest.mark.parametrize("sign", ["(a+)+b", r"\s+", "||", "", "\n", '"'])
def test_a_separator_is_one_sign(tmp_path, sign):
    """pandas reads more as a regular expression, and a stranger's preprocessing.json may hold one that never ends."""
    with pytest.raises(ConfigError, match="data.separator must be comma, .* or one sign, got"):
        module(tmp_path, frame(), separator=sign)
    with pytest.raises(ConfigError, match="data.decimal must be"):
        module(tmp_path, frame(), decimal="a+")


def test_texts_are_read_in_linear_time():
    """A pattern that can read digits in two ways takes 10^10 steps for this text: half an hour."""
    text = "1" * 200_000 + "x"
    assert as_texts(pd.Series([text])).tolist() == [text]


def test_median_of_numbers_near_the_largest_is_not_beyond_it(tmp_path):
    """The sum of the two in the middle is beyond double precision: what a gap became was infinite."""
    path = tmp_path / "table.csv"
    rows = [f"1.{i:02d}e308,{i}.5\n" for i in range(40)]  # 32 are for training
    path.write_text("x,y\n" + "".join(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        data = read_table(path, "y")
    (column,) = data.encoding.inputs.columns
    assert 1e308 <= column.fill <= 1.4e308 and data.tensors("train")[0].isfinite().all()


@pytest.mark.parametrize("suffix", [".gz", ".ZIP"])
def test_a_compressed_table_is_refused(tmp_path, suffix):
    """Its rows are not those of its bytes: one was read, and another ended in an error of NumPy's."""
    with pytest.raises(ConfigError, match="is compressed: unpack it, or save the table as Parquet"):
        read_table(written(tmp_path, frame()).rename(tmp_path / f"table.csv{suffix}"), "y")


@pytest.mark.parametrize(
    "first, kind", [(b"PK\x03\x04\x14\0", "an Excel workbook"), (b"\x1f\x8b\x08\0", "compressed by gzip")]
)
def test_a_table_of_another_format_under_the_name_of_a_csv_is_named(tmp_path, first, kind):
    (tmp_path / "table.csv").write_bytes(first + bytes(range(256)) * 4)
    with pytest.raises(ConfigError, match=f"table.csv is {kind}.*, and no text: save the table as CSV"):
        read_table(tmp_path / "table.csv", "y")


def test_a_single_word_is_no_list_of_letters(tmp_path):
    """`missing="-999"` made a gap of every 9."""
    table = frame().assign(size=lambda t: t["size"].round().where(t.index % 5 > 0, -999))
    table.loc[1, "size"] = 9
    gaps = module(tmp_path, table, drop="name", missing="-999").encoding.inputs.columns
    listed = module(tmp_path, table, missing=["-999"]).encoding.inputs.columns
    assert gaps == listed == module(tmp_path, table, missing=-999).encoding.inputs.columns
    table = frame()
    module(tmp_path, table, id="name", drop=None, missing=None)
    table["when"] = range(ROWS)
    with pytest.warns(BdlWarning, match="1 of 40 rows have fewer than 1 rows before them"):
        data = module(tmp_path, table, drop=["name", "when"], lags={"size": 1}, order="when")
    assert data.encoding.lags is not None and data.encoding.lags.of == {"size": (1,)}
