"""bench.py table: what it measures of a run, and the table that it makes of several."""

import json

import pytest
from benchmarks import table as bench

MACHINE = {"device": "a CPU", "date": "2026-01-02"}
OVERRIDES = ["experiment=airfoil", "logger=none"]


def run(seed: int) -> dict:
    scores = {"rmse": 0.1 + 0.02 * seed, "nll_normal": -1.0, "nll": -1.5}
    start = {"rmse": 0.3, "nll_normal": 0.1, "nll": 0.0}
    return {"seed": seed, "bma": scores, "start": start, "rhat/max": 1.2, "core_seconds": 100.0 + 50 * seed}


def test_seeds_are_added_to_those_measured_with_equal_overrides(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda overrides, seed: run(seed))
    for seed, overrides, expected in ((1, OVERRIDES, [1]), (0, OVERRIDES, [0, 1]), (2, OVERRIDES[:1], [2])):
        bench.main("airfoil", *overrides, seeds=[seed], out=tmp_path)
        record = json.loads((tmp_path / "airfoil.json").read_text())
        assert [r["seed"] for r in record["runs"]] == expected and record["overrides"] == overrides
        assert record["device"] and record["date"]


def test_the_table_has_means_spreads_and_what_was_published():
    text = bench.table({"name": "airfoil", "overrides": OVERRIDES, "cores": 2, **MACHINE, "runs": [run(0), run(1)]})
    assert "`scripts/train.py experiment=airfoil logger=none` on 2 cores of a CPU, 2026-01-02" in text
    assert "| bdl, 2 seeds | 0.1100 ± 0.0141 | -1.0000 ± 0.0000 | -1.5000 ± 0.0000 | 1.2000 ± 0.0000 | 125 |  |" in text
    assert "| bde 1.0, published | 0.1215 | -0.9130 | – | – | 2410 | – |" in text


def test_accuracy_becomes_the_error_in_percent():
    scores = {"accuracy": 0.925, "nll": 0.2}
    one = {"seed": 0, "bma": scores, "start": {}, "rhat/max": 1.1, "core_seconds": 9.0}
    text = bench.table({"name": "landsat", "overrides": [], "cores": 2, **MACHINE, "runs": [one]})
    assert (
        "|  | error % | -LPPD | R-hat | core-seconds | verdict |" in text
        and "| seed 0 | 7.5000 | 0.2000 | 1.10 | 9 | – |" in text
    )


@pytest.mark.slow
def test_a_run_is_measured_as_its_command_leaves_it():
    small = ("trainer=debug", "logger=none", "start=adamw", "chains=2", "trainer.max_steps=12", "model.sizes=[36,6]")
    measured = bench.measure([*small, "collect.keep.every=2"], seed=3)
    assert measured["seed"] == 3 and set(measured["bma"]) == set(measured["start"]) == {"accuracy", "nll"}
    assert 0 < measured["core_seconds"] and measured["chains"] == 2
