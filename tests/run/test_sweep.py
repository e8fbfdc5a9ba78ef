"""Tests of `bdl.run.sweeps`.

A sweep optimises the metric that a run returns.
"""

from __future__ import annotations

import json
import math

import cloudpickle
import pytest
import yaml
from composing import compose
from omegaconf import OmegaConf
from running import TINY, refusal

from bdl.disk.owner import sole_owner
from bdl.errors import ConfigError
from bdl.run import train
from bdl.run.sweeps import ResumeStudy

pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra [sweep]")


SWEEPER = ("hydra/sweeper=optuna", "hydra.sweeper.n_jobs=1")
SPACE = ("sampler.lr=interval(0.01,0.3)", "trainer=debug", *TINY)


def trials(folder, script, *overrides: str) -> dict[str, dict[str, float]]:
    """Run a sweep over lr and seed. Returns the metrics of its runs, by folder name."""
    status, _, err = script("train", "-m", *SWEEPER, f"hydra.sweep.dir={folder}", *SPACE, *overrides)
    assert status == 0 and not any("experimental" in line for line in err), err
    return {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("metrics.json")}


def best(folder) -> float:
    return yaml.safe_load((folder / "optimization_results.yaml").read_text())["best_value"]


@pytest.mark.slow  # the test below resumes from the storage that is the default
def test_a_sweep_resumes_from_its_storage(tmp_path, script):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    if int(sqlalchemy.__version__.partition(".")[0]) >= 2:
        pytest.skip("optuna 2 cannot store studies with SQLAlchemy 2; the extra [sweep] pins an older one")
    storage = (f"hydra.sweeper.storage=sqlite:///{tmp_path}/sweep.db", "hydra.sweeper.study_name=lr")
    first = trials(tmp_path, script, "hydra.sweeper.n_trials=2", *storage)
    both = trials(tmp_path, script, "hydra.sweeper.n_trials=3", *storage)
    assert len(first) == 2 and len(both) == 3
    assert best(tmp_path) == pytest.approx(min(m["test/bma/nll"] for m in both.values()))


def test_the_same_command_continues_a_stopped_sweep(tmp_path, script, capsys):
    """Without options about storage. A trial that was stopped is tried again, and the same command then has no more to
    do. The best trial has the least NLL. One sweep at a time runs a study."""
    optuna = pytest.importorskip("optuna")
    first = trials(tmp_path, script, "hydra.sweeper.n_trials=1")
    storage = f"sqlite:///{tmp_path}/optuna.db"
    (summary,) = optuna.get_all_study_summaries(storage)
    study = optuna.load_study(study_name=summary.study_name, storage=storage)
    stopped = study.ask(study.trials[0].distributions).params["sampler.lr"]  # a killed sweep leaves it running
    with sole_owner(tmp_path / "optuna.db.owner.json"):
        status, _, err = script(
            "train", "-m", *SWEEPER, f"hydra.sweep.dir={tmp_path}", *SPACE, "hydra.sweeper.n_trials=2"
        )
        assert status == 1 and "belongs to process" in err[-1]
    for _ in range(2):
        both = trials(tmp_path, script, "hydra.sweeper.n_trials=2")
        assert len(first) == 1 and len(both) == 2
        assert best(tmp_path) == pytest.approx(min(m["test/bma/nll"] for m in both.values()))
    lrs = [OmegaConf.load(path).sampler.lr for path in tmp_path.rglob("config.yaml")]
    assert any(lr == pytest.approx(stopped, rel=1e-12) for lr in lrs)
    assert not (tmp_path / "optuna.db.owner.json").exists()


def test_a_job_that_owns_no_study_can_be_sent_to_a_cluster(tmp_path):
    """Hydra sends its callbacks along with the job."""
    callback = ResumeStudy()
    config = OmegaConf.create({"hydra": {"sweeper": {"_target_": "x.OptunaSweeper", "n_trials": 2, "study_name": "a"}}})
    config.hydra.sweeper.storage = f"sqlite:///{tmp_path}/a.db"
    callback.on_multirun_start(config=config)
    assert config.hydra.sweeper.n_trials == 2 and (tmp_path / "a.db.owner.json").exists()
    cloudpickle.loads(cloudpickle.dumps(callback)).on_multirun_end(config=config)
    assert (tmp_path / "a.db.owner.json").exists()
    callback.on_multirun_end(config=config)
    assert not (tmp_path / "a.db.owner.json").exists()


def test_a_study_in_a_file_needs_a_name(tmp_path, script):
    options = (f"hydra.sweep.dir={tmp_path}", "hydra.sweeper.study_name=null")
    assert "hydra.sweeper.study_name is null" in refusal(script("train", "-m", *SWEEPER, *options, *SPACE))


def test_a_run_returns_its_objective(tmp_path):
    """The default is the NLL on the validation split where there is one; a finished run returns it again."""
    overrides = ("trainer=debug", *TINY, "data.val_fraction=0.25")
    for _ in range(2):
        value = train.train(compose(f"run_dir={tmp_path}", *overrides))
        metrics = json.loads((tmp_path / "metrics.json").read_text())
        assert value == pytest.approx(metrics["val/bma/nll"]) and not math.isclose(value, metrics["test/bma/nll"])
    chosen = train.train(compose(f"run_dir={tmp_path}", *overrides, "objective=test/bma/ece"))
    assert chosen == pytest.approx(metrics["test/bma/ece"])
    with pytest.raises(ConfigError, match="objective=test/bma/loss is no metric of this run"):
        train.train(compose(f"run_dir={tmp_path}", *overrides, "objective=test/bma/loss"))
