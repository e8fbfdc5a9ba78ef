"""Tests of `bdl.run.directory`, `.records`, `.evaluate`, `.config`, `.machine` and `bdl.posterior.metrics`.

Run directories are complete, and several of them merge into one posterior.
"""

import copy
import json
import warnings

import pytest
import torch
from composing import compose
from omegaconf import OmegaConf
from running import TINY, done, refusal, sampled, samples, whole

import bdl
from bdl.errors import BdlWarning
from bdl.models import MLP
from bdl.run.config import config_hash, fill_in
from bdl.run.records import read_metrics


def test_the_run_directory_is_complete(run):
    names = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    assert names >= {
        "config.yaml", "samples/index-0.jsonl", "samples/00000011-0.safetensors",
        "checkpoints/last.ckpt", "metrics.json", "timing.json", "report.html",
    }  # fmt: skip
    assert not [name for name in names if "writing" in name]


def test_config_yaml_says_where_a_run_came_from(run):
    config = OmegaConf.load(run / "config.yaml")
    assert set(config.provenance) >= {"git_commit", "versions", "threads", "device"}
    assert torch.__version__.startswith(config.provenance.versions.torch)
    assert config.provenance.versions.bdl == bdl.__version__
    assert config.sampler.num_data == 4435 and config.chains == 2 and config.steps == 12


def test_metrics_json_has_the_names_other_tools_read(run):
    text = (run / "metrics.json").read_text()
    metrics = json.loads(text, parse_constant=pytest.fail)  # no NaN
    scores = ("accuracy", "nll", "ece", "brier")
    rows = ("one_sample", "chain_bma", "bma")
    of_splits = {f"{split}/{row}/{score}" for split in ("test", "train") for row in rows for score in scores}
    alone = "samples chains temperature noise_ratio t_eff kinetic_temperature rhat/max ess/min".split()
    assert set(metrics) >= {*of_splits, *alone}
    assert metrics["samples"] == 6  # steps 7, 9, 11
    assert metrics["chains"] == 2 and metrics["temperature"] == 1.0


def test_a_weighted_run_keeps_psi_and_judges_its_weights(weighted):
    assert (weighted / "samples" / "weighting-0.safetensors").is_file()
    assert json.loads((weighted / "metrics.json").read_text())["weight_ess"] is None  # the pilot has not ended


def test_timing_is_apart(run):
    timing = json.loads((run / "timing.json").read_text())
    assert timing["steps_per_second"] > 0 and timing["peak_memory_mib"] > 100 and timing["seconds"] > 0


def test_the_report_opens_without_a_network(run):
    page = (run / "report.html").read_text()
    assert 'src="http' not in page and 'href="http' not in page and "data:image/" in page


def test_the_same_configuration_gives_the_same_bytes(run, tmp_path):
    whole(tmp_path / "b")
    assert samples(run) == samples(tmp_path / "b")
    assert (run / "metrics.json").read_bytes() == (tmp_path / "b" / "metrics.json").read_bytes()


def test_metrics_are_those_of_the_posterior_on_disk(run):
    posterior = bdl.Posterior.load(run, MLP((36, 6)))
    scores = posterior.evaluate(bdl.data.LandsatDataModule().slices("test")).metrics()
    metrics = json.loads((run / "metrics.json").read_text())
    assert all(metrics[f"test/{name}"] == pytest.approx(value, rel=1e-6) for name, value in scores.items())


def test_the_same_command_finds_its_run(script, run):
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    status, out, _ = script("train", f"hydra.run.dir={run}", "trainer=debug", *TINY)
    assert status == 0 and "already holds this run" in out and "all chains' average" in out
    assert before == {p: p.stat().st_mtime_ns for p in run.rglob("*")}


def test_what_does_not_change_the_samples_does_not_change_hash():
    default = config_hash(compose("run_dir=x"))
    unread = ("objective=test/bma/ece", "trainer.max_time=00:01:00:00", "train_items=9")
    for same in ("logger=wandb", "monitor_every=7", "checkpoint_every=9", "run_dir=y", *unread):
        assert config_hash(compose("run_dir=x", same)) == default
    assert config_hash(compose("run_dir=x", "tuned.precision=7", "sampler.prior.precision=0.4")) == default
    for changed in ("seed=1", "stack=1", "sampler.lr=0.1", "schedule=cosine", "chains=4", "collect.keep.every=7"):
        assert config_hash(compose("run_dir=x", changed)) != default
    assert config_hash(compose("run_dir=x", "tuned.precision=7")) != default  # the prior reads it


def test_stacks_change_the_samples_and_processes_do_not():
    default = config_hash(compose("run_dir=x"))
    assert default == config_hash(compose("run_dir=x", "stacks=2")) == config_hash(compose("run_dir=x", "processes=5"))
    assert len({config_hash(compose("run_dir=x", f"stacks={n}")) for n in (1, 2, 4, 8)}) == 4


def test_filling_in_numbers_changes_a_copy():
    cfg = compose("run_dir=x", "schedule=cosine")
    before = OmegaConf.to_yaml(cfg)
    filled = fill_in(cfg, {"sampler.num_data": 5, "steps": 1000, "stack": 3})
    assert (filled.sampler.num_data, filled.schedule.lr.steps, filled.collect.keep.burn_in) == (5, 1000, 120)
    assert filled.data.stack == filled.sampler.stack == 3 and OmegaConf.to_yaml(cfg) == before


def test_a_run_is_the_same_wherever_its_data_lie():
    cfg = compose("run_dir=x", "data=cifar10", "model=resnet20")

    def named(**data) -> str:
        changed = copy.deepcopy(cfg)
        changed.data = {**changed.data, **data}
        return config_hash(changed)

    for same in (dict(root="/y"), dict(download=True), dict(cache="/z"), dict(loader="torch"), dict(workers=7)):
        assert named(**same) == named()
    for other in (dict(augment=None), dict(classes=100), dict(channels_last=False), dict(batch_size=7)):
        assert named(**other) != named()


@pytest.mark.slow
def test_wandb_runs_offline(tmp_path, script):
    pytest.importorskip("wandb")
    overrides = [o for o in TINY if not o.startswith("logger")]
    command = ("train", f"hydra.run.dir={tmp_path}", "trainer=debug", "logger=wandb", *overrides)
    for _ in range(2):  # the second time it resumes, at the last step
        done(script(*command))
        (tmp_path / "metrics.json").unlink()
    ids = [path.name.rsplit("-", 2)[1:] for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert len(ids) == 2 and ids[0] == ids[1] and ids[0][0] == "0"
    assert ids[0][1] == OmegaConf.load(tmp_path / "config.yaml").provenance.config_hash


def test_every_job_of_a_sweep_has_a_wandb_run_of_its_own():
    ids = [compose("run_dir=x", "logger=wandb", o).logger.id for o in ("seed=0", "seed=1", "stack=1", "sampler=sgld")]
    assert len(set(ids)) == 4


def test_two_runs_are_one_posterior(script, run, second, tmp_path):
    out = done(script("evaluate", f"runs=[{run},{second}]", f"out={tmp_path}"))
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["chains"] == 4 and "4 chains" in out
    assert metrics["samples"] == 2 * json.loads((run / "metrics.json").read_text())["samples"]
    assert (tmp_path / "report.html").exists()


def test_agreement_with_a_reference(script, run, second, tmp_path):
    """Agreement of two runs, from the file that one of them saves; a run agrees with itself on every item."""
    each = [bdl.Posterior.load(path, MLP([36, 6])).predict(bdl.data.LandsatDataModule().slices("test")).probs
            for path in (run, second)]  # fmt: skip
    assert script("evaluate", f"runs={second}", f"out={tmp_path / 'b'}", "save_probs=true")[0] == 0
    reference = tmp_path / "b" / "probs-test.npy"
    for path, probs in ((run, each[0]), (second, each[1])):
        status, out, _ = script("evaluate", f"runs={path}", f"out={tmp_path / 'a'}", f"reference={reference}")
        metrics = read_metrics(tmp_path / "a" / "metrics.json")
        same = (probs.argmax(1) == each[1].argmax(1)).double().mean().item()
        assert status == 0 and f"{same:.2%} agreement" in out and metrics["test/bma/agreement"] == pytest.approx(same)
        distance = (probs - each[1]).abs().sum(1).mean().item() / 2
        assert metrics["test/bma/total_variation"] == pytest.approx(distance, abs=1e-6)
    assert (same, distance) == (1, 0) and each[0].ne(each[1]).any()


def test_train_metrics_of_some_items(script, run, tmp_path):
    """500 of 4,435 items: the training metrics change a little, and those of the test items do not."""
    assert script("evaluate", f"runs={run}", f"out={tmp_path}", "train_items=500")[0] == 0
    after, before = (read_metrics(path / "metrics.json") for path in (tmp_path, run))
    assert after["test/bma/nll"] == before["test/bma/nll"]
    assert 0 < abs(after["train/bma/accuracy"] - before["train/bma/accuracy"]) < 0.06  # 5 standard errors


def test_runs_of_different_targets_are_refused(script, run, tmp_path):
    sampled(tmp_path / "c", "trainer=debug", *TINY, "sampler.prior.precision=2")
    error = refusal(script("evaluate", f"runs=[{run},{tmp_path / 'c'}]", f"out={tmp_path / 'out'}"))
    assert "runs of different targets are not merged: prior.precision is" in error
    assert not (tmp_path / "out").exists()


def test_a_damaged_sample_is_named_and_can_be_left_out(script, second, tmp_path):
    store = bdl.SampleStore(second)
    bad = store.folder / store.records()[0].file
    data = bad.read_bytes()
    bad.write_bytes(data[:-1])
    try:
        assert str(bad) in refusal(script("evaluate", f"runs=[{second}]", f"out={tmp_path}"))
        with warnings.catch_warnings():
            warnings.simplefilter("default", BdlWarning)
            status, _, err = script("evaluate", f"runs=[{second}]", f"out={tmp_path}", "skip_bad=true")
    finally:
        bad.write_bytes(data)
    assert status == 0 and any(f"warning: left out: sample file {bad}" in line for line in err), err
    assert json.loads((tmp_path / "metrics.json").read_text())["samples"] == 2 * (len(store.records()) - 1)
