"""The frame of the experiments: files appear whole or not at all, tables are Markdown, bad input gets one line."""

import json
import math

import numpy as np
import pytest
import torch
from literature import MODULES, REGISTRY, Context, Experiment, Result, Table, reproduce
from literature.output import markdown, plain
from matplotlib.figure import Figure
from running import refusal


def tiny(context: Context) -> Result:
    figure = Figure((2, 1))
    figure.subplots().plot([0, 1], [0, context.choose(2, 1)])
    values = list(context.track(range(3), "counting"))
    table = Table("A | B", ["published", "ours"], [["1.0 | 2.0", "1.1"]], "The rest was never published.")
    return Result({"line": figure}, [table], {"values": torch.tensor(values), "gap": math.nan, "never": math.inf})


def broken(context: Context) -> Result:
    result = tiny(context)
    result.numbers["what"] = object()  # not JSON; writing fails after the pictures
    return result


@pytest.fixture
def registered(monkeypatch):
    for name, run in (("tiny", tiny), ("broken", broken)):
        monkeypatch.setitem(REGISTRY, name, Experiment(name, "nobody 2024", f"The {name} one", run))


def test_an_experiment_leaves_pictures_table_and_numbers(registered, script, tmp_path):
    status, out, err = script("tiny", "--quick", "--seed", "3", "--out", str(tmp_path))
    assert (status, err) == (0, [])
    assert "| 1.0 \\| 2.0 | 1.1 |" in out
    folder = tmp_path / "tiny"
    assert sorted(p.name for p in folder.iterdir()) == ["line.png", "results.json", "table.md"]
    assert (folder / "line.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((folder / "results.json").read_text())
    assert (record["quick"], record["seed"], record["threads"]) == (True, 3, torch.get_num_threads())
    assert record["numbers"] == {"values": [0, 1, 2], "gap": None, "never": "inf"}
    assert {"git_commit", "versions", "seconds", "source"} <= set(record)
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
    refusal(script("tiny", "--out", str(tmp_path)))
    assert {p: p.read_bytes() for p in (tmp_path / "tiny").iterdir()} == before
    assert script("broken", "--out", str(tmp_path))[0] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["tiny"]


def test_a_second_run_replaces_the_first(registered, tmp_path):
    for quick in (True, False):
        reproduce(REGISTRY["tiny"], Context(quick, 0), tmp_path)
    assert json.loads((tmp_path / "tiny" / "results.json").read_text())["quick"] is False


def test_plain_values_are_json():
    given = {"a": np.float64(1.5), "b": (np.arange(2), torch.tensor(2.0)), 3: -math.inf, "d": "x", "e": np.bool_(True)}
    assert plain(given) == {"a": 1.5, "b": [[0, 1], 2.0], "3": "-inf", "d": "x", "e": True}
    json.dumps(plain(given), allow_nan=False)


def test_list_names_every_experiment(script):
    status, out, err = script("--list")
    assert (status, err) == (0, [])
    assert all(name in out for name in REGISTRY)


def test_every_module_registers_an_experiment():
    homes = {experiment.run.__module__.rpartition(".")[2] for experiment in REGISTRY.values()}
    assert homes == set(MODULES)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nope",), "no experiment is called 'nope'; choose one of "),
        ((), "name the experiments to run"),
        (("tiny", "--all"), "name the experiments to run"),
        (("tiny", "nope"), "no experiment is called 'nope'"),
    ],
)
def test_bad_names_get_one_line(registered, script, tmp_path, arguments, message):
    assert refusal(script(*arguments, "--out", str(tmp_path))).startswith(f"bdl: {message}")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_gets_one_line_before_run(registered, script, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setitem(REGISTRY, "tiny", Experiment("tiny", "", "", lambda context: pytest.fail("it ran")))
    assert "choose another --out" in refusal(script("tiny", "--out", str(tmp_path / "file")))


@pytest.mark.slow
def test_quick_runs_leave_pictures_and_tables(script, tmp_path):
    """A network, chains on a known law, and a quadrature; `--all --quick` runs the rest the same way."""
    names = ["bbb-regression", "gaussians-1", "landscapes"]
    status, out, err = script(*names, "--quick", "--out", str(tmp_path))
    assert (status, err) == (0, []), out[-2000:]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert all(list((tmp_path / name).glob("*.png")) for name in names)
    for name in names:
        assert (tmp_path / name / "table.md").read_text().startswith(f"# {REGISTRY[name].title}")
