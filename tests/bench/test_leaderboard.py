"""bench.py leaderboard: distances of averages, the methods that fill them, and its files, in the quick form."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import leaderboard
from benchmarks.leaderboard.chains import Recipe, draws
from benchmarks.leaderboard.figure import curves, nearest, table
from benchmarks.leaderboard.methods import EXACT, METHODS
from benchmarks.leaderboard.problems import GRID, Average, Problem
from composing import SCRIPTS
from scipy import stats

import bdl
from bdl.errors import ConfigError

QUICK = ["hmc", "sghmc", "ensemble", "laplace"]


def toy(loss=None, classes: bool = True) -> Problem:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=random)
    y = (x[:, 0] > 0).long() if classes else x[:, :1]
    return Problem("toy", (4,), loss or bdl.CategoricalNLL(), 1.0, (x[:30], y[:30]), (x[30:], y[30:]))


def average(problem: Problem, outputs: torch.Tensor) -> Average:
    result = Average(problem)
    result.add(outputs)
    return result


def test_classes_are_compared_by_total_variation():
    problem, outputs = toy(), torch.randn(5, 10, 2, generator=torch.Generator().manual_seed(1))
    one, two = average(problem, outputs[:2]), average(problem, outputs[2:])
    p, q = outputs[:2].softmax(-1).mean(0), outputs[2:].softmax(-1).mean(0)
    assert one.distance(two.mean) == pytest.approx((p - q).abs().sum(-1).mean().item() / 2, abs=1e-6)
    assert one.distance(one.mean) == 0
    by_hand = -p.gather(1, problem.test[1][:, None]).log().mean().item()
    assert one.nll == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.parametrize("loss, outputs", [(bdl.GaussianNLL(0.3), 1), (bdl.HeteroscedasticNLL("softplus"), 2)])
def test_numbers_are_compared_by_the_distance_of_quantiles(loss, outputs: int):
    """W1 of two mixtures of normals, against scipy on draws of them. Power: .02 standard deviations of y."""
    problem, random = toy(loss, classes=False), torch.Generator().manual_seed(1)
    values = 0.5 * torch.randn(6, 10, outputs, generator=random)
    ours = average(problem, values[:3]).distance(average(problem, values[3:]).mean)
    torch.manual_seed(0)
    drawn = loss.distribution(values).sample(torch.Size([20_000]))[..., 0].numpy()  # (draws, 6, 10)
    pairs = [stats.wasserstein_distance(drawn[:, :3, i].ravel(), drawn[:, 3:, i].ravel()) for i in range(10)]
    assert ours == pytest.approx(np.mean(pairs), abs=0.01) and ours > 0.1
    assert GRID[1] - GRID[0] < 0.1


@pytest.mark.parametrize("steps, kept", [(1000, 100), (20, 100), (21, 4)])
def test_draws_come_from_the_second_half(steps: int, kept: int):
    chosen = draws(steps, kept)
    assert steps // 2 <= min(chosen) and max(chosen) < steps and len(chosen) <= kept
    assert draws(100, 10, lambda k: k % 25 >= 20) <= {*range(70, 75), *range(95, 100)}


def test_a_pass_sees_every_item_once():
    problem = toy()
    full = Recipe(lambda n: bdl.HMC(adapt_steps=n // 3), gradients=10)
    assert full.steps(problem, 1000) == 100
    assert Recipe(lambda n: bdl.SGHMC()).steps(problem, 300) == 300  # 30 items are one batch
    assert Recipe(lambda n: bdl.MCLMC(), gradients=2, train=0.4).steps(problem, 100) == 30


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if name != "nuts"])
def test_every_method_gives_predictions(name: str):
    problem = toy()
    result, seconds = METHODS[name].run(problem, 60, 0)
    assert result.count > 0 and seconds > 0
    torch.testing.assert_close(result.mean.sum(-1), torch.ones(10, dtype=torch.float64))
    assert 0 < result.nll < 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("blackjax") is None, reason="blackjax is not installed")
def test_nuts_samples_the_posterior_that_bdl_samples():
    """On a linear regression, whose posterior both must find: the NLL of averages agrees.

    In a process of its own, because JAX's threads do not survive the forks that other tests make.
    """
    code = "import test_leaderboard; print(test_leaderboard.nuts_and_hmc())"
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, [SCRIPTS, here, here.parent / "helpers"]))
    environment = {**os.environ, "PYTHONPATH": paths}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert float(result.stdout) < 0.02


def nuts_and_hmc() -> float:
    """The distance of their averages on a linear regression."""
    problem = toy(bdl.GaussianNLL(0.3), classes=False)
    theirs, _ = METHODS["nuts"].run(problem, 20_000, 0)
    ours, _ = METHODS["hmc"].run(problem, 20_000, 0)
    return ours.distance(theirs.mean)


def test_the_quick_form_writes_all_and_goes_on_where_it_stopped(tmp_path, capsys):
    def run(*words: str) -> dict:
        leaderboard.main(quick=True, out=tmp_path, methods=words)
        return json.loads((tmp_path / "leaderboard.json").read_text())

    first = run(*QUICK[:2])
    assert (tmp_path / "leaderboard.png").stat().st_size > 10_000
    runs = first["problems"]["diabetes"]["runs"]
    assert [r["method"] for r in runs] == QUICK[:2] and all(r["distance"] > 0 for r in runs)
    assert first["device"] and first["date"] and first["bdl"]
    reference = first["problems"]["diabetes"]["reference"]
    assert {"hmc", "mclmc", "kernel", "between"} == set(reference)
    second = run(*QUICK)["problems"]["diabetes"]
    assert second["runs"][:2] == runs and second["reference"] == reference
    assert [r["method"] for r in second["runs"]] == QUICK[:3]  # laplace-torch has no likelihood with a predicted scale
    text = capsys.readouterr().out
    assert "| deep ensemble of 8 | no posterior |" in text and "which lie" in text


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="unknown 'hmcc'"):
        leaderboard.main("diabetes", methods=["hmcc"])


def test_the_table_ranks_by_the_longest_run():
    def runs(method: str, *distances: float) -> list[dict]:
        return [
            {"method": method, "passes": 10**i, "seed": 0, "distance": d, "nll": 0.5, "core_seconds": 3.0**i}
            for i, d in enumerate(distances)
        ]

    kernel = {"chains": 2, "passes": 100, "rhat": 1.004, "ess": 900.0, "nll": 0.4}
    failed = [
        {"method": "psgld", "passes": n, "seed": 0, "distance": None, "nll": None, "core_seconds": None}
        for n in (1, 10)
    ]
    entry = {
        "title": "a problem", "reference": {"hmc": kernel, "mclmc": kernel, "kernel": "hmc", "between": 0.001},
        "runs": [*runs("hmc", 0.3, 0.02), *runs("sghmc", 0.1, 0.05), *runs("swag", 0.2),
                 {**failed[1], "method": "swag"}, *runs("nuts", 0.9, 0.4, 0.01), *failed],
    }  # fmt: skip
    assert curves(entry)["hmc"] == [(1.0, 0.3, 0.5), (3.0, 0.02, 0.5)] and "psgld" not in curves(entry)
    text = table({"problems": {"a": entry}})
    assert text.index(f"| HMC | {EXACT} |") < text.index("| SGHMC |")
    assert "R-hat 1.004" in text and "0.0010 apart" in text
    assert "| SWAG (longer runs failed) |" in text and "| pSGLD | batches | – | failed |" in text
    assert "0.4000" in text and "0.0100" not in text  # ten passes are the most that every method was tried with


def test_the_line_of_a_family_goes_through_the_nearest_runs():
    runs = [(3.0, 0.1, "slow and near"), (1.0, 0.5, "quick"), (2.0, 0.6, "worse than quick")]
    assert nearest(runs) == [runs[1], runs[0]]
