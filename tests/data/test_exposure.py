"""Tests of `bdl.data.exposure`: what a table's column of exposures becomes, and which are refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bdl.data.table import TableDataModule, read_table
from bdl.data.table_encoding import TableEncoding
from bdl.errors import ConfigError

ROWS = 40


def claims() -> pd.DataFrame:
    random = np.random.RandomState(0)
    years = random.choice([0.1, 1.0, 2.0], ROWS)
    return pd.DataFrame({"age": random.rand(ROWS), "years": years, "claims": random.poisson(2 * years)})


def module(folder: Path, frame: pd.DataFrame, **settings: Any) -> TableDataModule:
    path = folder / "claims.csv"
    frame.to_csv(path, index=False)
    arguments: Any = {"target": "claims", "exposure": "years", **settings}
    return read_table(path, **arguments)


def test_offset_is_the_log_over_the_mean_of_training_rows(tmp_path):
    data, frame = module(tmp_path, claims()), claims()
    test = np.sort(np.random.RandomState(0).permutation(ROWS)[:8])
    train = np.setdiff1d(np.arange(ROWS), test)
    mean = frame["years"][train].mean()
    for split, at in (("train", train), ("test", test)):
        x, y = data.tensors(split)
        assert x.shape == (len(at), 2) and y.flatten().tolist() == frame["claims"][at].tolist()
        assert np.allclose(x[:, -1], np.log(frame["years"][at] / mean), atol=1e-6)
    assert data.task == "counts" and data.has_offset and "1 column as 1 input" in (data.overview or "")
    assert "rate x years" in (data.overview or "")


def test_the_unit_of_the_exposure_changes_nothing(tmp_path):
    in_days = claims().assign(years=claims()["years"] * 365.25)
    (a, _), (b, _) = (module(tmp_path, frame).tensors("train") for frame in (claims(), in_days))
    assert torch.allclose(a, b, atol=1e-6)


def test_the_same_exposure_everywhere_is_no_offset(tmp_path):
    data = module(tmp_path, claims().assign(years=3.0))
    assert data.tensors("train")[0][:, -1].tolist() == [0.0] * 32


def test_the_encoding_is_read_back_and_tables_without_lack_it(tmp_path):
    plain = json.loads(json.dumps(module(tmp_path, claims()).preprocessing()))
    encoding = TableEncoding.from_plain(plain)
    assert encoding.to_plain() == plain and plain["exposure"]["name"] == "years"
    x = encoding.encode(pd.DataFrame({"age": [0.5], "years": [plain["exposure"]["mean"] * math.e]}), "input: ", "new")
    assert math.isclose(float(x[0, -1]), 1.0, rel_tol=1e-6)
    without = module(tmp_path, claims(), exposure=None, task="counts", drop=["years"])
    assert "exposure" not in (without.preprocessing() or {}) and not without.has_offset


@pytest.mark.parametrize(("value", "said"), [(0.0, "is 0"), (-1.0, "is -1"), (math.nan, "is missing")])
def test_exposures_not_above_0_are_refused_in_any_split(tmp_path, value, said):
    test = int(np.random.RandomState(0).permutation(ROWS)[0])
    for row in (test, int(np.random.RandomState(0).permutation(ROWS)[20])):
        frame = claims()
        frame.loc[row, "years"] = value
        with pytest.raises(ConfigError, match=rf"data.exposure=years: the exposure {said} in row {row + 1} .* above 0"):
            module(tmp_path, frame)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_an_exposure_of_another_task_is_refused(tmp_path, task):
    with pytest.raises(ConfigError, match=f"data.exposure=years .* data.task={task}: set data.task=counts"):
        module(tmp_path, claims(), task=task)


def test_an_exposure_with_another_use_is_refused(tmp_path):
    for use in ("id", "drop", "categorical"):
        with pytest.raises(ConfigError, match=f"data.{use} names years, which is the exposure"):
            module(tmp_path, claims(), **{use: ["years"]})
    with pytest.raises(ConfigError, match="data.exposure names claims, which is the target"):
        module(tmp_path, claims(), exposure="claims")
    with pytest.raises(ConfigError, match="data.exposure=yaers.*did you mean data.exposure=years"):
        module(tmp_path, claims(), exposure="yaers")
