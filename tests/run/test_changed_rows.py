"""Rows that have changed since a run are named as the cause, and so are arguments that are no table."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf

import bdl
from bdl.data.tensors import TensorDataModule
from bdl.errors import BdlWarning, ConfigError
from bdl.run.config import TABLE, checksums_of_files
from bdl.run.console import one_line
from bdl.run.directory import differing_key
from bdl.run.evaluate import warn_of_other_rows
from bdl.run.keys import WORD, some
from bdl.run.validate import fitting


def test_a_changed_table_is_named_before_any_setting(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y\n1,2\n")
    settings = {"model": {"hidden": [16]}, "data": {"_target_": TABLE, "path": str(path)}}
    files = checksums_of_files(settings["data"])
    recorded = OmegaConf.create({**settings, "model": {"hidden": [8]}, "provenance": {"files": files}})
    assert differing_key(settings, recorded) == "model.hidden is [8] there, and [16] here"
    path.write_text("a,y\n1,3\n")
    assert differing_key(settings, recorded) == f"data.path={path} has changed since then"


def module(labels: torch.Tensor, pixels: torch.Tensor) -> TensorDataModule:
    x = torch.arange(40.0).view(20, 2)
    return TensorDataModule({"train": (x[:10], torch.arange(10) % 2), "test": (pixels, labels)})


def test_held_out_rows_and_labels_that_have_changed_are_told():
    x, y = torch.arange(20.0).view(10, 2), torch.arange(10) % 2
    recorded = OmegaConf.create({"provenance": {"rows": module(y, x).checksums()}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_rows(recorded, module(y, x))
        warn_of_other_rows(OmegaConf.create({}), module(y, x))  # a run that has no such record
    for other in (module(1 - y, x), module(y, x + 1)):
        with pytest.warns(BdlWarning, match="the test items or their labels are not those of the run"):
            warn_of_other_rows(recorded, other)


@pytest.mark.parametrize(
    "value, fits",
    [(["k.A.", -999], ["k.A.", "-999"]), ([1, 2.5], ["1", "2.5"]), ([True, None], ["true", "null"]), (["a"], ["a"])],
)
def test_numbers_are_words_where_words_are_meant(value, fits):
    assert fitting("data.missing", value, some(WORD)) == fits


@pytest.mark.parametrize("key, value", [("data.target", 2020), ("data.group", 7)])
def test_a_column_may_be_named_by_a_number(key, value):
    assert fitting(key, value, str) == str(value)
    with pytest.raises(ConfigError, match=r"run_dir must be a word, got 5"):
        fitting("run_dir", 5, WORD)


@pytest.mark.parametrize(
    "rows, words",
    [
        ({"a": [1]}, "got dict: pandas.DataFrame"),
        (pd.Series([1.0]), r"got Series: rows.to_frame\(\)"),
        (np.zeros((2, 2)), "got ndarray"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns with the name 'a'"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused(tmp_path, rows, words):
    with pytest.raises(ConfigError, match=words):
        bdl.predict_table(tmp_path, rows)


def test_a_group_that_is_taken_away_is_named(monkeypatch):
    monkeypatch.setattr("sys.argv", ["bdl train", "~data"])
    assert one_line(ValueError("Key 'data' is not in struct")).startswith("~data takes away what the command needs")
