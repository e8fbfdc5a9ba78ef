"""The scripts: every configuration runs, run directories are whole, bad input gets one line, signals lose nothing."""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import runpy
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import hydra
import pytest
import torch
from cifar_files import Folder
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict
from safetensors.torch import load_file

import bdl
from bdl.errors import BdlWarning, one_line_errors
from bdl.models import MLP

ROOT = Path(__file__).parents[1]
SCRIPTS, CONF = ROOT / "scripts", ROOT / "conf"
TINY = ("logger=none", "chains=2", "trainer.max_steps=12", "model.sizes=[36,6]", "collect.keep.every=2")
CYCLES = ("schedule.cycle.explore=0.3", "collect.keep.samples_per_cycle=1")
SAMPLERS = [p.stem for p in sorted((CONF / "sampler").glob("*.yaml")) if p.stem != "default"]
DYNAMICS = ("baoab", "psgld", "sgfs", "sghmc", "sgld", "sgnht", "sgrld")
WEIGHTINGS = ("adaptive", "contour")
PRIORS = [path.stem for path in sorted((CONF / "sampler" / "prior").glob("*.yaml"))]
SCHEDULES = [path.stem for path in sorted((CONF / "schedule").glob("*.yaml"))]
EXPERIMENTS = [str(p.relative_to(CONF / "experiment"))[:-5] for p in sorted((CONF / "experiment").rglob("*.yaml"))]
ON_CIFAR = [e for e in EXPERIMENTS if e.startswith("cifar")]


def module_of(script: str):
    spec = importlib.util.spec_from_file_location(f"{script}_script", SCRIPTS / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


train = module_of("train")


@pytest.fixture(autouse=True)
def no_hydra_left_over():
    yield
    GlobalHydra.instance().clear()


@pytest.fixture
def script(monkeypatch, capsys):
    """Runs a script as its command line would, in this process: (exit status, stdout, lines on stderr)."""

    def run(name: str, *overrides: str) -> tuple[int, str, list[str]]:
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS / f"{name}.py"), *overrides])
        capsys.readouterr()
        status = 0
        try:
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        except SystemExit as error:
            status = error.code
        out, err = capsys.readouterr()
        return status, out, [line for line in err.splitlines() if line.strip()]

    return run


def compose(*overrides: str) -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("train", list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def sampled(folder: Path, *overrides: str) -> train.Callbacks:
    """What train.py does up to the end of sampling, without evaluation and report."""
    cfg = compose(f"run_dir={folder}", *overrides)
    directory = train.RunDirectory(cfg.run_dir, cfg)
    data = train.instantiate(cfg.data, **({"chains": None} if cfg.shared_batches else {}))
    train.complete(cfg, data)
    module, _ = train.build_module(cfg, data)
    callbacks = train.build_callbacks(cfg, data, directory)
    train.build_trainer(cfg, callbacks).fit(module, data, weights_only=True)
    return callbacks


def samples(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "samples").iterdir())}


# ---- everything composes and runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sampler", ["sgd", "sgnht", "awsghmc"])
def test_every_schedule_runs(tmp_path, sampler, schedule):
    extra = CYCLES if schedule == "cyclical" else ("collect.keep.burn_in=4",)
    callbacks = sampled(tmp_path, f"sampler={sampler}", f"schedule={schedule}", "trainer=debug", *TINY, *extra)
    steps = [r.step for r in callbacks.collect.store.records()]
    assert steps == ([3, 6, 9, 12] if schedule == "cyclical" else [6, 8, 10, 12])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_runs(tmp_path, sampler):
    """The ensemble keeps its last state alone; replica exchange keeps the chains of its first rung."""
    own = sampler == "ensemble"
    keep = () if own else ("collect.keep.burn_in=4", "collect.keep.every=2")
    small = ("logger=none", "chains=4", "trainer.max_steps=12", "model.sizes=[36,6]")
    records = sampled(tmp_path, f"sampler={sampler}", "trainer=debug", *small, *keep).collect.store.records()
    assert [r.step for r in records] == ([12] if own else [6, 8, 10, 12])
    assert all(r.chains == ([0] if sampler.startswith("re") else [0, 1, 2, 3]) for r in records)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_every_dynamics_runs_under_every_weighting(tmp_path, dynamics, weighting):
    groups = (f"sampler/dynamics={dynamics}", f"sampler/weighting={weighting}")
    assert sampled(tmp_path, *groups, "trainer=debug", *TINY).collect.store.records()


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_is_short_under_the_debug_trainer(experiment):
    assert compose("run_dir=x", f"experiment={experiment}", "trainer=debug").trainer.max_steps == 200


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if e not in ON_CIFAR])
def test_every_experiment_runs_under_the_debug_trainer(tmp_path, experiment):
    short = ("trainer.max_steps=80", "chains=2", "collect.keep.samples_per_cycle=2", "logger=none")
    assert sampled(tmp_path, f"experiment={experiment}", "trainer=debug", *short).collect.store.records()


@pytest.mark.parametrize("experiment", ON_CIFAR)
def test_every_experiment_on_cifar_runs_under_the_debug_trainer(tmp_path, monkeypatch, experiment):
    """On 60 images, and 8 layers where there are 20."""
    folder = Folder(tmp_path / "data", monkeypatch, 100 if experiment.startswith("cifar100") else 10)
    short = ("trainer.max_steps=40", "collect.keep.every=2", "collect.keep.samples_per_cycle=1", "logger=none")
    small = (f"data.root={folder.root}", "data.batch_size=2", *(() if "/cnn" in experiment else ("model.depth=8",)))
    run = sampled(tmp_path / "run", f"experiment={experiment}", "trainer=debug", *short, *small)
    assert run.collect.store.records() and run.average.count == len(run.collect.store.records())


@pytest.mark.parametrize("prior", PRIORS)
def test_every_prior_runs(tmp_path, prior):
    assert sampled(tmp_path, f"sampler/prior={prior}", "trainer=debug", *TINY).collect.store.records()


CLIP = "sampler.clip={_target_: bdl.ClipNorm, c: 1.0}"
OPTIONS = (
    "shared_batches=true",
    "model.dropout=0.2",
    "data.val_fraction=0.25",
    "data.replacement=true",
    "collect.batchnorm=refresh",
    "chains=1",
)


@pytest.mark.parametrize("override", [*OPTIONS, CLIP])
def test_options_run(tmp_path, override):
    assert sampled(tmp_path, "trainer=debug", *TINY, override).collect.store.records()


def cifar(folder: Folder, *overrides: str) -> tuple[str, ...]:
    """A few steps of the small network on 60 images."""
    small = (f"data.root={folder.root}", "data.batch_size=10", "trainer.max_steps=12", "collect.keep.every=2")
    return ("data=cifar10", "model=cnn", "trainer=debug", "logger=none", "chains=1", *small, *overrides)


def test_the_law_of_augmented_data_is_another(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "data", monkeypatch)
    targets = []
    for augment in ("{crop: 4, flip: true}", "{crop: 2, flip: true}"):
        sampled(tmp_path / augment[7], *cifar(folder, f"data.augment={{_target_: bdl.data.Augment, {augment[1:]}"))
        targets.append(json.loads((tmp_path / augment[7] / "samples" / "target.json").read_text())["data"])
    assert targets[0]["augment"]["crop"] == 4 and targets[0]["classes"] == 10 and "root" not in targets[0]
    assert targets[0] != targets[1]


def test_tf32_is_a_switch(tmp_path, monkeypatch):
    """cuDNN has it on unless it is told."""
    monkeypatch.setattr(train, "RunDirectory", lambda *_: pytest.fail("far enough"))
    for tf32 in (True, False):
        with pytest.raises(pytest.fail.Exception):
            train.run(compose(f"run_dir={tmp_path}", f"tf32={tf32}"))
        assert torch.backends.cudnn.allow_tf32 is torch.backends.cuda.matmul.allow_tf32 is tf32


def test_a_compiled_run_is_the_run(tmp_path, monkeypatch):
    """By the compiler's front end alone, which rounds nothing differently."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    folder = Folder(tmp_path / "data", monkeypatch)
    for compiled in (True, False):
        sampled(tmp_path / str(compiled), *cifar(folder, f"compile={compiled}"))
    assert samples(tmp_path / "True") == samples(tmp_path / "False")


def test_images_from_elsewhere_are_scored_where_they_are(tmp_path, monkeypatch, script):
    folder = Folder(tmp_path / "data", monkeypatch)
    run = tmp_path / "run"
    assert "ood/bma/auroc" not in finished(script, run, folder)
    folder.write_svhn()
    assert 0 <= finished(script, tmp_path / "again", folder)["ood/bma/auroc"] <= 1
    assert script("evaluate", f"runs={run}", f"out={tmp_path / 'out'}")[0] == 0
    assert 0 <= json.loads((tmp_path / "out" / "metrics.json").read_text())["ood/one_sample/auroc"] <= 1


def finished(script, run: Path, folder: Folder) -> dict[str, float]:
    status, _, err = script("train", f"hydra.run.dir={run}", *cifar(folder))
    assert status == 0, err
    return json.loads((run / "metrics.json").read_text())


def test_a_run_counted_in_epochs_counts_the_samplers_steps():
    cfg = compose("run_dir=x", "trainer.max_steps=-1", "trainer.max_epochs=4", "trainer.accumulate_grad_batches=2")
    data = train.instantiate(cfg.data)  # 44 batches an epoch
    train.complete(cfg, data)
    assert cfg.steps == 4 * 22 and cfg.sampler.num_data == 4435


SMOOTHED = ("loss._target_=torch.nn.CrossEntropyLoss", "+loss.label_smoothing=0.1")


def test_a_loss_that_is_no_likelihood_is_warned_of(tmp_path):
    with pytest.warns(BdlWarning, match="smoothed labels"):
        sampled(tmp_path, "trainer=debug", *TINY, *SMOOTHED)


# ---- a run directory -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished default run in small."""
    folder = tmp_path_factory.mktemp("run") / "a"
    whole(folder)
    return folder


def whole(folder: Path, *overrides: str) -> None:
    cfg = compose(f"run_dir={folder}", "trainer=debug", *TINY, *overrides)
    train.run(cfg)
    GlobalHydra.instance().clear()


def test_the_run_directory_is_complete(run):
    names = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    assert names >= {
        "config.yaml", "samples/index-0.jsonl", "samples/00000011-0.safetensors", "samples/weighting-0.safetensors",
        "checkpoints/last.ckpt", "metrics.json", "timing.json", "report.html",
    }  # fmt: skip
    assert not [name for name in names if "writing" in name]


def test_config_yaml_says_where_a_run_came_from(run):
    config = train.OmegaConf.load(run / "config.yaml")
    assert set(config.provenance) >= {"git_commit", "versions", "threads", "device"}
    assert torch.__version__.startswith(config.provenance.versions.torch)
    assert config.sampler.num_data == 4435 and config.chains == 2 and config.steps == 12


def test_metrics_json_has_the_names_other_tools_read(run):
    text = (run / "metrics.json").read_text()
    metrics = json.loads(text, parse_constant=pytest.fail)  # no NaN
    scores = ("accuracy", "nll", "ece", "brier")
    rows = ("one_sample", "chain_bma", "bma")
    of_splits = {f"{split}/{row}/{score}" for split in ("test", "train") for row in rows for score in scores}
    alone = "samples chains temperature noise_ratio t_eff kinetic_temperature rhat/max ess/min weight_ess".split()
    assert set(metrics) >= {*of_splits, *alone}
    assert metrics["samples"] == 6  # steps 7, 9, 11
    assert metrics["chains"] == 2 and metrics["temperature"] == 0.2
    assert metrics["weight_ess"] is None  # the pilot has not ended


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
    found = posterior.evaluate(bdl.data.LandsatDataModule().slices("test")).metrics()
    metrics = json.loads((run / "metrics.json").read_text())
    assert all(metrics[f"test/{name}"] == pytest.approx(value, rel=1e-6) for name, value in found.items())


def test_the_same_command_finds_its_run(script, run):
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    status, out, _ = script("train", f"hydra.run.dir={run}", "trainer=debug", *TINY)
    assert status == 0 and "holds this run already" in out and "all chains' average" in out
    assert before == {p: p.stat().st_mtime_ns for p in run.rglob("*")}


def test_what_does_not_change_the_samples_does_not_change_the_hash():
    one = train.bdl.config.config_hash(compose("run_dir=x"))
    for same in ("logger=wandb", "monitor_every=7", "checkpoint_every=9", "run_dir=y"):
        assert train.bdl.config.config_hash(compose("run_dir=x", same)) == one
    for other in ("seed=1", "stack=1", "sampler.lr=0.1", "schedule=cosine", "chains=4", "collect.keep.every=7"):
        assert train.bdl.config.config_hash(compose("run_dir=x", other)) != one


def test_a_run_is_the_same_wherever_its_data_lie():
    cfg = compose("run_dir=x", "data=cifar10", "model=resnet20")

    def named(**data) -> str:
        changed = copy.deepcopy(cfg)
        changed.data = {**changed.data, **data}
        return train.bdl.config.config_hash(changed)

    for same in (dict(root="/y"), dict(download=True), dict(cache="/z"), dict(loader="torch"), dict(workers=7)):
        assert named(**same) == named()
    for other in (dict(augment=None), dict(classes=100), dict(channels_last=False), dict(batch_size=7)):
        assert named(**other) != named()


def test_wandb_runs_offline(tmp_path, script):
    pytest.importorskip("wandb")
    overrides = [o for o in TINY if not o.startswith("logger")]
    status, _, err = script("train", f"hydra.run.dir={tmp_path}", "trainer=debug", "logger=wandb", *overrides)
    assert status == 0, err
    assert list(tmp_path.rglob("offline-run-*")) and (tmp_path / "metrics.json").exists()


# ---- several runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    folder = tmp_path_factory.mktemp("second") / "b"
    sampled(folder, "trainer=debug", *TINY, "seed=1")
    return folder


def test_two_runs_are_one_posterior(script, run, second, tmp_path):
    status, out, err = script("evaluate", f"runs=[{run},{second}]", f"out={tmp_path}")
    assert status == 0, err
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["chains"] == 4 and "4 chains" in out
    assert metrics["samples"] == 2 * json.loads((run / "metrics.json").read_text())["samples"]
    assert (tmp_path / "report.html").exists()


def test_one_run_evaluated_again_has_its_own_metrics(script, run, tmp_path):
    assert script("evaluate", f"runs={run}", f"out={tmp_path}")[0] == 0
    one, again = (json.loads((folder / "metrics.json").read_text()) for folder in (run, tmp_path))
    assert {k: one[k] for k in one if "/" in k} == {k: again[k] for k in one if "/" in k}


def test_runs_of_different_targets_are_refused(script, run, tmp_path):
    sampled(tmp_path / "c", "trainer=debug", *TINY, "sampler.prior.precision=2")
    error = refusal(script("evaluate", f"runs=[{run},{tmp_path / 'c'}]", f"out={tmp_path / 'out'}"))
    assert "runs of different targets are not merged: prior is" in error
    assert not (tmp_path / "out").exists()


def test_runs_of_another_loss_are_refused(script, run, tmp_path):
    """The likelihood is part of the target."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampled(tmp_path / "c", "trainer=debug", *TINY, *SMOOTHED)
    assert "different targets" in refusal(script("evaluate", f"runs=[{run},{tmp_path / 'c'}]", f"out={tmp_path}"))


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


# ---- bad input -------------------------------------------------------------------------------------------------------


def refusal(result: tuple[int, str, list[str]]) -> str:
    status, _, err = result
    assert status == 1, err
    assert len(err) == 1 and err[0].startswith("bdl: "), err
    return err[0]


BAD = {
    "group": ("sampler=nuts", "sampler/nuts"),
    "key": ("sampler.lrr=0.1", "lrr"),
    "lr": ("sampler.lr=0", "lr must be > 0, got 0"),
    "negative lr": ("sampler.lr=-0.1", "lr must be > 0, got -0.1"),
    "temperature": ("sampler.temperature=-1", "temperature must be >= 0, got -1"),
    "friction 0": ("sampler.dynamics.friction=0", "friction must be in (0, 1], got 0"),
    "friction 2": ("sampler.dynamics.friction=2", "friction must be in (0, 1], got 2"),
    "num_data": ("sampler.num_data=100", "sampler.num_data = 100, but the training data have 4435 items"),
    "chains": ("chains=0", "chains must be at least 1, got 0"),
    "thinning": ("collect.keep.every=500", "keeps no sample in 12 steps"),
    "burn-in": ("collect.keep.burn_in=12", "keeps no sample in 12 steps"),
    "batch": ("data.batch_size=5000", "batch_size must be between 1 and the 4435 training items"),
    "model": ("model.sizes=[36,5]", "the model has 5 outputs for 6 classes"),
    "input": ("model.sizes=[35,6]", "the model does not take inputs of shape (36,)"),
    "bins": ("sampler.weighting.bins=1", "bins must be at least 2, got 1"),
    "low": ("sampler.weighting.low=5", "low and high must be two energies"),
    "precision": ("sampler.prior.precision=-1", "precision must be >= 0, got -1"),
    "word": ("trainer.max_steps=many", "many"),
    "rate": ("sampler=sgnht; sampler.dynamics.rate=0", "rate of the thermostat must be > 0"),
    "grad_var": ("sampler=sghmc; sampler.dynamics.grad_var=-1", "grad_var must be null, \"estimated\", or a variance"),
    "no dynamics": ("sampler=default", "sampler.dynamics has no value: choose a configuration that gives one"),
    "fold": ("data.fold=1", "fold must be from 0 to 1 / val_fraction - 1, got 1 with val_fraction 0.0"),
    "no ladder": ("sampler/exchange=ladder; sampler.exchange.ladder=3; chains=4", "list of multiples of T, got 3"),
    "memory": ("sampler=psgld; sampler.dynamics.a=1", "a must be in [0, 1), got 1"),
    "form": ("sampler=sgfs; sampler.dynamics.form=x", "form must be \"diagonal\" or \"full\", got 'x'"),
    "target": ("sampler=hmc; sampler.dynamics.target=1", "target acceptance must be in (0, 1), got 1"),
    "scale": ("sampler/prior=laplace; sampler.prior.scale=0", "Laplace scale must be > 0, got 0"),
    "scale name": ("sampler.prior.precision=she", "one of ['fan_in', 'he'], got 'she'"),
    "ladder": ("sampler=resghmc; sampler.exchange.ladder=[1,3,2]", "rising multiples of T that begin with 1"),
    "one chain": ("sampler=resghmc; chains=1", "replica exchange needs chains to exchange, got 1"),
    "rungs": ("sampler=resghmc; chains=6", "6 chains do not fill a ladder of 4"),
    "weighted swaps": ("sampler/exchange=ladder; chains=4", "AdaptiveWeight changes that"),
    "weighted kernel": ("sampler=hmc; sampler/weighting=contour", "HMC accepts by exp(-U/T), which Contour changes"),
    "mini-batches": ("sampler=mala; data.batch_size=100", "MALA needs all the data in every batch, got batch_size"),
    "devices": ("trainer=ddp; trainer.devices=4000", "trainer.devices=4000, but there are"),
    "concurrent": ("trainer=chains; trainer.concurrent=0", "trainer.concurrent must be a number of processes on each"),
    "devices without a way": ("trainer.devices=2", "trainer=ddp runs one chain on several devices"),
    "machines": ("trainer=chains; trainer.devices=1; trainer.num_nodes=2", "let torchrun or srun start the processes"),
    "clipped kernel": ("sampler=mala; sampler.clip={_target_: bdl.ClipNorm, c: 1.0}", "MALA needs the gradient as it"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing(script, tmp_path, name):
    override, words = BAD[name]
    folder = tmp_path / "run"
    error = refusal(script("train", f"hydra.run.dir={folder}", "trainer=debug", *TINY, *override.split("; ")))
    assert words in error
    assert [p for p in folder.rglob("*") if p.is_file()] == []


def test_bins_that_miss_the_energies_are_refused(script, tmp_path):
    bins = ("sampler.weighting.low=1e6", "sampler.weighting.high=2e6", "trainer.max_steps=1200")
    error = refusal(script("train", f"hydra.run.dir={tmp_path}", "trainer=debug", *(TINY[:2] + TINY[3:]), *bins))
    assert "bins miss the energies: low = 1e+06, high = 2e+06" in error
    assert not (tmp_path / "metrics.json").exists()


def test_a_loss_that_is_not_finite_names_its_step(script, tmp_path):
    error = refusal(script("train", f"hydra.run.dir={tmp_path}", "trainer=debug", *TINY, "sampler.lr=1e30"))
    assert "is not finite at step" in error and "lower lr" in error
    assert not (tmp_path / "metrics.json").exists()


def test_a_folder_of_another_configuration_is_refused(script, run):
    before = samples(run)
    error = refusal(script("train", f"hydra.run.dir={run}", "trainer=debug", *TINY, "seed=7"))
    assert "already holds a run of another configuration" in error and before == samples(run)


@pytest.mark.parametrize(
    ("runs", "words"), [("[/nowhere]", "/nowhere is not a run directory"), ("[]", "runs"), ("null", "runs")]
)
def test_evaluate_refuses_what_is_no_run(script, runs, words):
    assert words in refusal(script("evaluate", f"runs={runs}"))


def test_evaluate_without_runs_says_so(script):
    assert "runs" in refusal(script("evaluate"))


def test_debugging_keeps_the_traceback(monkeypatch):
    monkeypatch.setenv("BDL_DEBUG", "1")
    with pytest.raises(bdl.ConfigError), one_line_errors():
        raise bdl.ConfigError("what")


def test_ctrl_c_outside_of_sampling_is_one_line_too(capsys):
    with pytest.raises(SystemExit) as error, one_line_errors():
        raise KeyboardInterrupt
    assert error.value.code == 130 and len(capsys.readouterr().err.splitlines()) == 1


# ---- processes of their own ------------------------------------------------------------------------------------------


LONG = (
    "logger=none", "chains=2", "trainer.max_steps=3000", "model.sizes=[36,6]", "collect.keep.every=40",
    "collect.keep.burn_in=100", "checkpoint_every=300",
)  # fmt: skip


def start(*overrides: str) -> subprocess.Popen:
    command = [sys.executable, str(SCRIPTS / "train.py"), *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def stop(process: subprocess.Popen, folder: Path, signum: int) -> None:
    """Signal the process once it has kept its first sample."""
    deadline = time.monotonic() + 100
    while not (folder / "samples" / "index-0.jsonl").exists() and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signum)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    sampled(folder, *LONG)
    return samples(folder)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_whole_and_the_same_command_goes_on(tmp_path, uninterrupted, signum):
    process = start(f"hydra.run.dir={tmp_path}", *LONG)
    stop(process, tmp_path, signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signum
    checkpoint = tmp_path / "checkpoints" / "last.ckpt"
    assert err.splitlines() == [f"bdl: stopped by signal {signum:d}; the same command goes on from {checkpoint}"]
    assert 0 < torch.load(checkpoint, weights_only=True)["global_step"] < 3000
    assert not (tmp_path / "metrics.json").exists()
    train.run(compose(f"run_dir={tmp_path}", *LONG))
    assert samples(tmp_path) == uninterrupted
    assert (tmp_path / "metrics.json").exists()


def test_a_time_limit_is_that_of_one_call(tmp_path, uninterrupted, capsys):
    """Every call goes on for a while, and the samples are those of a run without a limit."""
    limited, reached = compose(f"run_dir={tmp_path}", *LONG, "trainer.max_time=00:00:00:01"), [0]
    for _ in range(2):
        train.run(limited.copy())
        reached.append(torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"])
    assert 0 < reached[1] < reached[2] < 3000 and f"stopped at step {reached[2]} of 3000" in capsys.readouterr().out
    train.run(compose(f"run_dir={tmp_path}", *LONG))
    assert samples(tmp_path) == uninterrupted


def test_a_refusal_in_a_process_of_its_own(tmp_path):
    process = start(f"hydra.run.dir={tmp_path}", "sampler=nuts")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert len(err.splitlines()) == 1 and "sampler/nuts" in err and "Traceback" not in err


# ---- several processes -----------------------------------------------------------------------------------------------


SHORTER = (*LONG, "trainer.max_steps=800", "collect.keep.every=20", "collect.keep.burn_in=40")


def on_two(kind: str, folder: Path, *overrides: str) -> subprocess.Popen:
    return start(f"trainer={kind}", "trainer.accelerator=cpu", f"hydra.run.dir={folder}", *overrides)


def of_stack(stack: int, folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in samples(folder).items() if name.split(".")[0].endswith(f"-{stack}")}


def test_stacks_in_one_run_are_those_of_runs_of_their_own(tmp_path):
    """Stopped by a signal and gone on with, too; and evaluated together."""
    folder = tmp_path / "both"
    process = on_two("chains", folder, *SHORTER)
    stop(process, folder, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert len(err.splitlines()) == 1 and err.startswith("bdl: stopped by signal 15; the same command goes on"), err
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {"last.ckpt", "last-1.ckpt"}
    assert not (folder / "metrics.json").exists()
    out, err = on_two("chains", folder, *SHORTER).communicate(timeout=100)
    assert err == "" and out.count("going on from") == 1
    for stack in (0, 1):
        alone = tmp_path / f"stack {stack}"
        sampled(alone, f"stack={stack}", *SHORTER)
        assert len(of_stack(stack, alone)) > 35 and of_stack(stack, folder) == of_stack(stack, alone)
    records = bdl.SampleStore(folder).records()
    assert {(r.stack, *r.chains) for r in records} == {(0, 0, 1), (1, 2, 3)}
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["chains"] == 4 and metrics["samples"] == 2 * len(records)
    traces = [load_file(folder / "checkpoints" / f"trace-{stack}.safetensors") for stack in (0, 1)]
    kept = traces[0]["step"] >= records[0].step
    t_eff = torch.cat([t["t_eff"][kept] for t in traces], 1)
    assert metrics["t_eff"] == pytest.approx(float(t_eff.mean()), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "chains"])
def test_processes_die_with_their_parent_and_the_same_command_goes_on(tmp_path, kind):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first = on_two(kind, whole, *SHORTER)
    second = on_two(kind, killed, *SHORTER)
    stop(second, killed, signal.SIGKILL)
    second.communicate(timeout=60)  # until the last one that holds its output is gone
    assert first.communicate(timeout=200)[1] == "" and first.returncode == 0
    assert not (killed / "metrics.json").exists()
    assert on_two(kind, killed, *SHORTER).communicate(timeout=200)[1] == ""
    assert samples(whole) == samples(killed)
    assert (whole / "metrics.json").read_bytes() == (killed / "metrics.json").read_bytes()
    assert len(samples(whole)) > 35


@pytest.mark.slow
def test_a_stack_that_diverges_ends_the_run_in_one_line(tmp_path):
    process = on_two("chains", tmp_path, *SHORTER, "sampler.lr=1e30")
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1 and len(err.splitlines()) == 1 and "is not finite at step" in err
