"""Tables whose target has repeated values, or is positive, from the command line to predictions."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf
from running import ON_TABLE, refusal, whole

import bdl

SHORT = (*ON_TABLE, "chains=2", "trainer.max_steps=40", "sampler.lr=0.003", "collect.keep.burn_in=20")


def table(zeros: float) -> pd.DataFrame:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(120, 2)), columns=["a", "b"])
    amount = np.exp(frame.a + random.normal(size=120))
    return frame.assign(y=np.where(random.random(120) < zeros, 0.0, 3 * amount))


def run(folder, frame: pd.DataFrame, *overrides: str) -> str:
    """A finished run on a table."""
    frame.to_csv(folder / "table.csv", index=False)
    of_data = (f"data.path={folder / 'table.csv'}", "data.target=y", "model.sizes=null")
    whole(folder / "run", *SHORT, *of_data, *overrides)
    return (folder / "run" / "report.html").read_text()


def test_half_the_targets_are_zero_from_the_table_to_predictions(tmp_path, capsys):
    frame = table(0.5)
    report = run(tmp_path, frame)
    said = capsys.readouterr().out
    assert "% of the values are exactly 0: bdl.HurdleNLL has a mass there and a density above 0" in said
    assert "of the values are exactly 0" in report
    config = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert config.loss._target_ == "bdl.HurdleNLL" and config.model.sizes == [2, 4, 3]
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["test/bma/crps"] > 0 and np.isfinite(metrics["test/bma/nll"] + metrics["test/constant/nll"])
    predictions = bdl.predict_table(tmp_path / "run", frame)
    assert (predictions["q05"] == 0).all() and (predictions["mean"] > 0).all() and (predictions["q95"] > 0).all()


def test_a_density_on_repeated_values_can_be_asked_for(tmp_path, capsys):
    run(tmp_path, table(0.5), "loss=normal")
    said = capsys.readouterr().out
    assert "exactly 0, and bdl.HeteroscedasticNLL has no mass there: loss=auto takes one that has" in said
    assert OmegaConf.load(tmp_path / "run" / "config.yaml").loss._target_ == "bdl.HeteroscedasticNLL"


@pytest.mark.parametrize("loss", ["lognormal", "gamma"])
def test_predictions_of_positive_numbers_are_positive(tmp_path, loss):
    frame = table(0.0)
    run(tmp_path, frame, f"loss={loss}", "loss.scale=learned", "calibrate=conformal", "data.val_fraction=0.2")
    encoding = json.loads((tmp_path / "run" / "preprocessing.json").read_text())
    assert encoding["target"]["mean"] == 0 and encoding["target"]["loss"]["_target_"] == f"bdl.{loss_class(loss)}"
    predictions = bdl.predict_table(tmp_path / "run", frame)
    assert (predictions[["q05", "q50", "mean"]] > 0).all(axis=None) and (predictions["low"] >= 0).all()
    assert (predictions["mean"] > predictions["q50"]).mean() > 0.5  # skewed to the right


def loss_class(loss: str) -> str:
    return {"lognormal": "LogNormalNLL", "gamma": "GammaNLL"}[loss]


def test_positive_values_are_told_and_zeros_under_a_positive_law_refused(tmp_path, capsys, script):
    run(tmp_path, table(0.0))
    assert "positive and skewed: loss=lognormal and loss=gamma" in capsys.readouterr().out
    table(0.2).to_csv(tmp_path / "zeros.csv", index=False)
    asked = ("data=csv", f"data.path={tmp_path / 'zeros.csv'}", "data.target=y", "loss=gamma", "logger=none")
    line = refusal(script("train", *asked, f"run_dir={tmp_path / 'no'}"))
    assert "bdl.GammaNLL takes positive numbers, and data.target=y has" in line and "loss=normal" in line
