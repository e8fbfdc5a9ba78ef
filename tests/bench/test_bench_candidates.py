"""Tests of scripts/experiments/candidates: which rows decide, and what the table says of them."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from experiments import candidates as bench
from experiments.candidates import tables

import bdl
from bdl.data.split import train_test_rows


@pytest.fixture
def folder(tmp_path):
    """Files whose rows tell their own numbers: 400 rows of energy, and 200 of airfoil."""
    (tmp_path / "uci").mkdir()
    numbers = np.arange(400.0)
    pd.DataFrame({"a": numbers, "b": 1.0, "y": numbers**2}).to_csv(tmp_path / "uci" / "energy.csv", index=False)
    np.savetxt(tmp_path / "uci" / "energy.test_0.txt", np.arange(0, 400, 10), fmt="%d")
    pd.DataFrame({"a": numbers[:200], "target": numbers[:200]}).to_csv(tmp_path / "airfoil.csv", index=False)
    return tmp_path


def test_published_test_rows_are_in_no_table(folder):
    assert not set(range(0, 400, 10)) & set(tables.uci("energy")(folder)[:, 0])
    published = {row for seed in (0, 42) for row in train_test_rows(200, 0.2, seed)[1]}
    assert set(tables.airfoil(folder)[:, 0]) == set(range(200)) - published


def test_a_fifth_is_the_test_part_and_training_rows_set_scale(folder):
    table = tables.make_table("energy320", folder)
    assert table.x.shape == (256, 2) and table.x_test.shape == (64, 2) and table.y.dtype == torch.float32
    torch.testing.assert_close(table.y.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(table.y.std(correction=0), torch.tensor(1.0))
    assert (table.x[:, 1] == 0).all() and (table.x_test[:, 1] == 0).all()  # a constant column
    assert not set(table.x[:, 0].tolist()) & set(table.x_test[:, 0].tolist())
    assert torch.equal(table.x_test, tables.make_table("energy320", folder).x_test)


def test_a_missing_file_is_named_with_the_table_that_needs_it(folder):
    (folder / "uci" / "energy.test_0.txt").unlink()
    for name, file in (("bike3k", "bike_sharing_hour.csv"), ("energy", "uci/energy.test_0.txt")):
        with pytest.raises(bdl.errors.ConfigError, match=f"lacks {file}, of which {name} is made"):
            tables.make_table(name, folder)


def test_candidates_are_compared_on_tables_that_they_share():
    def cell(nll):
        return {"nll": nll, "rmse": 0.5, "core_seconds": 10.0}

    cells = {
        bench.SAME_STEPS: {"diabetes": cell(1.0), "energy": cell(-2.0), "airfoil": cell(-9.0)},
        bench.DEFAULT: {"diabetes": cell(1.1), "energy": cell(-2.5), "airfoil": cell(-9.5)},
        "50-50": {"diabetes": cell(0.9), "energy": cell(-1.5)},
    }
    all_of_them, fuller = found = bench.summaries(cells)
    assert all_of_them["tables"] == ["diabetes", "energy"] and fuller["tables"] == [*all_of_them["tables"], "airfoil"]
    rows = all_of_them["candidates"]
    assert [row["rank"] for row in rows.values()] == [2.0, 2.0, 2.0] and rows["50-50"]["core_seconds"] == 20
    assert rows["50-50"]["to_default"] == pytest.approx(0.4) and rows["50-50"]["better_than_default"] == 1
    assert rows["50-50"]["to_same_steps"] == pytest.approx(0.2)
    assert [row["rank"] for row in fuller["candidates"].values()] == pytest.approx([5 / 3, 4 / 3])
    alone = {name: mine for name, mine in cells.items() if name != bench.SAME_STEPS}
    assert len(bench.summaries(alone)) == 1  # the default has nobody to compare with on airfoil
    assert bench.summaries({"50-50": {}, bench.DEFAULT: {}}) == []
    text = bench.report({"bdl": "1", "device": "a CPU", "date": "2026-01-02", "cells": cells, "summaries": found})
    assert "Over diabetes, energy. " in text and "Over diabetes, energy, airfoil. " in text
    assert "| 50-50 | 0.900 / 0.500 | -1.500 / 0.500 | – |" in text and "| 50-50 | 2.0 | +0.400 | +0.200 | 1 |" in text


def test_cells_stay_and_those_of_another_version_are_refused(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(bench, "make_table", lambda name, folder: name)
    monkeypatch.setattr(
        bench, "measure",
        lambda candidate, table, seed: measured.append(table) or {"nll": 0.0, "rmse": 1.0, "core_seconds": 1.0},
    )  # fmt: skip
    for names in (["energy"], ["energy", "airfoil"]):
        bench.main(data=tmp_path, only=["50-50"], tables=names, out=tmp_path)
    assert measured == ["energy", "airfoil"]
    path = tmp_path / "candidates.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bdl": "0.0.1"}))
    with pytest.raises(bdl.errors.ConfigError, match="bdl 0.0.1.* delete it"):
        bench.main(data=tmp_path, only=["50-50"], tables=["energy"], out=tmp_path)


@pytest.mark.slow
def test_a_candidate_is_measured_the_same_again(folder):
    small = bench.Candidate(hidden=(4,), steps=500, chains=2)
    table = tables.make_table("energy320", folder)
    one, again, other = (bench.measure(small, table, seed) for seed in (0, 0, 1))
    assert one["nll"] == again["nll"] != other["nll"] and 0 < one["rmse"] < 1 and one["core_seconds"] > 0
