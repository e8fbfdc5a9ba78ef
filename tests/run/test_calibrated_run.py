"""Tests of `bdl.run.section`, `.evaluate`, `.predict`, `.records`: a run with calibrate=, and its predictions."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from running import ON_TABLE, done
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.data import DataModule
from bdl.errors import ConfigError
from bdl.posterior.calibrated import CalibrationRequest
from bdl.run.predict import predict_table
from bdl.run.records import read_metrics
from bdl.run.section import check_calibration

SMALL = (*ON_TABLE, "chains=2", "trainer.max_steps=12", "collect.keep.burn_in=5")


def sample(script, mixed_table, folder, target: str, *overrides: str):
    drop = {"kind": "y", "y": "kind"}[target]
    words = (f"data.path={mixed_table}", f"data.target={target}", f"data.drop=[{drop}]", "data.val_fraction=0.25")
    return script("train", f"hydra.run.dir={folder}", *SMALL, *words, *overrides)


def predict(script, mixed_table, folder, *overrides: str) -> pd.DataFrame:
    output = folder / "preds.csv"
    done(script("predict", f"run={folder}", f"input={mixed_table}", f"output={output}", *overrides))
    return pd.read_csv(output)


def test_conformal_sets_are_in_the_report_and_the_predictions(script, mixed_table, tmp_path):
    """The sets hold as many rows of the table as their metric says of the test rows, within what chance allows."""
    status, out, err = sample(script, mixed_table, tmp_path, "kind", "calibrate=conformal", "calibrate.level=0.8")
    assert status == 0, err
    metrics = read_metrics(tmp_path / "metrics.json")
    line = f"conformal sets of level 80 % hold {100 * metrics['test/conformal/coverage']:.1f} % of the test items"
    assert line in out and line in (tmp_path / "report.html").read_text()
    assert metrics["calibration/items"] == 40
    preds = predict(script, mixed_table, tmp_path)
    classes = [set(row.split("|")) for row in preds["set"].fillna("")]
    truth = pd.read_csv(mixed_table)["kind"]
    held = np.mean([kind in row for kind, row in zip(truth, classes, strict=True)])
    assert held == pytest.approx(0.8, abs=4 * (0.8 * 0.2 / 40) ** 0.5)  # that of the 40 rows of the fit
    assert set().union(*classes) <= {"low", "mid", "high"}
    # the same command says that it is done; another calibration is made by evaluate, and wins
    assert (
        "not calibrated"
        not in sample(script, mixed_table, tmp_path, "kind", "calibrate=conformal", "calibrate.level=0.8")[1]
    )
    _, out, _ = sample(script, mixed_table, tmp_path, "kind", "calibrate=temperature")
    assert f"bdl evaluate runs={tmp_path} calibrate=temperature" in out
    assert "temperature scaling with T" in done(script("evaluate", f"runs={tmp_path}", "calibrate=temperature"))
    scores = read_metrics(tmp_path / "evaluation" / "metrics.json")
    assert scores["test/bma_scaled/nll"] > 0
    scaled = predict(script, mixed_table, tmp_path)
    assert "set" not in scaled and scaled["class"].equals(preds["class"])
    np.testing.assert_allclose(scaled[["p_low", "p_mid", "p_high"]].sum(axis=1), 1, rtol=1e-5)
    temperature = json.loads((tmp_path / "evaluation" / "calibration.json").read_text())["temperature"]
    logits = np.log(preds[["p_low", "p_mid", "p_high"]].to_numpy()) / temperature
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(scaled[["p_low", "p_mid", "p_high"]], expected, rtol=1e-4, atol=1e-6)


def test_conformal_intervals_are_in_the_units_of_the_target(script, mixed_table, tmp_path):
    status, out, err = sample(script, mixed_table, tmp_path, "y", "calibrate=conformal", "calibrate.level=0.8")
    assert status == 0 and "conformal intervals of level 80 %" in out, err
    preds, y = predict(script, mixed_table, tmp_path), pd.read_csv(mixed_table)["y"]
    held = ((preds["low"] <= y) & (y <= preds["high"])).mean()
    assert held == pytest.approx(0.8, abs=4 * (0.8 * 0.2 / 40) ** 0.5)
    width = read_metrics(tmp_path / "metrics.json")["test/conformal/width"]  # standardised, as the network sees y
    assert (preds["high"] - preds["low"]).mean() == pytest.approx(width * y.std(), rel=0.2)
    again = predict_table(tmp_path, pd.read_csv(mixed_table))
    np.testing.assert_allclose(again["low"], preds["low"], rtol=1e-5)
    path = tmp_path / "calibration.json"
    path.write_text(path.read_text().replace('"level": 0.8', '"level": 0.1'))
    words = (f"run={tmp_path}", f"input={mixed_table}", f"output={tmp_path / 'q.csv'}")
    status, _, err = script("predict", *words)
    assert status == 1 and "calibration.json was altered: its sha256" in err[-1]


def test_calibration_without_rows_is_refused_before_sampling(script, mixed_table, tmp_path):
    for words, line in (
        (("data.val_fraction=0.0",), "no validation items"),
        (("calibrate.level=0.99",), "at least 99 validation items, and there are 40"),
        (("refit=all",), "refit=all samples them"),
        (("calibrate.level=1.5",), "calibrate.level"),
    ):
        result = sample(script, mixed_table, tmp_path, "kind", "calibrate=conformal", *words)
        assert line in result[2][-1] and result[0] == 1
    assert not list(tmp_path.glob("samples/*.safetensors"))


class WithGaps(DataModule):
    """Labels y (n, 2) of the validation and the test split, and the groups of their items."""

    gaps = True

    def __init__(self, y: torch.Tensor, groups: list[int] | None):
        super().__init__()
        self.loader = DataLoader(TensorDataset(torch.zeros(len(y), 1), y), batch_size=5)
        self.groups = {} if groups is None else {"val": torch.tensor(groups)}

    def val_dataloader(self):
        return self.loader

    test_dataloader = val_dataloader


@pytest.mark.parametrize("groups", [None, [0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8]])
def test_gaps_of_a_target_count_before_sampling(groups):
    """Level 0.9 needs 9 items, or groups: there are 12, or 9, and the second target is in 8, or 5, of them."""
    request, law, y = CalibrationRequest("conformal"), bdl.ObservedNLL(bdl.GaussianNLL(1.0)), torch.zeros(12, 2)
    check_calibration(request, law, WithGaps(y, groups))
    y[8:, 1] = torch.nan
    line = "items that have each target, and there are 8" if groups is None else "target, and there are 5"
    with pytest.raises(ConfigError, match=line):
        check_calibration(request, law, WithGaps(y, groups))
