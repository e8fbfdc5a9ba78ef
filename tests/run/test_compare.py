"""Tests of `bdl.contrib.comparison.compare`, `.compared_runs`, `.comparison` and `bdl.run.spreadsheet`.

bdl compare: rows of equal settings, means over seeds computed by hand, and runs that are not compared.
"""

import json
import math
import re
import shutil
import statistics
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf
from running import done, refusal

from bdl.contrib.comparison.compare import plain
from bdl.contrib.comparison.compared_runs import ComparedRun
from bdl.contrib.comparison.comparison import compare_runs, mean_and_error
from bdl.posterior.store import SampleStore
from bdl.run.records import write_json

NLL = [0.20, 0.23, 0.21]
BASE = {"chains": 8, "sampler": {"lr": 0.15, "temperature": 0.2, "seed": 0}, "data": {"val_fraction": 0.0}}
WARNS = pytest.mark.filterwarnings("default::bdl.errors.BdlWarning")


def written(
    folder: Path,
    name: str,
    seed: int,
    nll: float | None,
    *,
    settings: dict | None = None,
    data: dict | None = None,
    **more: float,
) -> Path:
    """A run, as far as the command reads it; an unfinished one without an NLL."""
    config = OmegaConf.merge(
        BASE, settings or {}, {"seed": seed, "stack": 0, "provenance": {"name": name, "git_commit": "x"}}
    )
    config.sampler.seed = seed
    (folder / "samples").mkdir(parents=True)
    OmegaConf.save(config, folder / "config.yaml")
    target = {"data": {"_target_": "bdl.data.LandsatDataModule", "val_fraction": 0.0, "split_seed": 0, **(data or {})}}
    SampleStore(folder).write_target(target)
    if nll is not None:
        scores = {"nll": nll, "accuracy": 0.9 + nll / 10, "ece": 0.02}
        metrics = {f"test/bma/{k}": v for k, v in scores.items()} | {"test/one_sample/nll": nll + 0.1, "t_eff": 0.3}
        metrics |= {"test/constant/nll": 1.75, "temperature": 0.0, "samples": 8, "chains": 8, **more}
        write_json(folder / "metrics.json", metrics)
        (folder / "timing.json").write_text(json.dumps({"seconds": 10.0 + seed}))
        (folder / "report.html").write_text("")
    return folder


@pytest.fixture
def runs(tmp_path) -> list[str]:
    """Three seeds of one method, a baseline, and another step size whose chains began as a deep ensemble."""
    start = {"test/start/nll": 0.3, "test/start/accuracy": 0.88, "test/start/ece": 0.05, "start/members": 8.0}
    ours = [written(tmp_path / f"a{i}", "landsat-mlp-awsghmc", i, nll) for i, nll in enumerate(NLL)]
    swag = written(tmp_path / "swag", "landsat-mlp-swag", 0, 0.25, data={"val_fraction": 0.1}, approximation=1.0)
    other = written(tmp_path / "b", "landsat-mlp-awsghmc", 0, 0.4, settings={"sampler": {"lr": 0.5}}, **start)
    return [str(run) for run in (*ours, swag, other)]


@pytest.fixture
def sweep(tmp_path) -> Path:
    """Two step sizes, three seeds; one run has not finished."""
    for seed, low, high in ((0, 0.2, 0.5), (1, 0.3, 0.7), (2, 0.7, None)):
        other = {"sampler": {"lr": 0.3}, "schedule": {"lr": 0.3}}
        written(tmp_path / "a" / f"{seed}-low", "landsat-mlp-sghmc", seed, low)
        written(tmp_path / "a" / f"{seed} high&", "landsat-mlp-sghmc", seed, high, settings=other)
    return tmp_path


def compared(script, out: Path, *words: str) -> dict[str, dict]:
    """What comparison.json says of each method."""
    done(script("compare", *words, f"out={out}"))
    return {m["method"]: m for m in json.loads((out / "comparison.json").read_text())["methods"]}


def test_one_row_for_a_method_with_mean_and_standard_error(runs, tmp_path, script):
    methods = compared(script, tmp_path / "out", f"runs=[{','.join(runs)}]")
    assert list(methods) == [
        "awsghmc (sampler.lr=0.15)", "awsghmc (sampler.lr=0.5)",
        "awsghmc (sampler.lr=0.5): its start, a deep ensemble of 8", "swag",
    ]  # fmt: skip
    ours = methods["awsghmc (sampler.lr=0.15)"]
    score = ours["metrics"]["test/bma/nll"]
    assert score["mean"] == pytest.approx(statistics.mean(NLL)) and score["of_runs"] == NLL
    assert score["standard_error"] == pytest.approx(statistics.stdev(NLL) / 3**0.5)
    assert ours["metrics"]["seconds"]["of_runs"] == [10, 11, 12] and ours["runs"] == runs[:3]
    assert methods["swag"]["metrics"]["test/bma/nll"]["standard_error"] is None
    start = methods["awsghmc (sampler.lr=0.5): its start, a deep ensemble of 8"]
    assert start["metrics"]["test/bma/nll"]["mean"] == 0.3 and start["verdict"] is None
    assert start["metrics"]["seconds"]["mean"] is None
    assert ours["verdict"] == "no posterior"  # T = 0 in these metrics
    table = (tmp_path / "out" / "comparison.md").read_text().splitlines()
    assert len(table) == 6 and "| **0.2133 ± 0.0088** |" in table[2] and "| 7.867 ± 0.088 |" in table[2]
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "The smallest NLL is that of awsghmc (sampler.lr=0.15), 0.0367 nats below swag." in page
    assert page.count("<tr>") == 4 + 5 + 2 and not re.search(r"https?://|<script", page)


@WARNS
def test_the_terminal_and_the_csv_have_the_same_rows(sweep, script):
    status, out, _ = script("compare", str(sweep))
    assert status == 0 and "0.40 ± 0.15" in out and "2 of 3" in out
    table = pd.read_csv(sweep / "comparison" / "comparison.csv")
    assert list(table.columns[:4]) == ["method", "sampler.lr", "runs", "finished"]
    assert list(table["sampler.lr"]) == [0.15, 0.3] and list(table["finished"]) == [3, 2]
    low, high = [0.2, 0.3, 0.7], [0.5, 0.7]
    assert table["test/bma/nll"].tolist() == pytest.approx([statistics.mean(low), statistics.mean(high)])
    errors = [statistics.stdev(low) / math.sqrt(3), statistics.stdev(high) / math.sqrt(2)]
    assert table["test/bma/nll s.e."].tolist() == pytest.approx(errors)


@WARNS
def test_every_run_has_a_verdict_and_a_link_or_a_warning(sweep, script):
    status, _, err = script("compare", f"runs={sweep}", f"out={sweep / 'out'}")
    assert status == 0 and any("2 high&: not finished, and in no mean" in line for line in err)
    runs = pd.read_csv(sweep / "out" / "runs.csv")
    assert list(runs["seed"]) == [0, 1, 2, 0, 1, 2]
    assert list(runs["verdict"]) == ["no posterior"] * 5 + ["not finished"]
    text = (sweep / "out" / "comparison.html").read_text()
    links = re.findall('href="([^"]*)"', text)
    assert "../a/0%20high%26/report.html" in links and len(links) == 5
    assert "With sampler.lr change: schedule.lr." in text and "<script" not in text


def test_a_pattern_names_runs_and_the_first_of_them_takes_page(runs, tmp_path, script):
    done(script("compare", f"{tmp_path}/a*"))
    content = json.loads((tmp_path / "a0" / "comparison" / "comparison.json").read_text())
    assert content["methods"][0]["runs"] == runs[:3]


def test_one_run_stands_alone_and_a_run_given_twice_counts_once(runs, tmp_path, script):
    (method,) = compared(script, tmp_path / "out", runs[0], f"{tmp_path}/../{tmp_path.name}/a0").values()
    assert method["method"] == "landsat-mlp-awsghmc" and method["runs"] == runs[:1]


def test_runs_of_a_trainer_of_ones_own_are_rows_of_their_own(tmp_path, script):
    for name in ("x/a", "y/a"):
        (written(tmp_path / name, "any", 0, 0.2) / "config.yaml").unlink()
        shutil.copytree(tmp_path / name, tmp_path / name / "start")  # a folder of the run, and no run
    methods = compared(script, tmp_path / "out", str(tmp_path))
    assert list(methods) == [f"a (folder={tmp_path / name})" for name in ("x/a", "y/a")]


@pytest.mark.parametrize("change", ["split", "labels", "numbers", "none", "nowhere"])
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
    elif change == "none":
        other, wanted = Path(f"{tmp_path}/zzz*"), "holds no run"
    else:
        wanted = f"{other} is not a run directory"
    first = [] if change == "none" else [runs[0]]
    quoted = ",".join(f"'{run}'" for run in [*first, other])
    line = refusal(script("compare", f"runs=[{quoted}]", f"out={tmp_path / 'out'}"))
    assert wanted in line and not (tmp_path / "out").exists()


@WARNS
def test_runs_on_different_data_are_rows_that_nothing_ranks(tmp_path, script):
    for seed in (0, 1):
        written(tmp_path / str(seed), "x", seed, 0.2 + seed, data={"rows": f"hash {seed}"})
    status, out, err = script("compare", str(tmp_path))
    assert status == 0 and any("runs on different data: their scores are not compared: rows is" in e for e in err)
    folder = tmp_path / "comparison"
    assert list(pd.read_csv(folder / "comparison.csv")["data: rows"]) == ["hash 0", "hash 1"]
    assert "**" not in (folder / "comparison.md").read_text() and "smallest" not in out
    assert "no row is better than another" in (folder / "comparison.html").read_text()


def test_numbers_need_one_training_split_for_their_units(tmp_path, script):
    scores = {"test/bma/rmse": 0.5, "test/bma/coverage_90": 0.88}
    a = written(tmp_path / "a", "csv-mlp-sghmc", 0, 0.2, **scores)
    b = written(tmp_path / "b", "csv-mlp-swag", 0, 0.3, **scores, data={"val_fraction": 0.1})
    assert "val_fraction is 0.0" in refusal(script("compare", str(a), str(b), f"out={tmp_path / 'out'}"))
    c = written(tmp_path / "c", "csv-mlp-swag", 0, 0.3, **scores)
    compared(script, tmp_path / "out", str(a), str(c))
    table = (tmp_path / "out" / "comparison.md").read_text()
    assert "in 90 % interval, %" in table and "0.5000" in table and "88.00" in table


@WARNS
def test_a_copied_run_is_no_second_seed(tmp_path, script):
    written(tmp_path / "a", "x", 0, 0.2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    written(tmp_path / "c", "x", 1, 0.4)
    status, _, err = script("compare", str(tmp_path))
    assert status == 0 and any("b is a copy of" in line for line in err)
    assert list(pd.read_csv(tmp_path / "comparison" / "comparison.csv")["runs"]) == [2]


@WARNS
def test_altered_metrics_are_warned_of_and_damaged_timings_named(runs, tmp_path, script):
    path = Path(runs[0]) / "metrics.json"
    path.write_text(path.read_text() + " ")
    status, _, err = script("compare", *runs, f"out={tmp_path / 'out'}")
    assert status == 0 and any("metrics.json was altered" in line for line in err)
    path.write_text(path.read_text()[:-1])
    for content in ("[", "[1]", '{"seconds": "long"}'):
        (Path(runs[1]) / "timing.json").write_text(content)
        assert "timing.json is damaged" in refusal(script("compare", *runs))


def test_a_strangers_run_does_not_read_the_environment(tmp_path, script, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret")
    config = written(tmp_path / "a", "x", 0, 0.2) / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.15", "lr: ${oc.env:MY_TOKEN}"))
    assert "is an interpolation, which no run records" in refusal(script("compare", str(tmp_path)))
    assert not list(tmp_path.rglob("*.csv"))


@WARNS
def test_wrong_folders_and_metrics_are_named(sweep, script):
    assert f"{sweep / 'none'} is not a run directory" in refusal(script("compare", f"runs={sweep / 'none'}"))
    (sweep / "empty").mkdir()
    assert "holds no run" in refusal(script("compare", f"runs={sweep / 'empty'}"))
    assert "runs has no value: write it as in bdl compare outputs" in refusal(script("compare"))
    assert "runs is empty" in refusal(script("compare", "runs=[]"))
    assert "metrics: nll is no metric" in refusal(script("compare", f"runs={sweep}", "metrics=[nll]"))
    (sweep / "a" / "0-low" / "metrics.json").write_text("{")
    assert "0-low/metrics.json is damaged" in refusal(script("compare", f"runs={sweep}"))
    assert not (sweep / "comparison").exists()


@WARNS
def test_other_metrics_are_shown_as_they_are(sweep, script):
    methods = compared(script, sweep / "out", f"runs={sweep}", "metrics=[t_eff,test/constant/nll]")
    assert all(list(m["metrics"]) == ["t_eff", "test/constant/nll"] for m in methods.values())


def run(name: str = "x", seed: int = 0, **settings) -> ComparedRun:
    return ComparedRun(Path(name), name, {"seed": seed}, settings, {}, {"m": float(seed)})


def test_what_the_name_decides_is_no_column():
    """The name of a sampler stands for its settings; what differs under one name is a column of its own."""
    runs = [run("sgd", friction=1.0, lr=0.1), run("sghmc", friction=0.1, lr=0.1), run("sghmc", friction=0.1, lr=0.2)]
    runs.append(run("awsghmc", friction=0.1, lr=0.1))
    comparison = compare_runs(runs, ["m"], same_data=True)
    assert comparison.columns == {"lr": []}
    settings = [tuple(row.settings.values()) for row in comparison.methods]
    assert settings == [("sgd", "0.1"), ("sghmc", "0.1"), ("sghmc", "0.2"), ("awsghmc", "0.1")]
    assert [row.label for row in comparison.methods] == ["sgd", "sghmc (lr=0.1)", "sghmc (lr=0.2)", "awsghmc"]


def test_rows_are_sorted_by_size_and_absent_settings_are_shown():
    runs = [run(lr=10.0), run(lr=9.0), run(lr=9.0, clip=1), run(lr=9.0, seed=4)]
    methods = compare_runs(runs, ["m"], same_data=True).methods
    assert [tuple(row.settings.values())[1:] for row in methods] == [("9", "1"), ("9", "–"), ("10", "–")]
    assert [row.count for row in methods] == ["1", "2", "1"]
    assert methods[1].scores["m"] == (2, 2)


@pytest.mark.parametrize(
    ("mean", "error", "shown"),
    [
        (0.20341, 0.00213, "0.2034 ± 0.0021"),
        (123.4, 15.0, "123 ± 15"),
        (0.5, math.nan, "0.5000"),
        (12345.6, math.nan, "12,346"),
        (math.nan, math.nan, "–"),
        (1.0, 0.0, "1.0000 ± 0.0000"),
    ],
)
def test_a_mean_has_two_digits_of_its_error(mean, error, shown):
    assert mean_and_error("m", mean, error) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("awsghmc (sampler.lr=0.15)", "awsghmc (sampler.lr=0.15)"),
        ("adam_w, model.hidden=[10,10]", "adam_w, model.hidden=\\[10,10\\]"),
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)&gt;"),
        ("a & b | c", "a &amp; b \\| c"),
        ("![x](https://a.b) www.a.b", "\\!\\[x\\](https\\://a.b) www\\.a.b"),
        ("**bold** _it_ `code` ~~no~~", "\\*\\*bold\\*\\* \\_it\\_ \\`code\\` \\~\\~no\\~\\~"),
        ("two\n\n# lines", "two # lines"),
        ("a\\|b", "a\\\\\\|b"),
    ],
)
def test_texts_stand_in_markdown_as_they_are(text, shown):
    assert plain(text) == shown


def test_a_strangers_text_makes_no_html_and_no_style(tmp_path, script):
    for folder, lr in (("a", "<img src=x>"), ("b", "[red]x")):
        written(tmp_path / folder, "<script>alert(1)</script>", 0, 0.2, settings={"sampler": {"lr": lr}})
    status, out, _ = script("compare", str(tmp_path))
    assert status == 0 and "[red]x" in out
    page, table = ((tmp_path / "comparison" / f"comparison.{kind}").read_text() for kind in ("html", "md"))
    assert "<img src=x>" not in page and "<script>alert" not in page
    assert "<" not in table and "&lt;script&gt;alert(1)&lt;/script&gt;" in table


def test_a_strangers_text_is_no_formula_and_no_order_to_terminal(tmp_path, script):
    """Names of methods and values of settings, in the tables of methods and of runs."""
    for folder, lr in (("=a", "@SUM(A1)"), ("b", "\x1b]0;title\x07x")):
        written(tmp_path / folder, "=2+3", 0, 0.2, settings={"sampler": {"lr": lr}})
    status, out, _ = script("compare", str(tmp_path))
    assert status == 0 and "\x1b" not in out and "?]0;title?x" in out
    cells = []
    for name in ("comparison.csv", "runs.csv"):
        table = pd.read_csv(tmp_path / "comparison" / name, dtype=str, keep_default_na=False)
        cells += [*table.columns, *table.to_numpy().ravel()]
    assert {"'=2+3", "'@SUM(A1)"} <= set(cells) and not [cell for cell in cells if cell.startswith(("=", "@"))]
