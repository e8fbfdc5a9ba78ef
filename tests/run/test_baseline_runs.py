"""Baselines from the command line: their draws are samples of the run, which every other command reads."""

import json

import pytest
import torch
from running import done, refusal, samples, whole

import bdl
from bdl.models import MLP
from bdl.posterior.judgements import OUTCOMES
from bdl.run.records import read_metrics
from bdl.run.train import train  # noqa: F401  the command's module is loaded once

SWAG = ("sampler=swag", "chains=2", "baseline.rank=2", "baseline.draws=3", "logger=none")
OTHERS = {
    "dropout": ("baseline.draws=2", "model.hidden=[5]", "model.sizes=null"),
    "laplace": ("baseline.draws=2",),
    "scaled": (),
}


@pytest.fixture(scope="module")
def swag(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swag") / "a"
    whole(folder, *SWAG)
    return folder


def test_the_draws_are_the_samples_and_iterates_stay_beside_them(swag, script):
    net = torch.nn.Sequential(torch.nn.Linear(36, 6))
    posterior, trained = bdl.Posterior.load(swag, net), bdl.Posterior.load(swag / "trained", net)
    assert (posterior.samples, posterior.chains) == (6, 2) and trained.samples >= 4
    metrics = read_metrics(swag / "metrics.json")
    assert metrics["samples"] == 6 and metrics["approximation"] == 1
    assert OUTCOMES[int(metrics["verdict/outcome"])] == "no posterior"
    page = (swag / "report.html").read_text()
    assert "draws of an approximation to the posterior" in page and "SWAG(draws=3, rank=2)" in page
    status, out, _ = script("verify", f"run={swag}")
    assert status == 0 and "nothing is bad" in out and "trained: sample files of stack 0" in out
    (swag / "trained" / "samples" / "index-0.jsonl").rename(swag / "gone")
    assert script("verify", f"run={swag}")[0] == 1
    (swag / "gone").rename(swag / "trained" / "samples" / "index-0.jsonl")


def test_evaluate_export_and_arviz_read_them(swag, script, tmp_path):
    done(script("evaluate", f"runs=[{swag}]", f"out={tmp_path / 'e'}"))
    ended = read_metrics(swag / "metrics.json")
    assert read_metrics(tmp_path / "e" / "metrics.json")["test/bma/nll"] == pytest.approx(ended["test/bma/nll"])
    posterior = bdl.Posterior.load(swag, torch.nn.Sequential(torch.nn.Linear(36, 6)))
    x = torch.zeros(3, 36)
    torch.testing.assert_close(posterior.as_module()(x), posterior.predict(x).probs)
    loader = bdl.data.TensorSlices(torch.zeros(4, 36), torch.zeros(4, dtype=torch.long))
    tree = posterior.to_arviz(loader)
    assert tree["posterior"].sizes["chain"] == 2 and tree["posterior"].sizes["draw"] == 3
    assert tree["log_likelihood"]


def test_run_that_was_killed_before_its_report_makes_same_draws(swag, tmp_path):
    whole(tmp_path / "a", *SWAG)
    before = samples(tmp_path / "a")
    assert before == samples(swag)
    (tmp_path / "a" / "metrics.json").unlink()
    whole(tmp_path / "a", *SWAG)
    assert samples(tmp_path / "a") == before


@pytest.mark.parametrize("name", OTHERS)
def test_every_baseline_runs_from_the_command_line(name, tmp_path):
    whole(tmp_path / "a", f"sampler={name}", "chains=1", "model.sizes=[36,6]", *OTHERS[name])
    metrics = read_metrics(tmp_path / "a" / "metrics.json")
    assert metrics["chains"] == 1 and metrics["samples"] == (1 if name == "scaled" else 2)
    assert metrics["temperature"] == (0 if name == "scaled" else 1)
    target = json.loads((tmp_path / "a" / "samples" / "target.json").read_text())
    assert target["approximation"]["type"].startswith("bdl.")


def test_last_layer_laplace_of_a_table_learns_one_scale(tmp_path):
    """laplace-torch knows no other, so nothing has to be said."""
    rows = torch.linspace(-1, 1, 40)
    (tmp_path / "t.csv").write_text(
        "x,y\n" + "".join(f"{x:.4f},{3 * x + 0.1 * (i % 3):.4f}\n" for i, x in enumerate(rows))
    )
    table = ("data=csv", f"data.path={tmp_path / 't.csv'}", "data.target=y", "model.hidden=[3]", "model.sizes=null")
    whole(tmp_path / "a", "sampler=laplace", "chains=1", "baseline.draws=2", *table)
    posterior = bdl.Posterior.load(tmp_path / "a", bdl.with_constant_scale(MLP((1, 3, 1), activation="tanh")))
    std = posterior.predict(torch.tensor([[-1.0], [1.0]])).aleatoric
    assert posterior.samples == 2 and std[0] == std[1]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("sampler=dropout", "model.sizes=[36,6]"), "needs a network that was trained with dropout"),
        (("sampler=scaled", "data.val_fraction=0.0"), "ScaledPoint needs val data: hold some items out"),
        (("sampler=swag", "baseline.rank=1"), "rank must be 0 or a whole number of at least 2, got 1"),
        (("sampler=laplace", "baseline.structure=round"), "structure"),
        (("sampler=sgd", "baseline=other"), "baseline=other: there is no such baseline"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_training(script, tmp_path, overrides, message):
    line = refusal(script("train", f"hydra.run.dir={tmp_path / 'a'}", "length=20", "logger=none", *overrides))
    assert message in line
    assert not (tmp_path / "a").exists()
