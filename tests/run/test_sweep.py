"""Tests of `bdl.run.sweeps`, `bdl.contrib.optuna.sweeper`, `.search_space`.

A sweep optimises the metric that a run returns.
"""

import json
import math
import os
from types import SimpleNamespace

import pytest
import yaml
from composing import CONF, compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from running import TINY, refusal

from bdl.contrib.optuna.search_space import direction_of, distribution_of, grid_values, make_sampler, search_space
from bdl.disk.owner import sole_owner
from bdl.errors import ConfigError
from bdl.run import train
from bdl.run.sweeps import GPUS, note_gpus, of_each_job, study_name, take_gpus

optuna = pytest.importorskip("optuna", "4", reason="needs the extra [sweep]")
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402

SWEEPER = "hydra/sweeper=optuna"
FIXED = ("trainer=debug", *TINY)
LR = "sampler.lr=interval(0.01,0.3)"


def sweep(folder, script, *overrides: str):
    return script("train", "-m", SWEEPER, f"hydra.sweep.dir={folder}", *FIXED, *overrides)


def trials(folder, script, *overrides: str) -> dict[str, dict[str, float]]:
    """Run a sweep. Returns the metrics of its runs, by folder name."""
    status, _, err = sweep(folder, script, *overrides)
    assert status == 0 and not err, err
    return {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("metrics.json")}


def study_in(folder) -> optuna.Study:
    storage = f"sqlite:///{folder}/optuna.db"
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage)


def best(folder) -> dict:
    return yaml.safe_load((folder / "optimization_results.yaml").read_text())


def lrs(folder) -> list[float]:
    return sorted(OmegaConf.load(path).sampler.lr for path in folder.rglob("config.yaml"))


def parse(word: str):
    return OverridesParser.create().parse_override(word)


@pytest.mark.parametrize(
    "words, expected",
    [
        (["-m", "data=cifar10,cifar100", "data.root=/a b"], ["-m", "data=cifar10,cifar100", "data.root=choice(/a b)"]),
        (["-m", "data=cifar10,cifar100", "data.batch_size=[1,2]"], None),  # a key of the default too
        (["-m", "data=cifar10", "seed=0,1", "data.root=/a"], None),  # Hydra chooses cifar10 at once
        (["data=cifar10,cifar100", "data.root=/a"], None),  # no sweep
        (["-m", "data=cifar10,cifar100", "+data.root=/a", "hydra.sweep.dir=/a"], None),
        (["-m", "data=cifar10,cifar100", "data.root=["], None),  # Hydra says what is wrong
    ],
)
def test_a_key_of_swept_choices_alone_becomes_one_of_each_job(words, expected):
    assert of_each_job("train", words, CONF) == (expected or words)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("a=interval(0.5,2)", FloatDistribution(0.5, 2)),
        ("a=interval(1,8)", FloatDistribution(1, 8)),
        ("a=tag(log,interval(0.001,1.0))", FloatDistribution(0.001, 1, log=True)),
        ("a=tag(log,int(interval(1,64)))", IntDistribution(1, 64, log=True)),
        ("a=int(interval(1,8))", IntDistribution(1, 8)),
        ("a=range(1,8,2)", IntDistribution(1, 7, step=2)),
        ("a=range(1,4)", IntDistribution(1, 3)),
        ("a=range(0.0,1.0,0.25)", FloatDistribution(0, 0.75, step=0.25)),
        ("a=choice(x,'y z',0.1,[1,2])", CategoricalDistribution(["x", "y\\ z", "0.1", "[1,2]"])),
        ("a=x,null", CategoricalDistribution(["x", "null"])),
    ],
)
def test_hydras_words_for_a_search_space(word, expected):
    """The end of a range is not one of its values, as in Hydra's own sweeps."""
    assert distribution_of(parse(word)) == expected


def test_an_impossible_search_space_is_one_line():
    for word in ("a=interval(2.0,1.0)", "a=tag(log,interval(0.0,1.0))", "a=range(3,3)"):
        with pytest.raises(ConfigError, match="a"):
            distribution_of(parse(word))


def test_the_last_word_about_a_key_counts():
    words = ["a=interval(0,1)", "b=1", "~start", "a=3", "b=x,y"]
    assert search_space([parse(word) for word in words]) == (
        {"~start": "~start", "a": "a=3"},
        {"b": CategoricalDistribution(["x", "y"])},
    )


def test_the_direction_follows_from_the_objective():
    assert [direction_of(None, name) for name in (None, "val/bma/nll", "test/bma/accuracy")] == [
        "minimize", "minimize", "maximize",
    ]  # fmt: skip
    assert direction_of(["maximize"], "test/bma/nll") == "maximize"
    with pytest.raises(ConfigError, match="direction"):
        direction_of(["minimize", "maximize"], None)


def test_a_seeded_sampler_does_not_repeat_itself_in_a_study():
    """Optuna's samplers draw the same numbers again when they are made again."""
    settings = OmegaConf.create({"_target_": "optuna.samplers.RandomSampler", "seed": 1})
    space = {"a": FloatDistribution(0, 1)}
    study = optuna.create_study()
    for _ in range(4):
        study.sampler = make_sampler(settings, space, len(study.trials))
        study.tell(study.ask(space), 0.0)
    assert len({trial.params["a"] for trial in study.trials}) == 4


def test_a_grid_has_all_values_of_a_range_and_no_interval():
    assert grid_values("a", distribution_of(parse("a=range(0.0,1.0,0.1)"))) == pytest.approx(
        [i / 10 for i in range(10)]
    )
    with pytest.raises(ConfigError, match="a: a grid needs"):
        grid_values("a", FloatDistribution(0, 1))


def test_the_name_of_a_study_follows_from_what_it_searches():
    choices = SimpleNamespace(data="d", model="m", sampler="s")
    names = {
        study_name(choices, words, params)
        for words, params in ((["a=1", "b=2"], None), (["b=2", "a=1"], {}), (["a=1"], {"b": 2}), (["a=1"], {"b": 3}))
    }
    assert len(names) == 2 and all(name.startswith("d-m-s-") for name in names)


@pytest.mark.parametrize(
    ("launcher", "visible", "devices", "taken"),
    [("SlurmLauncher", None, 1, ["0", "0", "0"]),  # as SLURM has said
     ("LocalLauncher", None, 1, ["0", "1", "2"]), ("LocalLauncher", "4,7", 1, ["4", "7", "4"]),
     ("LocalLauncher", None, 2, ["0,1", "2,0", "1,2"]), ("LocalLauncher", "", 1, ["0", "0", "0"])],
)  # fmt: skip
def test_jobs_side_by_side_take_the_gpus_in_turn(tmp_path, monkeypatch, launcher, visible, devices, taken):
    """submitit's local launcher gives the first GPU to each job."""
    for name in ("nvidia1", "nvidia10", "nvidia3", "nvidiactl"):  # in a container, where CUDA counts them from 0
        (tmp_path / name).touch()
    monkeypatch.delenv(GPUS, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    hydra = OmegaConf.create({"launcher": {"_target_": f"plugins.{launcher}"}, "job": {"num": 0}})
    note_gpus(hydra, tmp_path)
    found = []
    for num in range(3):
        hydra.job.num = num
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        take_gpus(hydra, OmegaConf.create({"devices": devices}))
        found.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert found == taken


def test_the_same_command_continues_a_sweep(tmp_path, script):
    """Two trials, then a third that was stopped: it is run with its values, and then there is no more to do. The best
    trial has the least NLL. One sweep at a time runs the studies of a file. A seed makes no trial twice."""
    options = (LR, "hydra.sweeper.sampler.seed=3")
    first = trials(tmp_path, script, *options, "hydra.sweeper.n_trials=2")
    assert len(first) == 2
    study = study_in(tmp_path)
    stopped = study.ask(study.trials[0].distributions).params["sampler.lr"]  # a killed sweep leaves it running
    with sole_owner(tmp_path / "optuna.db.owner.json"):
        status, _, err = sweep(tmp_path, script, *options, "hydra.sweeper.n_trials=3")
        assert status == 1 and "belongs to process" in err[-1]
    for _ in range(2):
        runs = trials(tmp_path, script, *options, "hydra.sweeper.n_trials=3")
        assert len(runs) == 3 and len(study_in(tmp_path).trials) == 3
        assert any(lr == pytest.approx(stopped, rel=1e-12) for lr in lrs(tmp_path))
        assert best(tmp_path)["best_value"] == pytest.approx(min(m["test/bma/nll"] for m in runs.values()))
    assert len(set(lrs(tmp_path))) == 3 and not (tmp_path / "optuna.db.owner.json").exists()


def test_a_trial_that_diverges_is_pruned_and_the_sweep_goes_on(tmp_path, script):
    """A grid is complete after its two values, whatever n_trials says; lr=1e30 overflows in any network."""
    status, out, err = sweep(
        tmp_path, script, "hydra/sweeper/sampler=grid", "sampler.lr=choice(1e30,0.05)", "hydra.sweeper.n_trials=9"
    )
    assert status == 0 and not err, err
    states = sorted(trial.state.name for trial in study_in(tmp_path).trials)
    assert states == ["COMPLETE", "PRUNED"] and "diverged" in out
    assert best(tmp_path)["best_params"] == {"sampler.lr": "0.05"}


def test_parameters_of_the_configuration_and_failures(tmp_path, script):
    """`hydra.sweeper.params` is a search space too. A job that fails ends the sweep with its line, unless the allowed
    rate of failures is higher; a failed trial is none of n_trials."""
    options = ("hydra.sweeper.params={sampler.lr:'choice(-1,0.05)'}", "hydra/sweeper/sampler=grid")
    many = ("hydra.sweeper.n_jobs=2", "hydra.sweeper.max_failure_rate=0.5")
    runs = trials(tmp_path / "a", script, *options, *many)
    assert len(runs) == 1
    assert sorted(trial.state.name for trial in study_in(tmp_path / "a").trials) == ["COMPLETE", "FAIL"]
    error = refusal(sweep(tmp_path / "b", script, *options, "hydra.sweeper.n_jobs=2"))
    assert "sampler.lr" in error and "-1" in error


def test_a_study_in_a_storage_needs_a_name(tmp_path, script):
    assert "hydra.sweeper.study_name is null" in refusal(sweep(tmp_path, script, LR, "hydra.sweeper.study_name=null"))


def test_a_run_returns_its_objective(tmp_path):
    """The default is the NLL on the validation split where there is one; a finished run returns it again."""
    overrides = ("trainer=debug", *TINY, "data.val_fraction=0.25")
    for _ in range(2):
        value = train.train(compose(f"run_dir={tmp_path}", *overrides))
        metrics = json.loads((tmp_path / "metrics.json").read_text())
        assert value == pytest.approx(metrics["val/bma/nll"]) and not math.isclose(value, metrics["test/bma/nll"])
    chosen = train.train(compose(f"run_dir={tmp_path}", *overrides, "objective=test/bma/ece"))
    assert chosen == pytest.approx(metrics["test/bma/ece"])
    with pytest.raises(ConfigError, match="objective=test/bma/loss: no run has a score loss"):
        train.train(compose(f"run_dir={tmp_path}", *overrides, "objective=test/bma/loss"))
