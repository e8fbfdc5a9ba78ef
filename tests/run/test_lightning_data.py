"""A LightningDataModule that was not written for bdl: sampled, tuned and reported, or refused in one line."""

import json
import os
import sys

import pytest
from composing import ROOT
from forked import Forked

CODE = """
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Unlabelled(L.LightningDataModule):
    def setup(self, stage):
        y = torch.arange(90) % 3
        x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0)) + y.unsqueeze(1)
        self.training, self.testing = TensorDataset(x[:60], y[:60]), TensorDataset(x[60:], y[60:])

    def train_dataloader(self):
        return DataLoader(self.training, batch_size=20, shuffle=True)

    def test_dataloader(self):
        return DataLoader(self.testing, batch_size=20)


class Plain(Unlabelled):
    num_classes = 3
"""
SHORT = (
    "hydra.searchpath=[file://conf]", "data=plain", "chains=2", "processes=1", "model.hidden=[4]", "logger=none",
    "hydra.run.dir=run", "collect.keep.every=2",
)  # fmt: skip


@pytest.fixture
def train(tmp_path):
    """Call scripts/train.py with a data set of the user's own; returns its status, stdout and stderr."""
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "plain.yaml").write_text("_target_: plain.Plain\n")
    (tmp_path / "plain.py").write_text(CODE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT), *sys.path))}

    def call(*overrides: str) -> tuple[int | None, str, str]:
        process = Forked([str(ROOT / "scripts" / "train.py"), *SHORT, *overrides], tmp_path, environment)
        out, err = process.communicate(timeout=200)
        return process.returncode, out, err

    return call


def test_it_is_sampled_and_tuned(train, tmp_path):
    """The batch size is the loader's, which no setting can change."""
    status, out, err = train("shared_batches=true", "tune=auto", "length=60")
    assert status == 0, err
    assert "tune: lr" in out and "tune: batch size" not in out
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["samples"] > 0 and metrics["test/bma/nll"] < 1.2


@pytest.mark.parametrize(
    "overrides, words",
    [
        (("length=60",), "shared_batches=true, sends one batch to all"),
        (("shared_batches=true", "data._target_=plain.Unlabelled"), "Unlabelled has no num_classes: give it"),
        (("shared_batches=true", "start=adamw", "tune=auto"), "start needs the loaders of bdl.data, got DataLoader"),
        (("shared_batches=true", "budget=20s"), "budget=20s can time the loaders of bdl.data alone, got DataLoader"),
    ],
)
def test_what_its_loaders_cannot_do_is_refused_in_one_line(train, overrides, words):
    status, _, err = train(*overrides)
    assert status == 1 and words in err and len(err.strip().splitlines()) == 1, err
