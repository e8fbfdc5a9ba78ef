"""on_divergence= of train.py: a chain of one of two stacks diverges inside a block, and all commands leave it out."""

import json
import math

import pytest
import torch
from composing import compose
from running import planned, samples

import bdl
from bdl.errors import BdlWarning
from bdl.run import train
from bdl.run.config import config_hash
from bdl.run.verify import look
from bdl.samplers.potential import Potential

OPTIONS = (
    "logger=none", "chains=4", "stacks=2", "processes=1", "length=30", "model.sizes=[36,6]", "collect.keep.every=3",
    "collect.keep.burn_in=6", "train_items=200",
)  # fmt: skip


def run(folder, *overrides: str) -> None:
    train.run(planned(f"run_dir={folder}", *OPTIONS, *overrides))


def test_one_chain_of_two_stacks_is_dropped_and_the_others_stay(tmp_path, monkeypatch, script):
    run(tmp_path / "whole")
    accept = Potential.accept

    def diverge(self, e, lr):
        if (self.chain.stack, self.chain.steps) == (1, 20):
            e.g[0], e.total = math.nan, e.total * math.nan
        accept(self, e, lr)

    monkeypatch.setattr(Potential, "accept", diverge)
    with pytest.warns(BdlWarning, match="chain 2 has diverged at step 20 and is dropped: .* the others .1. go on"):
        run(tmp_path / "lost", "on_divergence=drop")
    whole, lost = samples(tmp_path / "whole"), samples(tmp_path / "lost")
    for name in whole:
        if name.endswith("-0.safetensors") and not name.startswith("weighting"):
            assert lost[name] == whole[name]
    stores = [bdl.SampleStore(tmp_path / name) for name in ("whole", "lost")]
    a, b = ([r for r in store.records() if r.stack == 1][-1] for store in stores)
    assert a.chains == [2, 3] and b.chains == [3] and a.step == b.step
    for name, tensor in stores[0].read(a).items():
        assert torch.equal(tensor[1:], stores[1].read(b)[name])
    metrics = json.loads((tmp_path / "lost" / "metrics.json").read_text())
    assert metrics["diverged_chains"] == 1 and metrics["chains"] == 3
    assert "chain 2 at step 20" in (tmp_path / "lost" / "report.html").read_text()
    assert all(finding.state != "bad" for finding in look(tmp_path / "lost"))
    status, _, err = script("evaluate", f"runs=[{tmp_path / 'lost'}]", f"out={tmp_path / 'out'}", "train_items=200")
    assert status == 0 and err == []
    again = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert again["test/bma/nll"] == metrics["test/bma/nll"] and again["diverged_chains"] == 1


def test_what_becomes_of_a_diverged_chain_names_the_run():
    cfg = compose("run_dir=a", *OPTIONS)
    assert config_hash(compose("run_dir=a", *OPTIONS, "on_divergence=drop")) != config_hash(cfg)
    assert config_hash(compose("run_dir=a", *OPTIONS, "sampler.on_divergence=drop")) != config_hash(cfg)
