"""Tests of `bdl.data.targets`: what is learned of each, gaps in some of them, and the columns that are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bdl.data.table import read_table
from bdl.data.table_encoding import TableEncoding
from bdl.data.targets import NumberTargets
from bdl.errors import BdlWarning, ConfigError


def frame() -> pd.DataFrame:
    """40 rows: two numbers, one of them rounded to 0.5, an answer in words, and an input."""
    random = np.random.default_rng(0)
    x = random.normal(size=40)
    half = np.round(2 * (x + random.normal(size=40))) / 2
    return pd.DataFrame({"x": x, "y": 3 * x + random.normal(size=40), "half": half, "word": ["yes", "no"] * 20})


def written(folder: Path, table: pd.DataFrame) -> Path:
    table.to_csv(folder / "table.csv", index=False)
    return folder / "table.csv"


def test_each_target_is_standardised_by_itself_as_if_it_were_alone(tmp_path):
    path, drop = written(tmp_path, frame()), {"drop": ["word"]}
    both = read_table(path, ["y", "half"], **drop)
    alone = [read_table(path, name, drop=["word", other]) for name, other in (("y", "half"), ("half", "y"))]
    assert both.num_targets == 2 and both.num_data == 32 and not both.gaps
    for split in ("train", "test"):
        assert torch.equal(both.tensors(split)[0], alone[0].tensors(split)[0])
        assert torch.equal(both.tensors(split)[1], torch.cat([one.tensors(split)[1] for one in alone], 1))
    assert both.target_units == (*alone[0].target_units, *alone[1].target_units)  # type: ignore[misc]
    least = alone[1].loss["min_std"]
    assert both.loss == {"_target_": "bdl.HeteroscedasticNLL", "outliers": 0.01, "min_std": [0.0, least]} and least > 0
    assert "targets y, half: regression (y: 40 different numbers; half:" in str(both.overview)
    one = read_table(path, ["y"], drop=["word", "half"])
    assert one.identity() == alone[0].identity()  # a list with one name is that name


def test_rows_with_a_target_are_kept_and_gaps_are_nan(tmp_path):
    table = frame().drop(columns="word")
    table.loc[:9, "y"] = np.nan
    table.loc[8:13, "half"] = np.nan
    with pytest.warns(BdlWarning) as seen:
        data = read_table(written(tmp_path, table), ["y", "half"], test_fraction=0.25)
    assert [str(w.message) for w in seen] == [
        "table.csv: all targets, y, half, are missing in 2 of 40 rows, which are left out",
        "table.csv: y is missing in 8, half is missing in 4 of 38 rows, which are kept: their other targets count",
    ]
    y = torch.cat([data.tensors(split)[1] for split in ("train", "test")])
    assert data.gaps and y.isnan().sum(0).tolist() == [8, 4] and not bool(y.isnan().all(1).any())
    assert data.num_data + data.count("test") == 38
    rows = data.tensors("train")[1]
    seen_rows = ~rows.isnan()
    for j in range(2):  # moments of the training rows that have the target
        values = rows[seen_rows[:, j], j]
        assert float(values.mean()) == pytest.approx(0, abs=1e-6)
        assert float(values.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_the_encoding_is_read_back_from_json(tmp_path):
    data = read_table(written(tmp_path, frame()), ["half", "y"], drop=["word"])
    read = TableEncoding.from_plain(json.loads(json.dumps(data.encoding.to_plain())))
    assert read == data.encoding and isinstance(read.target, NumberTargets)
    assert read.target.name == "half, y" and read.target.task == "regression"
    assert data.identity()["target"] == ["half", "y"]


def test_counts_are_not_standardised(tmp_path):
    table = frame().assign(a=np.arange(40) % 7, b=np.arange(40) % 5)[["x", "a", "b"]]
    data = read_table(written(tmp_path, table), ["a", "b"], task="counts")
    assert data.target_units == (("a", 0.0, 1.0), ("b", 0.0, 1.0)) and data.task == "counts"


def test_several_columns_of_classes_are_encoded_each_by_itself(tmp_path):
    table = frame().assign(size=["big one", "small", "small", "tiny"] * 10)[["x", "word", "size"]]
    table.loc[2:5, "size"], table.loc[5, "word"] = np.nan, np.nan  # row 5 has neither
    with pytest.warns(BdlWarning) as seen:
        data = read_table(written(tmp_path, table), ["word", "size"], test_fraction=0.25)
    assert "size is missing in 3 of 39 rows, which are kept" in str(seen[-1].message)
    assert data.class_columns == {"word": ("no", "yes"), "size": ("big one", "small", "tiny")} and data.gaps
    assert data.loss == {"_target_": "bdl.MultiCategoricalNLL", "classes": [2, 3]} and data.num_classes == 5
    y = torch.cat([data.tensors(split)[1] for split in ("train", "test")])
    assert y.shape == (39, 2) and y.dtype == torch.int64 and (y == -100).sum(0).tolist() == [0, 3]
    assert data.num_data == len(data.tensors("train")[1]) and "targets word, size: classification" in str(data.overview)
    read = TableEncoding.from_plain(json.loads(json.dumps(data.encoding.to_plain())))
    assert read == data.encoding and data.identity()["target"] == ["word", "size"]


REFUSED: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "twice": (["y", "y"], {}, "data.target names y twice: name each target once"),
    "none": ([], {}, r"data.target=\[\] names no column"),
    "missing": (["y", "z"], {}, "data.target=z: table.csv has no such column"),
    "classes and numbers": (
        ["word", "y"],
        {},
        r"data.target=\[word,y\]: word holds classes and y numbers, and .*: make a run for data.target=\[word\] and",
    ),
    "too many classes": (["y", "word"], {"task": "classification"}, "y has 40 classes in 40 rows"),
    "one class": (["word", "one"], {"task": "classification"}, "data.target=one: all 40 rows .* are of one class"),
    "an input too": (["y", "half"], {"id": ["half"]}, "data.id names half, which is the target: take it out"),
    "nothing": (["y", "empty"], {}, "data.target=empty: no row of table.csv has a value"),
    "constant": (["y", "one"], {}, "data.target=one is 1.5 in all 32 training rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_columns_are_refused_in_one_line(tmp_path, case):
    target, settings, line = REFUSED[case]
    path = written(tmp_path, frame().assign(empty=np.nan, one=1.5))
    drop = [name for name in ("word", "empty", "one") if name not in target]
    with pytest.raises(ConfigError, match=line) as refusal:
        read_table(path, target, drop=drop, **settings)
    assert "\n" not in str(refusal.value)
