"""The experiments' frame: files appear whole or not at all, tables are Markdown, bad input gets one line."""

from __future__ import annotations

import json
import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from literature import MODULES, REGISTRY, Context, Experiment, Result, Table, reproduce
from literature.energies import Wells, bounded_log, fixed_point
from literature.functions import (
    METHODS,
    Job,
    Phase,
    Plan,
    best,
    build,
    decided,
    race,
    race_all,
    tune_and_report,
)
from literature.output import markdown, plain
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from bdl.run.directory import write_metrics
from bdl.targets import PUBLISHED, GaussianLaw, SumSquares, gradient, integrate

SCRIPT = Path(__file__).parents[1] / "scripts" / "reproduce.py"
CHEAP = ("landscapes",)
DESCENT = METHODS[0]


@pytest.fixture
def script(monkeypatch, capsys):
    """Runs the script as its command line would, in this process: (exit status, stdout, lines on stderr)."""

    def run(*arguments: str) -> tuple[int, str, list[str]]:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        capsys.readouterr()
        status = 0
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        except SystemExit as error:
            status = error.code
        out, err = capsys.readouterr()
        return status, out, [line for line in err.splitlines() if line.strip()]

    return run


def tiny(context: Context) -> Result:
    figure = Figure((2, 1))
    figure.subplots().plot([0, 1], [0, context.choose(2, 1)])
    values = list(context.track(range(3), "counting"))
    table = Table("A | B", ["published", "ours"], [["1.0 | 2.0", "1.1"]], "The rest was never published.")
    return Result({"line": figure}, [table], {"values": torch.tensor(values), "gap": math.nan, "never": math.inf})


def broken(context: Context) -> Result:
    result = tiny(context)
    result.numbers["what"] = object()  # not JSON, found after the pictures are written
    return result


@pytest.fixture
def registered(monkeypatch):
    for name, run in (("tiny", tiny), ("broken", broken)):
        monkeypatch.setitem(REGISTRY, name, Experiment(name, "nobody 2024", f"The {name} one", run))


# ---- the frame -------------------------------------------------------------------------------------------------------


def test_an_experiment_leaves_pictures_table_and_numbers(registered, script, tmp_path):
    status, out, err = script("tiny", "--quick", "--seed", "3", "--out", str(tmp_path))
    assert (status, err) == (0, [])
    assert "| 1.0 \\| 2.0 | 1.1 |" in out
    folder = tmp_path / "tiny"
    assert sorted(p.name for p in folder.iterdir()) == ["line.png", "results.json", "table.md"]
    assert (folder / "line.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((folder / "results.json").read_text())
    assert (found["quick"], found["seed"], found["threads"]) == (True, 3, torch.get_num_threads())
    assert found["numbers"] == {"values": [0, 1, 2], "gap": None, "never": "inf"}
    assert {"git_commit", "versions", "seconds", "source"} <= set(found)
    assert [p.name for p in tmp_path.iterdir()] == ["tiny"]


def test_a_table_is_markdown():
    table = Table("Errors", ["a", "b"], [["1|2", "3\n4"], ["", "x"]], "Note.")
    assert markdown(table) == "## Errors\n\n| a | b |\n| --- | --- |\n| 1\\|2 | 3 4 |\n|  | x |\n\nNote."
    with pytest.raises(ValueError, match="2 cells, the header 1"):
        Table("Errors", ["a"], [["1", "2"]])


def test_a_failure_leaves_the_last_good_results_alone(registered, script, tmp_path):
    assert script("tiny", "--out", str(tmp_path))[0] == 0
    REGISTRY["tiny"] = Experiment("tiny", "nobody 2024", "broken now", broken)
    before = {p: p.read_bytes() for p in (tmp_path / "tiny").iterdir()}
    status, _, err = script("tiny", "--out", str(tmp_path))
    assert (status, len(err)) == (1, 1)
    assert {p: p.read_bytes() for p in (tmp_path / "tiny").iterdir()} == before
    assert script("broken", "--out", str(tmp_path))[0] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["tiny"]


def test_a_second_run_replaces_the_first(registered, tmp_path):
    for quick in (True, False):
        reproduce(REGISTRY["tiny"], Context(quick, 0), tmp_path)
    assert json.loads((tmp_path / "tiny" / "results.json").read_text())["quick"] is False


def test_plain_is_what_json_can_hold():
    given = {"a": np.float64(1.5), "b": (np.arange(2), torch.tensor(2.0)), 3: -math.inf, "d": "x", "e": np.bool_(True)}
    assert plain(given) == {"a": 1.5, "b": [[0, 1], 2.0], "3": "-inf", "d": "x", "e": True}
    json.dumps(plain(given), allow_nan=False)


# ---- the command line ------------------------------------------------------------------------------------------------


def test_list_names_every_experiment(script):
    status, out, err = script("--list")
    assert (status, err) == (0, [])
    assert all(name in out for name in REGISTRY)


def test_every_module_is_there_and_registers_something():
    homes = {experiment.run.__module__.rpartition(".")[2] for experiment in REGISTRY.values()}
    assert homes == set(MODULES)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("nope",), "no experiment is called 'nope'; there are "),
        ((), "name the experiments to run"),
        (("tiny", "--all"), "name the experiments to run"),
        (("tiny", "nope"), "no experiment is called 'nope'"),
    ],
)
def test_bad_names_get_one_line(registered, script, tmp_path, arguments, said):
    status, _, err = script(*arguments, "--out", str(tmp_path))
    assert (status, len(err)) == (1, 1)
    assert err[0].startswith(f"bdl: {said}")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_gets_one_line_before_the_run(registered, script, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setitem(REGISTRY, "tiny", Experiment("tiny", "", "", lambda context: pytest.fail("it ran")))
    status, _, err = script("tiny", "--out", str(tmp_path / "file"))
    assert (status, len(err)) == (1, 1)
    assert "choose another --out" in err[0]


# ---- experiments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHEAP)
def test_a_cheap_experiment_runs(script, tmp_path, name):
    status, _, err = script(name, "--quick", "--out", str(tmp_path))
    assert (status, err) == (0, [])
    assert (tmp_path / name / "table.md").read_text().startswith(f"# {REGISTRY[name].title}")


def test_the_wells_have_the_gradient_of_their_energy():
    x = torch.linspace(-5, 5, 40, dtype=torch.float64)[:, None]
    assert torch.allclose(Wells().grad(x), gradient(Wells(), x))


def test_the_fixed_point_is_the_energy_cdf_for_zeta_one():
    """To .01 with 40 bins: what linear interpolation leaves; for ζ = 2 it must miss G^(1/ζ) by more than .1."""
    law = integrate(GaussianLaw([0.0], [[1.0]]), -9, 9, 100_000)
    edges = np.linspace(0, 6, 41)
    truth = law.energy_cdf(edges[1:]).numpy()
    truth[-1] = 1  # the top bin holds all above
    assert np.abs(fixed_point(law, edges, 1.0) - truth).max() < 0.01
    assert np.abs(fixed_point(law, edges, 2.0) - truth**0.5).max() > 0.1
    assert bounded_log(np.array([1e-9, 0.5, 1.0])) == pytest.approx([-1 + math.log(0.5), math.log(0.5), 0])


def test_a_race_finds_the_iterations_of_descent_exactly():
    """Sum of squares, descent without noise: f after k steps is known, and so is the first k below the threshold."""
    settings = replace(PUBLISHED["sum_squares"], start=(-5, 10), threshold=1.5)
    start = settings.draw(3, 20, torch.Generator().manual_seed(0))
    lanes = [(DESCENT, 1.0), (DESCENT, 100.0)]  # the second one diverges
    chains = build(SumSquares(20), settings, lanes, start, seed=0)
    chains._std = None  # no gradient noise
    found = race(chains, settings, [DESCENT] * 2, Phase("", 500, 3))
    i = torch.arange(1, 21, dtype=torch.float64)
    below = torch.stack([(i * ((1 - 0.02 * i) ** k * start) ** 2).sum(1) < 1.5 for k in range(500)])
    assert torch.equal(found[0], below.double().argmax(0).double())
    assert found[1].isinf().all()


def test_the_best_lr_counts_failures_as_the_cap():
    trials = {(DESCENT, 1.0): torch.tensor([10.0, math.inf]), (DESCENT, 3.0): torch.tensor([40.0, 50.0])}
    assert best(DESCENT, trials, cap=100) == 3.0
    assert best(DESCENT, {(DESCENT, f): torch.tensor([math.inf]) for f in (0.3, 1.0, 3.0)}, cap=100) == 1.0


def test_a_race_is_decided_only_when_nobody_can_overtake():
    iterations, running = torch.tensor([5.0, 7.0, math.inf, 2.0]), torch.tensor([False, False, True, False])
    phase = Phase("", 100, 2)
    assert not decided(iterations, running, [DESCENT] * 2, phase, 6)  # the second lane could come in at (6 + 2) / 2
    assert decided(iterations, running, [DESCENT] * 2, phase, 11)


def test_tuning_and_report_have_starts_of_their_own_and_repeat_exactly():
    plan = Plan((3.0,), Phase("tuning", 40, 2), Phase("report", 40, 2))
    job, lanes = Job("sum_squares", plan, 0), [(m, 3.0) for m in METHODS]
    tuning, report = (race_all(job, lanes, phase) for phase in (plan.tuning, plan.report))
    assert all(not torch.equal(tuning[lane], report[lane]) for lane in lanes)
    again = tune_and_report(job)
    assert set(again) == {m.name for m in METHODS}
    assert all(torch.equal(again[m.name][1], report[m, factor]) for m, factor in lanes)


# ---- runs that have ended --------------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path):
    """Two seeds of 500 epochs and one of 3 of one cell, a run of other data, and one that has not ended."""

    def run(folder: str, name: str, epochs: int, seed: int, accuracy: float | None) -> None:
        path = tmp_path / folder
        path.mkdir()
        about = {"name": name, "device": "abacus"}
        data = {"batch_size": 256, "root": "elsewhere"}
        described = {"seed": seed, "data": data, "trainer": {"max_epochs": epochs}, "provenance": about}
        OmegaConf.save(OmegaConf.create(described), path / "config.yaml")
        if accuracy is not None:
            scores = {"test/one_sample/accuracy": 0.5, "test/bma/accuracy": accuracy, "test/bma/nll": 0.25}
            write_metrics(path / "metrics.json", {**scores, "samples": 100})

    run("a", "cifar10/decay_sghmc", 500, 0, 0.92)
    run("b", "cifar10/decay_sghmc", 500, 1, 0.94)
    run("c", "cifar10/decay_sghmc", 3, 0, 0.25)
    run("d", "cifar100/decay_sghmc", 500, 0, 0.11)
    run("e", "cifar10/fixed_msgd", 500, 0, None)
    return tmp_path


def test_ended_runs_make_the_table(finished, script, tmp_path):
    status, out, err = script("cifar10", "--runs", str(finished), "--epochs", "500", "--out", str(tmp_path / "out"))
    assert (status, err) == (0, [])
    assert (
        "| lr falls | SGHMC | 90.79 | 93.07 | 50.00 ± 0.00 | 93.00 ± 1.00 | 0.250 ± 0.000 | 100 | 500 | 0, 1 | abacus |"
        in out
    )
    assert "| lr, T fixed | M-SGD | 90.10 | 92.79 | – | – | – | – | – | – | – |" in out
    assert "25.00" not in out and "11.00" not in out
    assert {p.suffix for p in (tmp_path / "out" / "cifar10").iterdir()} == {".png", ".md", ".json"}
    found = json.loads((tmp_path / "out" / "cifar10" / "results.json").read_text())["numbers"]["decay_sghmc"]
    assert [run["config"]["data"] for run in found] == [{"batch_size": 256}] * 2
    _, out, _ = script("cifar10", "--runs", str(finished / "c"), str(finished / "a"), "--out", str(tmp_path / "out"))
    assert "| 58.50 ± 33.50 | 0.250 ± 0.000 | 100 | 3, 500 | 0 | abacus |" in out


def test_readme_shows_the_table_that_is_committed():
    root = Path(__file__).parents[1]
    table = (root / "scripts" / "results" / "reproduce" / "cifar10" / "table.md").read_text()
    ended = [line for line in table.splitlines() if line.startswith("|") and " – " not in line]
    assert len(ended) > 2 and "\n".join(ended) in (root / "README.md").read_text()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["cifar10"], "no run that has ended of experiment=cifar10/... in no folder"),
        (["cifar100", "--epochs", "7"], "runs of [500] epochs, none of 7"),
    ],
)
def test_no_ended_runs_are_named(finished, script, tmp_path, arguments, words):
    runs = ["--runs", str(finished)] if "--epochs" in arguments else []
    status, _, err = script(*arguments, *runs, "--out", str(tmp_path / "out"))
    assert status == 1 and len(err) == 1 and words in err[0]
    assert not (tmp_path / "out" / arguments[0]).exists()


@pytest.mark.slow
def test_quick_runs_leave_pictures_and_tables(script, tmp_path):
    """One experiment of each kind; `--all --quick` runs the rest the same way."""
    names = ["bbb-regression", "gaussians-1", "landscapes"]
    status, out, _ = script(*names, "--quick", "--out", str(tmp_path))
    assert status == 0, out[-2000:]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert all(list((tmp_path / name).glob("*.png")) for name in names)
