"""Tests of `bdl.run.stacking`: runs whose chains have weights, in the report, the predictions and on disk."""

import json

import pandas as pd
import pytest
from running import ON_TABLE, done

from bdl.run.predict import predict_table
from bdl.run.records import read_metrics

SMALL = (*ON_TABLE, "chains=3", "trainer.max_steps=70", "collect.keep.burn_in=10")


def sample(script, mixed_table, folder, *overrides: str) -> str:
    words = (f"data.path={mixed_table}", "data.target=y", "data.drop=[kind]", *overrides)
    out = done(script("train", f"hydra.run.dir={folder}", *SMALL, *words))
    return out


def test_weights_are_in_the_report_the_predictions_and_taken_back(script, mixed_table, tmp_path):
    sample(script, mixed_table, tmp_path, "weights=stacking", "data.val_fraction=0.3")
    metrics, page = read_metrics(tmp_path / "metrics.json"), (tmp_path / "report.html").read_text()
    gain = metrics["test/bma/nll"] - metrics["test/bma_stacked/nll"]
    assert gain == pytest.approx(metrics["test/stacking/gain"], abs=1e-5) and metrics["stacking/held_out"] == 1
    assert metrics["stacking/items"] == 48 and "stacked by 48 validation rows" in page
    weights = json.loads((tmp_path / "samples" / "stacking.json").read_text())["weights"]
    assert len(weights) == 3 and sum(weights) == pytest.approx(1)
    rows = pd.read_csv(mixed_table)
    stacked, uniform = (predict_table(tmp_path, rows, weights=kind) for kind in ("stacking", "uniform"))
    assert predict_table(tmp_path, rows).equals(stacked) and not stacked["mean"].equals(uniform["mean"])
    assert "nothing is bad" in script("verify", f"run={tmp_path}")[1]
    assert "weights of the chains: uniform" in done(script("evaluate", f"runs=[{tmp_path}]", "weights=uniform"))
    assert predict_table(tmp_path, rows).equals(uniform)
    assert not any("stack" in name for name in read_metrics(tmp_path / "evaluation" / "metrics.json"))


def test_without_validation_rows_training_rows_give_weights(script, mixed_table, tmp_path):
    sample(script, mixed_table, tmp_path / "a", "weights=uniform")
    sample(script, mixed_table, tmp_path / "b", "weights=uniform", "seed=1")
    assert not (tmp_path / "a" / "samples" / "stacking.json").exists()
    status, out, err = script("evaluate", f"runs=[{tmp_path / 'a'},{tmp_path / 'b'}]", "weights=stacking")
    assert status == 0 and "stacked by leave-one-out densities of 160 training rows" in out, err
    metrics = read_metrics(tmp_path / "a" / "evaluation" / "metrics.json")
    assert metrics["stacking/held_out"] == 0 and 1 <= metrics["stacking/chains"] <= 6
    rows, both = pd.read_csv(mixed_table), [tmp_path / "b", tmp_path / "a"]
    assert not predict_table(both, rows).equals(predict_table(both, rows, weights="uniform"))
    alone = predict_table(tmp_path / "a", rows)
    assert alone.equals(predict_table(tmp_path / "a", rows, weights="uniform"))
