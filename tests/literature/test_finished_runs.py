"""Experiments that collect finished runs of scripts/train.py."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from literature.cifar import over_chains
from literature.distances import with_error
from omegaconf import OmegaConf
from running import refusal

from bdl.run.records import write_metrics


@pytest.fixture
def finished(tmp_path):
    """One cell: two seeds of 500 epochs and one run of 3. Three chains, T = 1, other data; one that has not
    finished."""

    def run(folder: str, name: str, epochs: int, seed: int, accuracy: float | None, **more: float) -> None:
        path = tmp_path / folder
        path.mkdir()
        about = {"name": name, "device": "abacus"}
        data = {"batch_size": 256, "root": "elsewhere"}
        described = {"seed": seed, "data": data, "trainer": {"max_epochs": epochs}, "provenance": about}
        OmegaConf.save(OmegaConf.create(described), path / "config.yaml")
        if accuracy is not None:
            scores = {"test/last_ten/accuracy": 0.5, "test/bma/accuracy": accuracy, "test/bma/nll": 0.25}
            chain = {"temperature": 0.01, "noise_ratio": 2.0 + seed}
            write_metrics(path / "metrics.json", {**scores, **chain, "samples": 100, **more})

    run("a", "cifar10/decay_sghmc", 500, 0, 0.92)
    run("b", "cifar10/decay_sghmc", 500, 1, 0.94)
    run("c", "cifar10/decay_sghmc", 3, 0, 0.25)
    run("d", "cifar100/decay_sghmc", 500, 0, 0.11)
    run("e", "cifar10/fixed_msgd", 500, 0, None)
    stack = {"chains": 3, "samples": 300, "test/chain_bma/accuracy": 0.93, "test/chain_bma/nll": 0.25}
    errors = {"test/last_ten/accuracy_se": 0.001, "test/chain_bma/accuracy_se": 0.002, "test/chain_bma/nll_se": 0.01}
    run("g", "cifar10/decay_both_msgd", 500, 2, 0.95, **stack, **errors)
    run("f", "cifar10/fixed_hot_awsghmc", 500, 0, 0.8, noise_ratio=0.125, **{"weighting/multiplier": 2.5})
    return tmp_path


def test_finished_runs_make_the_table(finished, script, tmp_path):
    status, out, err = script("cifar10", "--runs", str(finished), "--epochs", "500", "--out", str(tmp_path / "out"))
    assert (status, err) == (0, [])
    scores = "50.00 ± 0.00 | 93.00 ± 1.00 | 0.250 ± 0.000 | 3.50 | –"
    assert f"| lr falls | SGHMC | 90.79 | 93.07 | {scores} | 100 | 500 | 0, 1 | abacus |" in out
    assert "| lr, T fixed | M-SGD | 90.10 | 92.79 | – | – | – | – | – | – | – | – | – |" in out
    hot = "| T = 1, lr fixed | AWSGHMC | – | – | 50.00 | 80.00 | 0.250 | 1.12 | 2.50 | 100 | 500 | 0 | abacus |"
    assert hot in out and "T = 1, lr falls" not in out
    chains = "50.00 ± 0.10 | 93.00 ± 0.20 | 0.250 ± 0.010 | 5.00 | – | 100 | 500 | 2: 3 chains | abacus |"
    assert f"| lr, T fall | M-SGD | 93.16 | 93.49 | {chains}" in out
    assert "25.00" not in out and "11.00" not in out
    assert {p.suffix for p in (tmp_path / "out" / "cifar10").iterdir()} == {".png", ".md", ".json"}
    runs = json.loads((tmp_path / "out" / "cifar10" / "results.json").read_text())["numbers"]["decay_sghmc"]
    assert [run["config"]["data"] for run in runs] == [{"batch_size": 256}] * 2
    _, out, _ = script("cifar10", "--runs", str(finished / "c"), str(finished / "a"), "--out", str(tmp_path / "out"))
    for accuracy, epochs in (("25.00", 3), ("92.00", 500)):  # lengths have rows of their own
        assert f"| {accuracy} | 0.250 | 3.00 | – | 100 | {epochs} | 0 | abacus |" in out
    assert "missing are experiment=cifar10/fixed_msgd, cifar10/fixed_sghmc" in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["cifar10"], "no finished run of experiment=cifar10/... in no folder"),
        (["cifar100", "--epochs", "7"], "runs of [500] epochs, none of 7"),
    ],
)
def test_missing_runs_get_one_line(finished, script, tmp_path, arguments, words):
    runs = ["--runs", str(finished)] if "--epochs" in arguments else []
    assert words in refusal(script(*arguments, *runs, "--out", str(tmp_path / "out")))
    assert not (tmp_path / "out" / arguments[0]).exists()


def test_chains_of_several_runs_have_one_mean_and_one_error():
    """Those of all chains together."""
    torch.manual_seed(0)
    accuracies = [torch.randn(n, dtype=torch.float64) for n in (4, 1, 3)]
    runs: Any = [
        SimpleNamespace(
            chains=len(a), one=0.0, average=float(a.mean()), nll=0.0,
            errors=(0.0, float(a.std()) / len(a) ** 0.5 if len(a) > 1 else 0.0, 0.0),
        )
        for a in accuracies
    ]  # fmt: skip
    assert over_chains(runs, 1, 6) == with_error(torch.cat(accuracies), 6)


def test_a_run_that_scored_one_sample_alone_is_refused(finished, script, tmp_path):
    write_metrics(finished / "a" / "metrics.json", {"test/one_sample/accuracy": 0.5, "samples": 100})
    assert "make the run again" in refusal(script("cifar10", "--runs", str(finished), "--out", str(tmp_path / "out")))
