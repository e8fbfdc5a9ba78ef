"""Tests of `bdl.run.section` and `bdl.posterior.outputs` with weights of rows: a whole run on each task."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from running import ON_TABLE, planned, whole

import bdl
from bdl.data import read_table
from bdl.errors import ConfigError

TARGETS = {"y": ("regression", "mean"), "kind": ("classification", "p_a"), "claims": ("counts", "mean")}


def rows() -> pd.DataFrame:
    random = np.random.RandomState(0)
    frame = pd.DataFrame({"x": random.randn(60), "w": random.choice([1.0, 2.0, 3.0], 60)})
    return frame.assign(
        y=frame["x"] + random.randn(60), kind=random.choice(["a", "b"], 60), claims=random.poisson(2, 60)
    )


def of_data(folder: Path, target: str) -> tuple[str, ...]:
    others = ",".join(name for name in TARGETS if name != target)
    task = f"data.task={TARGETS[target][0]}"
    return f"data.path={folder / 'rows.csv'}", f"data.target={target}", f"data.drop=[{others}]", "data.weight=w", task


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_with_weights_goes_from_the_table_to_predictions(tmp_path, target):
    rows().to_csv(tmp_path / "rows.csv", index=False)
    settings = [o for o in ON_TABLE if not o.startswith("trainer=")]
    run = tmp_path / "run"
    whole(run, *settings, "model.sizes=null", *of_data(tmp_path, target), "data.val_fraction=0.25")
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["test/bma/weighted_nll"] != metrics["test/bma/nll"]
    law = json.loads((run / "samples" / "target.json").read_text())["loss"]
    assert law["type"] == "bdl.WeightedNLL" and law["likelihood"]["type"].startswith("bdl.")
    predictions = bdl.predict_table(run, rows()[["x"]].head(5))  # which need no weights
    assert predictions[TARGETS[target][1]].notna().all()


def test_the_weighted_nll_is_the_weighted_mean_of_losses():
    from bdl.posterior.passes import evaluation_of

    evaluation = evaluation_of(bdl.GaussianNLL(1.0), torch.tensor([[0.0], [1.0]]), 1)
    evaluation.add([0], torch.zeros(1, 2, 1))
    assert "bma/weighted_nll" not in evaluation.metrics()
    evaluation.row_weights = torch.tensor([1.0, 3.0])
    losses = evaluation.losses()
    assert evaluation.metrics()["bma/weighted_nll"] == pytest.approx(float((losses[0] + 3 * losses[1]) / 4))


def test_weights_of_a_loss_without_density_are_refused(tmp_path):
    rows().to_csv(tmp_path / "rows.csv", index=False)
    data = read_table(tmp_path / "rows.csv", "y", drop=["kind", "claims"], weight="w")
    plan = planned(f"run_dir={tmp_path / 'run'}", "data=csv", *of_data(tmp_path, "y"), "loss._target_=torch.nn.MSELoss")
    with pytest.raises(ConfigError, match="data.weight weighs log densities, and .*MSELoss has none"):
        plan.of_stack(0, data)
