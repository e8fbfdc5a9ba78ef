"""Tests of `bdl.contrib.landscape.llc`: the command on a run, on its start, and on a checkpoint."""

import json

import pytest
import torch
from running import done, refusal, whole

import bdl
from bdl.models import MLP

SHORT = ("chains=2", "steps=20", "burn_in=5", "localization=100", "batch_size=500", "lr=0.01")


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A run that began at a deep ensemble of two networks."""
    folder = tmp_path_factory.mktemp("llc") / "run"
    whole(folder, "start=adamw", "start.epochs=2")
    return folder


def measured(net, seed: int = 0) -> bdl.CoefficientEstimate:
    """By the function, on the training items."""
    return bdl.learning_coefficient(
        net, bdl.CategoricalNLL(), bdl.data.LandsatDataModule().slices("train"), chains=2, steps=20, burn_in=5,
        localization=100.0, batch_size=500, lr=0.01, seed=seed,
    )  # fmt: skip


def test_the_start_of_a_run_is_measured(started, script, tmp_path):
    """Network 1 of the ensemble; the file holds what the function finds for it."""
    out = done(script("llc", f"run={started}", *SHORT, "chain=1", f"out={tmp_path / 'llc.json'}"))
    net = MLP((36, 6))
    members = list(bdl.Posterior.load(started / "start", net).stream())
    net.load_state_dict(members[1].tensors)
    found, written = measured(net), json.loads((tmp_path / "llc.json").read_text())
    assert written["value"] == pytest.approx(found.value, rel=1e-6) and len(written["checks"]) == 5
    assert "network 1 of the start" in out and "verdict: " in out and written["num_data"] == 4435


def test_a_checkpoint_or_the_last_state_is_measured(started, run, script, tmp_path):
    torch.manual_seed(0)
    net = MLP((36, 6))
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    done(script("llc", f"run={started}", *SHORT, f"path={tmp_path / 'weights.pt'}", f"out={tmp_path / 'a.json'}"))
    assert json.loads((tmp_path / "a.json").read_text())["value"] == pytest.approx(measured(net).value, rel=1e-6)
    assert "the last state of chain 0" in done(script("llc", str(run), *SHORT))


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["chain=7"], "chain=7: the run has the chains 0 to 1"),
        (["path=nowhere.pt"], "path=nowhere.pt does not exist"),
        (["localization=0"], "localization must be a number > 0"),
        (["steps=0"], "steps must be a whole number"),
        (["only=nothing.*"], "matches no parameter"),
        (["step=3"], "step"),
    ],
)
def test_wrong_settings_are_one_line(started, script, overrides, words):
    assert words in refusal(script("llc", f"run={started}", *SHORT, *overrides))
