"""Tests of `bdl.run.build`.

Every configuration composes and runs, under every scheduler, sampler and trainer.
"""

import functools
import json
from pathlib import Path

import cloudpickle
import pytest
import torch
import yaml
from cifar_files import Folder
from composing import CONF, compose
from hydra.utils import instantiate
from repeats import slow_where
from running import SMOOTHED, TINY, done, planned, sampled, samples

from bdl.errors import BdlWarning
from bdl.run import command, train
from bdl.run.section import check_num_data

CYCLES = ("schedule.cycle.explore=0.3", "collect.keep.samples_per_cycle=1")
SAMPLERS = [p.stem for p in sorted((CONF / "sampler").glob("*.yaml")) if p.stem != "default"]
DYNAMICS = ("baoab", "cchmc", "psgld", "sgfs", "sghmc", "sgld", "sglrw", "sgnht", "sgrld", "smile")
WEIGHTINGS = ("adaptive", "contour")
ZETA = ("sampler.weighting.zeta=1",)  # what tuning, which does not run here, finds under auto
PRIORS = [path.stem for path in sorted((CONF / "sampler" / "prior").glob("*.yaml"))]
SCHEDULES = [path.stem for path in sorted((CONF / "schedule").glob("*.yaml"))]
EXPERIMENTS = [str(p.relative_to(CONF / "experiment"))[:-5] for p in sorted((CONF / "experiment").rglob("*.yaml"))]
ON_CIFAR = [e for e in EXPERIMENTS if e.startswith("cifar")]  # those on CIFAR-100: tests/data/test_cifar.py


def cifar(folder: Folder, *overrides: str) -> tuple[str, ...]:
    """A few steps of the small network on 60 images."""
    small = (f"data.root={folder.root}", "data.batch_size=10", "trainer.max_steps=12", "collect.keep.every=2")
    return ("data=cifar10", "model=cnn", "trainer=debug", "logger=none", "chains=1", *small, *overrides)


def test_what_is_logged_is_on_disk_at_once(tmp_path):
    logger = instantiate(compose(f"run_dir={tmp_path}").logger)
    logger.log_metrics({"chain/energy": 1.0}, 50)
    assert "1.0" in next(tmp_path.rglob("metrics.csv")).read_text()


def repeats_a_schedule(sampler: str, schedule: str) -> bool:
    """Of the schedules that follow one function of the step, one runs; tests/test_schedules.py has all their values."""
    return sampler != "awsghmc" or schedule not in ("cyclical", "decay_both", "ramp", "zeta_fall")


CASES = [(sampler, schedule) for sampler in ("sgd", "awsghmc") for schedule in SCHEDULES]


@pytest.mark.parametrize("sampler, schedule", slow_where(repeats_a_schedule, CASES))
def test_every_schedule_runs(tmp_path, sampler, schedule):
    extra = CYCLES if schedule == "cyclical" else ("collect.keep.burn_in=4",)
    extra += ("sampler.weighting.zeta=1",) if sampler == "awsghmc" else ()  # auto is for tuning to find
    callbacks = sampled(tmp_path, f"sampler={sampler}", f"schedule={schedule}", "trainer=debug", *TINY, *extra)
    steps = [r.step for r in callbacks.collect.store.records()]
    assert steps == ([3, 6, 9, 12] if schedule == "cyclical" else [6, 8, 10, 12])


def adapts(sampler: str) -> bool:
    """Whether the file of its dynamics has a value for adapt_steps."""
    groups = {
        k: v for entry in read(f"sampler/{sampler}")["defaults"] if isinstance(entry, dict) for k, v in entry.items()
    }
    return bool(read(f"sampler/dynamics/{groups['dynamics']}").get("adapt_steps")) if "dynamics" in groups else False


def read(path: str) -> dict:
    return yaml.safe_load((CONF / f"{path}.yaml").read_text())


@pytest.mark.parametrize("data", ["landsat", "cifar10"])
@pytest.mark.parametrize("sampler", [sampler for sampler in SAMPLERS if adapts(sampler)])
def test_no_sample_is_kept_while_a_sampler_adapts(sampler, data):
    """Whatever burn-in the data have for their own sampler."""
    cfg = compose(f"sampler={sampler}", f"data={data}", "trainer.max_steps=1000")
    assert instantiate(cfg.collect.keep).count(cfg.sampler.dynamics.adapt_steps) == 0


# One of each family, and those whose files differ most from the others: what is kept, what tuning finds, what is last
RUN_BY_DEFAULT = ("awsghmc", "csgld", "dropout", "hmc", "mclmc", "multiswag", "resghmc", "sgd", "sgfs")


@pytest.mark.parametrize("sampler", slow_where(lambda sampler: sampler not in RUN_BY_DEFAULT, SAMPLERS))
def test_every_sampler_runs(tmp_path, sampler):
    """Those that use only the last state keep no other; replica exchange keeps the chains of its first rung."""
    ensemble = sampler in ("ensemble", "dropout", "laplace", "scaled")
    keep = () if ensemble else ("collect.keep.burn_in=4", "collect.keep.every=2")
    small = ("logger=none", "chains=4", "stacks=1", "trainer.max_steps=12", "model.sizes=[36,6]")
    model = ("model.sizes=null", "model.hidden=[5]") if sampler == "dropout" else ()
    model += ZETA if sampler.startswith("aw") else ()
    records = sampled(tmp_path, f"sampler={sampler}", "trainer=debug", *small, *keep, *model).collect.store.records()
    assert [r.step for r in records] == ([12] if ensemble else [6, 8, 10, 12])
    assert all(r.chains == ([0, 2] if sampler.startswith("re") else [0, 1, 2, 3]) for r in records)


PAIRS = [(dynamics, weighting) for dynamics in DYNAMICS for weighting in WEIGHTINGS]
NAMED = ("psgld", "sghmc", "sgld", "sgnht", "sgrld")  # samplers awpsgld, awsghmc, ... run above


def repeats(dynamics: str, weighting: str) -> bool:
    return dynamics in (*NAMED, "baoab", "sglrw") if weighting == "adaptive" else dynamics != "sghmc"


@pytest.mark.parametrize("dynamics, weighting", slow_where(repeats, PAIRS))
def test_every_dynamics_runs_under_every_weighting(tmp_path, dynamics, weighting):
    groups = (f"sampler/dynamics={dynamics}", f"sampler/weighting={weighting}", *ZETA)
    assert sampled(tmp_path, *groups, "trainer=debug", *TINY).collect.store.records()


SAME_KEYS = ("landsat/liang", "landsat/long", "landsat/msgd")  # as landsat/cyclical and landsat/snapshot


OTHERS = [e for e in EXPERIMENTS if e not in ON_CIFAR]


@pytest.mark.parametrize("experiment", slow_where(SAME_KEYS.__contains__, OTHERS))
def test_every_experiment_runs_under_the_debug_trainer(tmp_path, experiment):
    short = ["chains=2", "collect.keep.samples_per_cycle=2", "logger=none"]
    if experiment == "shakespeare":
        (tmp_path / "short.txt").write_text("To be, or not to be: that is the question. " * 20)
        short += [f"data.path={tmp_path / 'short.txt'}", "model.width=8", "model.layers=1", "stacks=1"]
    assert sampled(tmp_path, f"experiment={experiment}", "trainer=debug", *short, steps=80).collect.store.records()


# One with a weighting and a schedule of two values, one in cycles, one with the small network. The others have other
# values of the same keys
DISTINCT = ("decay_both_awsghmc", "csgmcmc", "cnn_csgmcmc_temp")


@pytest.mark.parametrize(
    "experiment",
    slow_where(lambda name: name not in DISTINCT, [e.removeprefix("cifar10/") for e in ON_CIFAR if "100" not in e]),
)
def test_every_experiment_on_cifar_runs_under_the_debug_trainer(tmp_path, monkeypatch, experiment):
    """On 60 images, and 8 layers where there are 20."""
    folder = Folder(tmp_path / "data", monkeypatch)
    short = ("collect.keep.every=2", "collect.keep.samples_per_cycle=1", "logger=none")
    small = (
        f"data.root={folder.root}",
        "data.batch_size=2",
        *(() if experiment.startswith("cnn") else ("model.depth=8",)),
    )
    run = sampled(tmp_path / "run", f"experiment=cifar10/{experiment}", "trainer=debug", *short, *small, steps=40)
    assert run.collect.store.records() and run.average.count == len(run.collect.store.records())


@pytest.mark.parametrize("prior", slow_where(lambda prior: prior not in ("scale_mixture", "uniform"), PRIORS))
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


def test_the_law_of_augmented_data_is_another(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "data", monkeypatch)
    targets = []
    for augment in ("{crop: 4, flip: true}", "{crop: 2, flip: true}"):
        sampled(tmp_path / augment[7], *cifar(folder, f"data.augment={{_target_: bdl.data.Augment, {augment[1:]}"))
        targets.append(json.loads((tmp_path / augment[7] / "samples" / "target.json").read_text())["data"])
    assert targets[0]["augment"]["crop"] == 4 and targets[0]["classes"] == 10 and "root" not in targets[0]
    assert targets[0] != targets[1]


def test_tf32_is_a_switch(tmp_path, monkeypatch):
    """By default cuDNN uses it and matmul does not."""
    monkeypatch.setattr("bdl.run.plan.RunDirectory", lambda *_: pytest.fail("far enough"))
    for tf32 in (True, False):
        with pytest.raises(pytest.fail.Exception):
            train.run(planned(f"run_dir={tmp_path}", f"tf32={tf32}"))
        assert torch.backends.cudnn.allow_tf32 is torch.backends.cuda.matmul.allow_tf32 is tf32


def test_a_compiled_run_is_the_run(tmp_path, monkeypatch):
    """Only the front end of the compiler runs here: it does not change the rounding."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    folder = Folder(tmp_path / "data", monkeypatch)
    for compiled in (True, False):
        sampled(tmp_path / str(compiled), *cifar(folder, f"compile={compiled}"))
    assert samples(tmp_path / "True") == samples(tmp_path / "False")


def test_out_of_distribution_images_are_scored_where_given(tmp_path, monkeypatch, script):
    folder = Folder(tmp_path / "data", monkeypatch)
    run = tmp_path / "run"
    assert "ood/bma/auroc" not in finished(script, run, folder)
    folder.write_svhn()
    assert 0 <= finished(script, tmp_path / "again", folder)["ood/bma/auroc"] <= 1
    assert script("evaluate", f"runs={run}", f"out={tmp_path / 'out'}")[0] == 0
    assert 0 <= json.loads((tmp_path / "out" / "metrics.json").read_text())["ood/one_sample/auroc"] <= 1


def finished(script, run: Path, folder: Folder) -> dict[str, float]:
    done(script("train", f"hydra.run.dir={run}", *cifar(folder)))
    return json.loads((run / "metrics.json").read_text())


def test_the_script_can_be_sent_to_a_cluster():
    """submitit pickles the function below hydra.main. It does so by value, because no module has that
    function; here all of the module is pickled by value too, as it is where it is the started script."""
    function = command.command("train").__wrapped__
    assert cloudpickle.loads(cloudpickle.dumps(function)).__closure__[0].cell_contents == "train"
    cloudpickle.register_pickle_by_value(command)
    try:
        assert cloudpickle.loads(cloudpickle.dumps(function)).__closure__[0].cell_contents == "train"
    finally:
        cloudpickle.unregister_pickle_by_value(command)


def test_a_run_counted_in_epochs_counts_the_samplers_steps():
    in_epochs = ("trainer.max_steps=-1", "trainer.max_epochs=4", "trainer.accumulate_grad_batches=2")
    plan = planned("run_dir=x", "data.batch_size=100", *in_epochs)
    data = plan.data(0).build()  # 44 batches an epoch
    assert plan.of_stack(0, data).motion.steps == 4 * 22 and check_num_data(None, data) == 4435


def test_a_loss_that_is_no_likelihood_gets_a_warning(tmp_path):
    with pytest.warns(BdlWarning, match="smoothed labels"):
        sampled(tmp_path, "trainer=debug", *TINY, *SMOOTHED)
