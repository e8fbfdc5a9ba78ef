"""A sweep optimises the metric that a run returns."""

from __future__ import annotations

import json
import math

import pytest
import yaml
from running import TINY, compose

from bdl.errors import ConfigError
from bdl.run import train

pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra [sweep]")


def trials(folder, script, *overrides: str) -> dict[str, dict[str, float]]:
    """Run a sweep over lr and seed. Returns the metrics of its runs, by folder name."""
    sweeper = ("hydra/sweeper=optuna", "hydra.sweeper.n_jobs=1", f"hydra.sweep.dir={folder}")
    space = ("sampler.lr=interval(0.01,0.3)", "trainer=debug", *TINY)
    status, _, err = script("train", "-m", *sweeper, *space, *overrides)
    assert status == 0, err
    return {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("metrics.json")}


def best(folder) -> float:
    return yaml.safe_load((folder / "optimization_results.yaml").read_text())["best_value"]


def test_three_trials_of_a_sweep_minimise_the_nll(tmp_path, script):
    metrics = trials(tmp_path, script, "hydra.sweeper.n_trials=3")
    assert len(metrics) == 3
    assert best(tmp_path) == pytest.approx(min(m["test/bma/nll"] for m in metrics.values()))


def test_a_sweep_resumes_from_its_storage(tmp_path, script):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    if int(sqlalchemy.__version__.partition(".")[0]) >= 2:
        pytest.skip("optuna 2 cannot store studies with SQLAlchemy 2; the extra [sweep] pins an older one")
    storage = (f"hydra.sweeper.storage=sqlite:///{tmp_path}/sweep.db", "hydra.sweeper.study_name=lr")
    first = trials(tmp_path, script, "hydra.sweeper.n_trials=2", *storage)
    both = trials(tmp_path, script, "hydra.sweeper.n_trials=1", *storage)
    assert len(first) == 2 and len(both) == 3
    assert best(tmp_path) == pytest.approx(min(m["test/bma/nll"] for m in both.values()))


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
