"""The results of a sweep in one table: rows of equal settings, means and standard errors over seeds."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from running import refusal

from bdl.run.sweep_table import Run, arrange, count_of, mean_and_error

METRICS = {"test/bma/nll": 0.25, "test/bma/accuracy": 0.9, "t_eff": 0.3, "temperature": 0.2, "samples": 8, "chains": 2}


def write_run(folder: Path, seed: int, nll: float | None, name: str = "landsat-mlp-sghmc", **settings) -> None:
    """A run directory, with the settings `sampler__lr=0.1` and so on."""
    config = {
        "seed": seed,
        "stack": 0,
        "length": 100,
        "model": {"sizes": [36, 6]},
        "sampler": {"lr": 0.1, "seed": seed},
    }
    for key, value in settings.items():
        *sections, last = key.split("__")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        yaml.safe_dump(config | {"provenance": {"name": name, "config_hash": str(folder)}})
    )
    if nll is not None:
        (folder / "metrics.json").write_text(json.dumps(METRICS | {"test/bma/nll": nll}))
        (folder / "report.html").write_text("")


@pytest.fixture
def sweep(tmp_path):
    """Two step sizes, three seeds; one run has not finished."""
    for seed, low, high in ((0, 0.2, 0.5), (1, 0.3, 0.7), (2, 0.7, None)):
        write_run(tmp_path / "a" / f"{seed}-low", seed, low)
        write_run(tmp_path / "a" / f"{seed} high&", seed, high, sampler__lr=0.3, schedule__lr=0.3)
    return tmp_path


def test_means_and_standard_errors_over_seeds(sweep, script):
    status, out, err = script("gather", f"folder={sweep}")
    assert status == 0 and not err
    table = pd.read_csv(sweep / "sweep.csv")
    assert list(table.columns[:3]) == ["sampler.lr", "runs", "finished"]
    assert list(table["sampler.lr"]) == [0.1, 0.3] and list(table["finished"]) == [3, 2]
    low, high = [0.2, 0.3, 0.7], [0.5, 0.7]
    assert table["test/bma/nll"].tolist() == pytest.approx([np.mean(low), np.mean(high)])
    errors = [np.std(low, ddof=1) / math.sqrt(3), np.std(high, ddof=1) / math.sqrt(2)]
    assert table["test/bma/nll s.e."].tolist() == pytest.approx(errors)
    assert "0.40 ± 0.15" in out and "2 of 3" in out


def test_every_run_has_its_verdict_and_a_link(sweep, script):
    out = sweep / "out"
    assert script("gather", f"folder={sweep}", f"out={out}")[0] == 0
    runs = pd.read_csv(out / "runs.csv")
    assert list(runs["seed"]) == [0, 1, 2, 0, 1, 2]
    assert list(runs["verdict"]) == ["not mixing"] * 0 + ["wrong law"] * 5 + ["not finished"]
    text = (out / "sweep.html").read_text()
    links = re.findall('href="([^"]*)"', text)
    assert "../a/0%20high%26/report.html" in links and len(links) == 5
    assert "With sampler.lr change: schedule.lr." in text and "<script" not in text


def run(name: str = "x", seed: int = 0, **settings) -> Run:
    return Run(Path(name), seed, {"name": name, **settings}, {"m": float(seed)}, None)


def test_what_the_name_decides_is_no_column():
    """The name of a sampler stands for its settings; what differs under one name is a column of its own."""
    runs = [run("sgd", friction=1.0, lr=0.1), run("sghmc", friction=0.1, lr=0.1), run("sghmc", friction=0.1, lr=0.2)]
    runs.append(run("awsghmc", friction=0.1, lr=0.1))
    sweep = arrange(runs, ["m"])
    assert sweep.columns == ["name", "lr"] and sweep.follows == {}
    settings = [tuple(row.settings) for row in sweep.rows]
    assert settings == [("awsghmc", "0.1"), ("sgd", "0.1"), ("sghmc", "0.1"), ("sghmc", "0.2")]


def test_rows_are_sorted_by_the_size_of_numbers_and_absent_settings_are_shown():
    runs = [run(lr=10.0), run(lr=9.0), run(lr=9.0, clip=1), run(lr=9.0, seed=4)]
    sweep = arrange(runs, ["m"])
    assert [tuple(row.settings) for row in sweep.rows] == [("9", "1"), ("9", "–"), ("10", "–")]
    assert [count_of(row) for row in sweep.rows] == ["1", "2", "1"]
    assert sweep.rows[1].mean["m"] == 2 and sweep.rows[1].error["m"] == 2


def test_runs_on_changed_data_are_no_replicas(tmp_path, script):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), seed, 0.2)
        (tmp_path / str(seed) / "samples").mkdir()
        (tmp_path / str(seed) / "samples" / "target.json").write_text(json.dumps({"data": {"rows": f"hash {seed}"}}))
    assert script("gather", f"folder={tmp_path}")[0] == 0
    assert list(pd.read_csv(tmp_path / "sweep.csv")["data: rows"]) == ["hash 0", "hash 1"]


@pytest.mark.parametrize(
    ("mean", "error", "shown"),
    [
        (0.20341, 0.00213, "0.2034 ± 0.0021"),
        (123.4, 15.0, "123 ± 15"),
        (0.5, math.nan, "0.5"),
        (math.nan, math.nan, "–"),
        (1.0, 0.0, "1.0000 ± 0.0000"),
    ],
)
def test_a_mean_has_two_digits_of_its_error(mean, error, shown):
    assert mean_and_error(mean, error) == shown


@pytest.mark.filterwarnings("default::bdl.errors.BdlWarning")
def test_a_copied_run_is_no_second_seed(tmp_path, script):
    write_run(tmp_path / "a", 0, 0.2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    write_run(tmp_path / "c", 1, 0.4)
    status, _, err = script("gather", f"folder={tmp_path}")
    assert status == 0 and any("b is a copy of" in line for line in err)
    assert list(pd.read_csv(tmp_path / "sweep.csv")["runs"]) == [2]


@pytest.mark.filterwarnings("default::bdl.errors.BdlWarning")
def test_altered_metrics_are_warned_of(tmp_path, script):
    write_run(tmp_path / "a", 0, 0.2)
    (tmp_path / "a" / "checksums.json").write_text(json.dumps({"metrics.json": "0" * 64}))
    status, _, err = script("gather", f"folder={tmp_path}")
    assert status == 0 and any("metrics.json was altered" in line for line in err)


def test_a_strangers_run_does_not_read_the_environment(tmp_path, script, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret")
    write_run(tmp_path / "a", 0, 0.2, sampler__lr="${oc.env:MY_TOKEN}")
    assert "is an interpolation, which no run records" in refusal(script("gather", f"folder={tmp_path}"))
    assert not list(tmp_path.glob("*.csv"))


def test_text_of_a_stranger_stays_text(tmp_path, script):
    write_run(tmp_path / "a", 0, 0.2, sampler__lr="<img src=x>")
    write_run(tmp_path / "b", 0, 0.2, sampler__lr="[red]x")
    status, out, _ = script("gather", f"folder={tmp_path}")
    assert status == 0 and "[red]x" in out and "<img" not in (tmp_path / "sweep.html").read_text()


def test_wrong_folders_and_metrics_are_named(sweep, script):
    assert f"folder={sweep / 'none'} is no folder" in refusal(script("gather", f"folder={sweep / 'none'}"))
    (sweep / "empty").mkdir()
    assert "holds no run" in refusal(script("gather", f"folder={sweep / 'empty'}"))
    assert "folder has no value" in refusal(script("gather"))
    assert "metrics: nll is no metric" in refusal(script("gather", f"folder={sweep}", "metrics=[nll]"))
    (sweep / "a" / "0-low" / "metrics.json").write_text("{")
    assert "0-low/metrics.json is damaged" in refusal(script("gather", f"folder={sweep}"))
    assert not (sweep / "sweep.csv").exists()
