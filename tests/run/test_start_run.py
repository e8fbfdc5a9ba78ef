"""start=adamw from the command line: scores beside the posterior's, on any number of stacks, resumed exactly."""

import json
from pathlib import Path

import pytest
import torch
from running import TINY, done, refusal, whole

import bdl
from bdl.models import MLP
from bdl.run.records import read_metrics

START = ("start=adamw", "start.epochs=2")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of two stacks of two chains."""
    folder = tmp_path_factory.mktemp("start") / "run"
    whole(folder, *START, "chains=4", "stacks=2")
    return folder


def test_the_scores_of_ensemble_stand_beside_those_of_posterior(finished):
    metrics = read_metrics(finished / "metrics.json")
    ensemble = bdl.Posterior.load(finished / "start", MLP((36, 6)))
    evaluation = ensemble.evaluate(bdl.data.LandsatDataModule().slices("test"))
    assert metrics["start/members"] == ensemble.samples == 4
    for name, value in evaluation.metrics().items():
        if name.startswith("bma/"):
            assert metrics[f"test/start/{name.removeprefix('bma/')}"] == pytest.approx(value)
    assert metrics["test/start/nll"] != metrics["test/bma/nll"]
    posterior = bdl.Posterior.load(finished, MLP((36, 6))).evaluate(bdl.data.LandsatDataModule().slices("test"))
    p = torch.stack([e.bma.double()[range(e.items), e.labels] for e in (evaluation, posterior)])
    error = p.log().diff(dim=0).std().item() / 2000**0.5
    assert metrics["test/start/gain_se"] == pytest.approx(error, rel=1e-4) and error < 0.02
    assert "start: deep ensemble of 4" in (finished / "report.html").read_text()


def test_the_terminal_shows_the_ensemble(finished, script):
    status, out, _ = script(
        "train", f"hydra.run.dir={finished}", "trainer=debug", *TINY, *START, "chains=4", "stacks=2"
    )
    assert status == 0 and "already holds this run" in out and "start: deep ensemble of 4 " in out


def test_merged_runs_merge_their_ensembles(finished, script, tmp_path):
    done(script("evaluate", f"runs=[{finished}]", f"out={tmp_path}", "splits=[test]"))
    before, after = (json.loads((f / "metrics.json").read_text()) for f in (finished, tmp_path))
    assert after["test/start/nll"] == pytest.approx(before["test/start/nll"])


def test_a_run_without_a_start_has_no_such_scores(run):
    assert not [name for name in read_metrics(run / "metrics.json") if "start" in name]
    assert not (run / "start").exists()


@pytest.mark.parametrize(
    "override, words",
    [
        ("start.patience=long", "start.patience must be a whole number from 1 to 1,000,000, got 'long'"),
        ("start.val_fraction=0.0001", "start.val_fraction = 0.0001 of 4435 training items holds out none"),
        ("start=adam", "start=adam: there is no such start (did you mean adamw?)"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(script, tmp_path, override, words):
    folder = tmp_path / "run"
    error = refusal(script("train", f"hydra.run.dir={folder}", "trainer=debug", *TINY, *START, override))
    assert words in error
    assert [p for p in folder.rglob("*") if p.is_file()] == []
