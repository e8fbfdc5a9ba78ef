"""Tables whose target has repeated values, is positive, has levels or several columns of classes, to predictions."""

import json

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf
from running import ON_TABLE, refusal, whole

import bdl
from bdl.errors import BdlWarning

SHORT = (*ON_TABLE, "chains=2", "trainer.max_steps=40", "sampler.lr=0.003", "collect.keep.burn_in=20")


def table(zeros: float) -> pd.DataFrame:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(120, 2)), columns=["a", "b"])
    amount = np.exp(frame.a + random.normal(size=120))
    return frame.assign(y=np.where(random.random(120) < zeros, 0.0, 3 * amount))


def run(folder, frame: pd.DataFrame, *overrides: str) -> str:
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


def test_levels_in_an_order_get_probabilities_and_a_mean(tmp_path, capsys):
    frame = table(0.0)
    frame["y"] = np.clip(np.log(frame.y).round(), 0, 3).astype(int) + 3  # 3 to 6, which data.task would be asked about
    report = run(tmp_path, frame, "loss=ordinal")
    assert "4 levels in their order, 3 to 6" in capsys.readouterr().out and "y (regression)" in report
    config = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert config.model.net.sizes == [2, 4, 1] and config.model.targets == 3  # thresholds, the same for all inputs
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert all(np.isfinite(metrics[f"test/bma/{name}"]) for name in ("rmse", "nll", "crps"))
    assert metrics["test/constant/entropy"] > 1
    predictions = bdl.predict_table(tmp_path / "run", frame)
    probs = predictions[["p_3", "p_4", "p_5", "p_6"]].to_numpy()
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(predictions["mean"], probs @ [3, 4, 5, 6], atol=1e-5)
    assert set(predictions["q50"]) <= {3.0, 4.0, 5.0, 6.0}


def test_several_columns_of_classes_are_scored_and_predicted_each(tmp_path, script):
    frame = table(0.0).drop(columns="y")
    both = frame.a + 0.3 * frame.b, frame.b + 0.3 * frame.a  # no threshold of one column tells a class
    frame = frame.assign(y=np.where(both[0] > 0, "a lot", "little"), size=np.digitize(both[1], [-0.5, 0.5]))
    frame["size"] = frame["size"].map(["S", "M", "L"].__getitem__)
    frame.loc[:9, "size"], frame.loc[10:14, "y"] = None, None
    asked = ("data.target=[y,size]",)
    with pytest.warns(BdlWarning, match="y is missing in 5, size is missing in 10 of 120 rows, which are kept"):
        report = run(tmp_path, frame, *asked)
    assert "size: L" in report and "y: mean" in report  # in the table of classes
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for name in ("y", "size"):
        assert all(np.isfinite(metrics[f"test/bma/{name}/{score}"]) for score in ("nll", "ece", "auc"))
    assert metrics["test/bma/nll"] == pytest.approx(
        np.average(
            [metrics[f"test/bma/{name}/nll"] for name in ("y", "size")],
            weights=[metrics[f"test/targets/{name}"] for name in ("y", "size")],
        )
    )
    predictions = bdl.predict_table(tmp_path / "run", frame[["a", "b"]])
    assert set(predictions["class_y"]) <= {"a lot", "little"} and set(predictions["class_size"]) <= {"S", "M", "L"}
    np.testing.assert_allclose(predictions[["p_size_L", "p_size_M", "p_size_S"]].sum(1), 1, atol=1e-6)
    frame.dropna().to_csv(tmp_path / "whole.csv", index=False)
    of_data = ("data=csv", f"data.path={tmp_path / 'whole.csv'}", *asked, "logger=none", f"run_dir={tmp_path / 'no'}")
    line = refusal(script("train", *of_data, "calibrate=conformal", "data.val_fraction=0.2"))
    assert "made for one column of classes" in line and "data.target=y" in line
    line = refusal(script("train", *of_data[:2], "data.target=[y,a]", *of_data[3:]))
    assert "y holds classes and a numbers" in line


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
    assert "bdl.GammaNLL takes positive numbers, and data.target=y has" in line and "y=0" in line
