"""Tests of `bdl.run.train`, `.plan`, `.write_report` and `.predict`: refit=all, a posterior of all rows of a table."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf
from running import asked, compose, done, refusal

import bdl
from bdl.run.config import config_hash

SMALL = (
    "data=csv", "data.target=y", "trainer=debug", "logger=none", "chains=2", "trainer.max_steps=12", "model.hidden=[4]",
    "collect.keep.every=2", "tune=false", "~start", "sampler.lr=0.001",
)  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    random = np.random.RandomState(0)
    size = random.randn(50)
    frame = pd.DataFrame(
        {"size": size, "city": random.choice(["Aachen", "Bonn"], 50), "y": 3 * size + 0.3 * random.randn(50)}
    )
    path = tmp_path_factory.mktemp("table") / "table.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def refitted(script, table, folder) -> Path:
    """A run, and then its refit, as a user asks for it who has seen the report. The first test makes it."""
    run = folder / "run"
    if not run.exists():
        command = ("train", *SMALL, f"data.path={table}", f"hydra.run.dir={run}")
        assert script(*command)[0] == 0
        before = {path.name: path.read_bytes() for path in run.glob("*.*")}
        status, out, _ = script(*command, "refit=all")
        assert status == 0 and "already holds this run, complete" in out
        assert f"refit: {run / 'refit'} is sampled from all rows; scores are those of" in out
        assert {path.name: path.read_bytes() for path in run.glob("*.*")} == before
    return run


def test_the_refit_has_all_rows_and_no_scores_of_held_out_ones(script, refitted, table):
    config = OmegaConf.load(refitted / "refit" / "config.yaml")
    assert config.data.all_rows and config.sampler.num_data == 50
    assert OmegaConf.load(refitted / "config.yaml").sampler.num_data == 40
    metrics = json.loads((refitted / "refit" / "metrics.json").read_text())
    judged = json.loads((refitted / "metrics.json").read_text())
    assert "test/bma/nll" in judged and "train/bma/nll" in metrics
    assert not any(name.startswith(("test/", "val/")) for name in metrics)
    page = (refitted / "refit" / "report.html").read_text()
    assert f"on held-out rows those of run stand: rmse {judged['test/bma/rmse']:.4g}" in page
    target = json.loads((refitted / "refit" / "preprocessing.json").read_text())["target"]
    assert target["mean"] == pytest.approx(pd.read_csv(table)["y"].mean())
    assert "refit: config.yaml" in done(script("verify", f"run={refitted}"))


def test_predictions_are_those_of_the_refit_and_say_so(script, refitted, table, tmp_path):
    rows, output = pd.read_csv(table), tmp_path / "p.csv"
    command = ("predict", f"run={refitted}", f"input={table}", f"output={output}")
    status, out, _ = script(*command)
    assert (
        status == 0 and f"predict: samples of {refitted / 'refit'}, from all rows; refit=false leaves them out" in out
    )
    with_refit, direct = pd.read_csv(output), bdl.predict_table(refitted / "refit", rows)
    np.testing.assert_allclose(with_refit["mean"], direct["mean"], rtol=1e-5)
    np.testing.assert_allclose(bdl.predict_table(refitted, rows)["mean"], direct["mean"], rtol=1e-12)
    assert "from all rows" not in done(script(*command, "refit=false"))
    without = pd.read_csv(output)
    np.testing.assert_allclose(without["mean"], bdl.predict_table(refitted, rows, refit=False)["mean"], rtol=1e-5)
    assert (without["mean"] - with_refit["mean"]).abs().max() > 1e-4


def test_a_refit_that_has_not_ended_is_not_used(refitted, table, tmp_path):
    shutil.copytree(refitted, tmp_path / "copy")
    (tmp_path / "copy" / "refit" / "metrics.json").unlink()
    with pytest.warns(bdl.BdlWarning, match="refit has not ended, and is not used"):
        predictions = bdl.predict_table(tmp_path / "copy", pd.read_csv(table))
    expected = bdl.predict_table(refitted, pd.read_csv(table), refit=False)
    np.testing.assert_array_equal(predictions["mean"], expected["mean"])


def test_another_run_in_the_place_of_a_refit_is_refused(script, refitted, table, tmp_path):
    shutil.copytree(refitted, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "refit")
    shutil.copytree(tmp_path / "run", tmp_path / "run" / "refit")
    words = f"run={tmp_path / 'run'}", f"input={table}", f"output={tmp_path / 'out.csv'}"
    assert "holds another run, and not the refit of" in refusal(script("predict", *words))
    assert script("predict", *words, "refit=false")[0] == 0


def test_the_refit_is_no_row_of_a_comparison_and_not_evaluated(script, refitted, folder, tmp_path):
    status, out, _ = script("compare", f"runs={folder}", f"out={tmp_path / 'c'}")
    assert status == 0 and len(pd.read_csv(tmp_path / "c" / "runs.csv")) == 1
    error = refusal(script("evaluate", f"runs={refitted / 'refit'}", f"out={tmp_path / 'e'}"))
    assert "has no test items" in error


def test_the_refit_takes_what_tuning_found_and_finds_nothing(table):
    of_data = (f"data.path={table}", "data.target=y", "run_dir=a")
    request, found = asked("data=csv", *of_data, "refit=all", "budget=10m"), {"settings": {"sampler.lr": 0.003}}
    plan, again = request.plan(found), request.of_all_rows(found).draft
    assert again.tuning is None and again.found == plan.found and again.report.judged == plan.folder
    assert again.folder == Path("a/refit") and again.hash != plan.hash and not again.refit
    assert again.data(0).node["all_rows"] and again.stacks == plan.stacks


def test_the_judged_run_is_the_same_with_and_without_a_refit(table):
    same = ("run_dir=a", "data=csv", f"data.path={table}", "data.target=y")
    assert config_hash(compose(*same)) == config_hash(compose(*same, "refit=all"))


@pytest.mark.parametrize("overrides", [("data=landsat",), ("data=csv", "data.target=y", "data.all_rows=true")])
def test_data_without_rows_to_join_are_refused(script, table, tmp_path, overrides):
    path = (f"data.path={table}",) if len(overrides) > 1 else ()
    error = refusal(script("train", *overrides, *path, "refit=all", f"hydra.run.dir={tmp_path / 'run'}"))
    assert "refit=all joins the rows that a table holds out: it needs data=csv or data=parquet" in error
