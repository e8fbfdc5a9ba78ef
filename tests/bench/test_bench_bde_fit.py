"""bench.py bde_fit: the scores that it computes of bde's outputs, and where it writes them. It needs no bde."""

import json

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from benchmarks import bde_fit as bench
from sklearn.metrics import accuracy_score, log_loss

from bdl.errors import ConfigError

RUN = {"seed": 0, "rmse": 0.12, "nll_normal": -0.9, "nll": -0.95, "core_seconds": 1000.0, "seconds": 520.0}
BDL = {"seed": 0, "bma": {"rmse": 0.11, "nll_normal": -1.0}, "start": {}, "rhat/max": 1.2, "core_seconds": 500.0}


@pytest.fixture
def call(tmp_path):
    def call(name: str, *keys: str, seeds: tuple[int, ...] = (0,)) -> dict:
        bench.main(name, *keys, seeds=seeds, out=tmp_path)
        return json.loads((tmp_path / f"{name}.json").read_text())

    return call


def test_scores_of_a_regression_are_of_mixture_and_its_normal():
    outputs, y = torch.randn(7, 5, 2, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    mean, std = outputs[..., 0].numpy(), np.log1p(np.exp(outputs[..., 1].numpy())) + 1e-6
    total = np.sqrt(mean.var(0) + (std**2).mean(0))
    logs = scipy.stats.norm.logpdf(y.numpy(), mean, std)
    scores = bench.scores_of_values(outputs, y)
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((mean.mean(0) - y.numpy()) ** 2)))
    assert scores["nll_normal"] == pytest.approx(-scipy.stats.norm.logpdf(y.numpy(), mean.mean(0), total).mean())
    assert scores["nll"] == pytest.approx(-(scipy.special.logsumexp(logs, axis=0) - np.log(7)).mean())


def test_scores_of_classes():
    probs, y = torch.randn(20, 3, dtype=torch.float64).softmax(-1), torch.randint(3, (20,))
    scores = bench.scores_of_classes(probs, y)
    assert scores["accuracy"] == accuracy_score(y, probs.argmax(-1))
    assert scores["nll"] == pytest.approx(log_loss(y, probs, labels=[0, 1, 2]))


def test_a_fit_stands_in_the_table_of_its_rows(call, monkeypatch, tmp_path):
    table = {"name": "airfoil-0", "overrides": [], "cores": 2, "device": "a CPU", "date": "2026-01-02", "runs": [BDL]}
    (tmp_path / "airfoil-0.json").write_text(json.dumps(table))
    monkeypatch.setattr(bench, "version", lambda package: "1.0.2")
    monkeypatch.setattr(bench, "measure", lambda name, keys, seed: RUN | {"seed": seed})
    assert call("airfoil-0", "split_seed=0", seeds=(1,))["bde"]["runs"][0]["seed"] == 1
    record = call("airfoil-0", "split_seed=0", seeds=(0,))
    assert [run["seed"] for run in record["bde"]["runs"]] == [0, 1] and record["bde"]["data"] == ["split_seed=0"]
    text = (tmp_path / "airfoil-0.md").read_text()
    assert "| bde 1.0.2, 2 seeds" in text and "| 0.1200 ± 0.0000 | -0.9000 ± 0.0000 | – | 1000 |" in text
    others = call("airfoil-0", "split_seed=1", seeds=(2,))["bde"]  # other rows: those of before are not comparable
    assert [run["seed"] for run in others["runs"]] == [2]


def test_a_table_that_does_not_exist_is_refused(call):
    with pytest.raises(ConfigError, match="run bench.py table airfoil first"):
        call("airfoil")


def test_a_table_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="'wine' begins with none of airfoil, bike, landsat"):
        bench.problem("wine")
