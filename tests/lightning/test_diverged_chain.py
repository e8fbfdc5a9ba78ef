"""A chain that diverges under a Trainer: the others go on, its samples are left out, and the report says so."""

import json
import math
from pathlib import Path

import pytest
import torch
import toys
from manifests import rewrite
from repeats import slow_where

import bdl
from bdl.data import TensorSlices
from bdl.disk.manifest import Manifest
from bdl.errors import BdlWarning
from bdl.run.outcome import Outcome
from bdl.run.write_report import ReportRequest, write_report
from bdl.schedules import EveryStep

STEPS, LOST_AT, KEEP = 30, 13, EveryStep(4, 3)  # kept: 7, 10, 13, ...; 13 awaits its energy when chain 1 is lost


class Lost(bdl.BayesianModule):
    """The loss of chain 1 is NaN at one step."""

    at = LOST_AT

    def batch_loss(self, outputs, y):
        loss = super().batch_loss(outputs, y)
        if self.training and self.sampler.steps == self.at:
            loss = loss * torch.tensor([1.0, math.nan, 1.0])
        return loss


def fit(folder: Path, policy: str, steps: int = STEPS, at: int = LOST_AT, checkpoint: Path | None = None, **sampler):
    """One call of `fit`: the module, and the running average."""
    module = toys.module(chains=3, on_divergence=policy, **sampler)
    module.__class__, module.at = Lost, at
    average, monitor = bdl.ModelAverage(KEEP, TensorSlices(*toys.tensors(seed=2))), bdl.Monitor(2)
    save = bdl.SaveLast(folder / "checkpoints", every=5)
    callbacks = [bdl.CollectSamples(KEEP, folder), average, monitor, save]
    toys.trainer(folder, steps, callbacks).fit(module, toys.batches(3), ckpt_path=checkpoint, weights_only=True)
    return module, average, monitor


def lost(*arguments, **named):
    with pytest.warns(BdlWarning, match="chain 1 has diverged at step 13 .* the others .2. go on"):
        return fit(*arguments, **named)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "samples").iterdir()}


@pytest.fixture(params=["flat", "weighted"])
def sampler(request) -> dict:
    weighting = bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=120.0, bins=10)
    return {"weighting": weighting} if request.param == "weighted" else {}


def test_the_samples_of_the_others_keep_every_bit(tmp_path, sampler):
    fit(tmp_path / "whole", "stop", at=-1, **sampler)
    lost(tmp_path / "lost", "drop", **sampler)
    stores = [bdl.SampleStore(tmp_path / name) for name in ("whole", "lost")]
    for a, b in zip(stores[0].records(), stores[1].records(), strict=True):
        rows = [b.chains.index(0), b.chains.index(2)]
        assert a.chains == [0, 1, 2] and a.step == b.step
        for name, tensor in stores[0].read(a).items():
            assert torch.equal(tensor[[0, 2]], stores[1].read(b)[name][rows])
        for field in ("energy_batch", "energy_full", "log_weight"):
            if (values := getattr(a, field)) is not None:
                assert [values[0], values[2]] == [getattr(b, field)[row] for row in rows]


def test_a_dropped_chain_is_in_no_average_and_no_report(tmp_path):
    module, average, monitor = lost(tmp_path, "drop")
    records = bdl.SampleStore(tmp_path).records()
    assert [(r.step, r.chains) for r in records][:3] == [(7, [0, 1, 2]), (10, [0, 1, 2]), (13, [0, 2])]
    assert all(r.chains == [0, 2] for r in records[2:])
    posterior = bdl.Posterior.load(tmp_path, toys.plain())
    assert posterior.chains == 2 and posterior.diverged == [(1, 13)]
    assert posterior.samples == 2 * len(records) and {s.chain for s in posterior.stream()} == {0, 1}
    assert average.count == 2 * len([r for r in records if r.step > 13])
    trace = monitor.trace()
    assert trace["energy"][trace["step"] > 13].isnan().all(0).tolist() == [False, True, False]
    outcome = Outcome(STEPS, trace, None)
    splits = {"test": TensorSlices(*toys.tensors(seed=2))}
    metrics = write_report(ReportRequest(tmp_path, posterior, splits, outcome, {}, module.sampler))
    assert metrics["diverged_chains"] == 1 and metrics["chains"] == 2 and math.isfinite(metrics["t_eff"])
    assert json.loads((tmp_path / "metrics.json").read_text())["diverged_chains"] == 1
    assert "chain 1 at step 13: all their samples up to there are left out" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("stop", slow_where(lambda stop: stop == 21, [12, 16, 21]), ids=["before", "after", "later"])
def test_a_resumed_run_writes_the_same_files(tmp_path, stop, sampler):
    lost(tmp_path / "whole", "drop", **sampler)
    folder = tmp_path / "resumed"
    (lost if stop > LOST_AT else fit)(folder, "drop", stop, **sampler)
    (folder / "samples" / "excluded-0.json").unlink(missing_ok=True)  # it comes back with the checkpoint
    (fit if stop > LOST_AT else lost)(folder, "drop", checkpoint=folder / "checkpoints" / "last.ckpt", **sampler)
    assert files(folder) == files(tmp_path / "whole")


def test_a_chain_lost_after_the_last_sample_is_left_out_too(tmp_path):
    module = fit(tmp_path, "stop", 12, at=-1)[0]
    assert module.sampler.steps == 12
    with pytest.warns(BdlWarning, match="chain 1 has diverged at step 29"):
        fit(tmp_path / "a", "drop", 30, at=29)
    assert bdl.Posterior.load(tmp_path / "a", toys.plain()).diverged == [(1, 29)]


def test_a_lost_list_of_excluded_chains_does_not_bring_them_back(tmp_path):
    lost(tmp_path, "drop")
    (tmp_path / "samples" / "excluded-0.json").unlink()
    with pytest.raises(bdl.StoreError, match="excluded-0.json cannot be read .*: restore it"):
        bdl.Posterior.load(tmp_path, toys.plain())
    manifest = Manifest(tmp_path, 0)
    rewrite(manifest, [entry for entry in manifest.entries() if entry.kind != "excluded"])
    posterior = bdl.Posterior.load(tmp_path, toys.plain())
    assert posterior.chains == 2 and posterior.diverged == [(1, None)]
