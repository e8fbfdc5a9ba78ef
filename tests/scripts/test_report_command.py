"""bdl report: methods side by side, means over seeds computed by hand, and runs that are not compared."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from running import refusal

NLL = [0.20, 0.23, 0.21]
BASE = {"chains": 8, "sampler": {"lr": 0.15, "temperature": 0.2, "seed": 0}, "data": {"val_fraction": 0.0}}


def written(
    folder: Path,
    name: str,
    seed: int,
    nll: float,
    *,
    settings: dict | None = None,
    data: dict | None = None,
    **more: float,
) -> Path:
    """A finished run, as far as the command reads it."""
    scores = {"nll": nll, "accuracy": 0.9 + nll / 10, "ece": 0.02}
    metrics = {f"test/bma/{k}": v for k, v in scores.items()} | {"test/one_sample/nll": nll + 0.1}
    metrics |= {"test/constant/nll": 1.75, "temperature": 0.0, "samples": 8, "chains": 8, **more}
    config = OmegaConf.merge(
        BASE, settings or {}, {"seed": seed, "stack": 0, "provenance": {"name": name, "git_commit": "x"}}
    )
    config.sampler.seed = seed
    (folder / "samples").mkdir(parents=True)
    target = {"data": {"_target_": "bdl.data.LandsatDataModule", "val_fraction": 0.0, "split_seed": 0, **(data or {})}}
    (folder / "samples" / "target.json").write_text(json.dumps(target))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "timing.json").write_text(json.dumps({"seconds": 10.0 + seed}))
    OmegaConf.save(config, folder / "config.yaml")
    return folder


@pytest.fixture
def runs(tmp_path) -> list[str]:
    start = {"test/start/nll": 0.3, "test/start/accuracy": 0.88, "test/start/ece": 0.05, "start/members": 8.0}
    ours = [written(tmp_path / f"a{i}", "landsat-mlp-awsghmc", i, nll) for i, nll in enumerate(NLL)]
    swag = written(tmp_path / "swag", "landsat-mlp-swag", 0, 0.25, data={"val_fraction": 0.1}, approximation=1.0)
    other = written(tmp_path / "b", "landsat-mlp-awsghmc", 0, 0.4, settings={"sampler": {"lr": 0.5}}, **start)
    return [str(run) for run in (*ours, swag, other)]


@pytest.mark.filterwarnings("default::bdl.errors.BdlWarning")
def test_altered_metrics_are_warned_of_and_a_damaged_timing_is_named(runs, tmp_path, script):
    (Path(runs[0]) / "checksums.json").write_text(json.dumps({"metrics.json": "0" * 64}))
    status, _, err = script("report", f"runs=[{','.join(runs)}]", f"out={tmp_path / 'out'}")
    assert status == 0 and any("metrics.json was altered" in line for line in err)
    (Path(runs[0]) / "checksums.json").unlink()
    for content in ("[", "[1]", '{"seconds": "long"}'):
        (Path(runs[1]) / "timing.json").write_text(content)
        assert "timing.json is damaged" in refusal(script("report", f"runs=[{','.join(runs)}]"))


def test_one_row_a_method_with_mean_and_standard_error_over_seeds(runs, tmp_path, script):
    status, out, err = script("report", f"runs=[{','.join(runs)}]", f"out={tmp_path / 'out'}")
    assert status == 0, err
    content = json.loads((tmp_path / "out" / "comparison.json").read_text())
    methods = {m["method"]: m for m in content["methods"]}
    assert list(methods) == [
        "awsghmc (sampler.lr=0.15)", "swag", "awsghmc (sampler.lr=0.5)",
        "awsghmc (sampler.lr=0.5): its start, a deep ensemble of 8",
    ]  # fmt: skip
    ours = methods["awsghmc (sampler.lr=0.15)"]
    score = ours["scores"]["NLL (nats)"]
    assert score["mean"] == pytest.approx(statistics.mean(NLL)) and score["of_runs"] == NLL
    assert score["standard_error"] == pytest.approx(statistics.stdev(NLL) / 3**0.5)
    assert ours["scores"]["error %"]["mean"] == pytest.approx(100 - 90 - statistics.mean(NLL) * 10)
    assert ours["seconds"] == [10, 11, 12] and ours["seeds"] == 3
    assert methods["swag"]["scores"]["NLL (nats)"]["standard_error"] is None
    start = methods["awsghmc (sampler.lr=0.5): its start, a deep ensemble of 8"]
    assert start["scores"]["NLL (nats)"]["mean"] == 0.3 and start["verdict"] == "–" and start["seconds"] == []
    assert ours["verdict"] == "wrong law"  # T = 0 in these metrics
    table = (tmp_path / "out" / "comparison.md").read_text().splitlines()
    assert len(table) == 6 and "| **0.2133 ± 0.0088** |" in table[2] and "awsghmc" in out
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "The smallest NLL is that of awsghmc (sampler.lr=0.15), 0.0367 nats below swag." in page
    assert page.count("<tr>") == 5 and not re.search(r"https?://|<script", page)


def test_a_pattern_names_runs_and_their_folder_takes_the_page(runs, tmp_path, script):
    status, _, err = script("report", f"runs='{tmp_path}/a*'")
    assert status == 0, err
    assert len(json.loads((tmp_path / "a0" / "comparison" / "comparison.json").read_text())["runs"]) == 3


def test_one_run_stands_alone(runs, tmp_path, script):
    assert script("report", f"runs={runs[0]}", f"out={tmp_path / 'out'}")[0] == 0


@pytest.mark.parametrize("change", ["split", "labels", "numbers", "unfinished", "twice", "seed", "none", "nowhere"])
def test_runs_that_are_not_compared_are_refused_in_one_line(runs, tmp_path, script, change):
    other, wanted = tmp_path / "other", ""
    if change == "split":
        written(other, "x", 0, 0.2, data={"split_seed": 1})
        wanted = f"runs on different data are not compared: split_seed is 0 in {runs[0]}, 1 in {other}"
    elif change == "labels":
        written(other, "x", 0, 0.2, **{"test/constant/nll": 1.7})
        wanted = f"test/constant/nll is 1.75 in {runs[0]}, 1.7 in {other}"
    elif change == "numbers":
        written(other, "x", 0, 0.2, **{"test/bma/rmse": 1.0})
        wanted = "one predicts classes, the other numbers"
    elif change == "unfinished":
        (written(other, "x", 0, 0.2) / "metrics.json").unlink()
        wanted = f"{other} has no metrics.json: finish the run first"
    elif change == "twice":
        other, wanted = Path(runs[0]), f"{runs[0]} is given twice"
    elif change == "seed":
        written(other, "landsat-mlp-awsghmc", 0, 0.2)
        wanted = f"{other} has the seed of another run"
    elif change == "none":
        other, wanted = Path(f"{tmp_path}/zzz*"), "names no run directory"
    else:
        wanted = f"{other} is not a run directory"
    first = [] if change == "none" else [runs[0]]
    quoted = ",".join(f"'{run}'" for run in [*first, other])
    line = refusal(script("report", f"runs=[{quoted}]", f"out={tmp_path / 'out'}"))
    assert wanted in line and not (tmp_path / "out").exists()


def test_predictions_of_numbers_need_one_training_split_because_it_decides_the_units(tmp_path, script):
    scores = {"test/bma/rmse": 0.5, "test/bma/coverage_90": 0.88}
    a = written(tmp_path / "a", "csv-mlp-sghmc", 0, 0.2, **scores)
    b = written(tmp_path / "b", "csv-mlp-swag", 0, 0.3, **scores, data={"val_fraction": 0.1})
    assert "val_fraction is 0.0" in refusal(script("report", f"runs=[{a},{b}]", f"out={tmp_path / 'out'}"))
    c = written(tmp_path / "c", "csv-mlp-swag", 0, 0.3, **scores)
    assert script("report", f"runs=[{a},{c}]", f"out={tmp_path / 'out'}")[0] == 0
    table = (tmp_path / "out" / "comparison.md").read_text()
    assert "in 90 % interval, %" in table and "| 0.5000 |" in table and "88.0" in table
