"""Tests of `bdl.run.section`, `.predict` and `.write_report`.

A table from the command line to predictions: what the data decide, what a run records, and preds.csv.
"""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from composing import compose
from hydra.utils import instantiate
from omegaconf import OmegaConf
from running import done, refusal, sampled, whole

import bdl
from bdl.data import LandsatDataModule, read_table
from bdl.errors import ConfigError
from bdl.run.config import checksum, config_hash
from bdl.run.records import read_config
from bdl.run.write_report import target_fact

SMALL = (
    "trainer=debug", "logger=none", "chains=2", "trainer.max_steps=12", "model.hidden=[4]", "collect.keep.every=2",
    "tune=false", "~start",
)  # fmt: skip


def table(rows: int = 60) -> pd.DataFrame:
    """A name for every row, numbers and text with gaps, three classes, and a number y far from 0."""
    random = np.random.RandomState(0)
    frame = pd.DataFrame(
        {
            "key": [f"{i:03d}" for i in range(rows)],
            "size": random.randn(rows),
            "city": random.choice(["Aachen", "Bonn"], rows),
            "kind": random.choice(["b", "a", "c d"], rows),
        }
    )
    frame["y"] = 1000 + 50 * frame["size"] + random.randn(rows)
    frame.loc[:5, "size"] = np.nan
    frame.loc[3:9, "city"] = np.nan
    return frame


@pytest.fixture(scope="module")
def classes(tmp_path_factory) -> Path:
    """A finished run that predicts `kind`. The folder of the run is `run`, that of its table `table.csv`."""
    folder = tmp_path_factory.mktemp("classes")
    table().to_csv(folder / "table.csv", index=False)
    of_data = (f"data.path={folder / 'table.csv'}", "data.target=kind", "data.id=[key]")
    whole_table(folder / "run", *of_data)
    return folder


def whole_table(folder: Path, *overrides: str) -> None:
    whole_settings = [o for o in SMALL if not o.startswith("trainer=")]
    whole(folder, "data=csv", "model.sizes=null", *whole_settings, *overrides)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory) -> Path:
    """The samples of a run that predicts `y` of the same table."""
    folder = tmp_path_factory.mktemp("numbers")
    table().to_csv(folder / "table.csv", index=False)
    of_data = (f"data.path={folder / 'table.csv'}", "data.target=y", "data.id=[key]", "sampler.lr=0.001")
    sampled(folder / "run", "data=csv", *SMALL, *of_data)
    return folder


def test_sizes_and_loss_follow_from_the_data_and_are_recorded(classes, numbers):
    outputs = {"CategoricalNLL": 3, "HeteroscedasticNLL": 2}
    for folder, inputs, loss in ((classes, 7, "CategoricalNLL"), (numbers, 10, "HeteroscedasticNLL")):
        config = OmegaConf.load(folder / "run" / "config.yaml")
        assert config.model.sizes == [inputs, 4, outputs[loss]] and "hidden" not in config.model
        outliers = {"outliers": 0.01} if folder == numbers else {}
        assert config.loss == {"_target_": f"bdl.{loss}", **outliers}
        assert instantiate(config.model, _convert_="all")(torch.zeros(1, inputs)).shape == (1, outputs[loss])


def test_the_run_says_what_it_read(classes, capsys, tmp_path):
    sampled(tmp_path, "data=csv", *SMALL, f"data.path={classes / 'table.csv'}", "data.target=kind", "data.drop=[key]")
    said = capsys.readouterr().out
    assert "data: table.csv: 48 train, 12 test rows; 3 columns as 7 inputs; target kind: classification (3 diff" in said
    report = (classes / "run" / "report.html").read_text()
    assert "table.csv" in report and "kind (classification)" in report


def test_the_report_says_what_one_is_in_the_units_of_the_target(numbers):
    data = read_table(numbers / "table.csv", "y", id=["key"])
    assert target_fact(data) == {"target": f"y (regression, standardised: 1 is {data.encoding.target.std:.4g})"}
    assert target_fact(LandsatDataModule()) == {}


def test_the_encoding_belongs_to_the_run_and_names_its_law(classes):
    saved = json.loads((classes / "run" / "preprocessing.json").read_text())
    assert saved["target"] == {"task": "classification", "name": "kind", "labels": ["a", "b", "c d"]}
    assert [column["gaps"] for column in saved["columns"]] == [True, True, False]
    target = json.loads((classes / "run" / "samples" / "target.json").read_text())["data"]
    assert target["target"] == "kind" and len(target["encoding"]) == len(target["training_rows"]) == 16


def test_predictions_of_classes_are_those_of_the_posterior(script, classes):
    table().drop(columns="kind").to_csv(classes / "new.csv", index=False)
    status, out, _ = script(
        "predict", f"run={classes / 'run'}", f"input={classes / 'new.csv'}", f"output={classes / 'p.csv'}"
    )
    assert status == 0 and "60 rows, " in out
    preds = pd.read_csv(classes / "p.csv", dtype={"key": str})
    assert list(preds) == ["key", "class", "p_a", "p_b", "p_c d", "entropy", "epistemic"]
    assert preds["key"].tolist() == table()["key"].tolist()  # as they are written, zeros included
    config = OmegaConf.load(classes / "run" / "config.yaml")
    data = read_table(classes / "table.csv", "kind", id=["key"])
    posterior = bdl.Posterior.load(classes / "run", instantiate(config.model, _convert_="all"))
    rows = data.encoding.reading.read(classes / "table.csv")
    expected = posterior.predict(data.encoding.inputs.encode(rows, "", ""))
    np.testing.assert_allclose(preds[["p_a", "p_b", "p_c d"]], expected.probs, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(preds["epistemic"], expected.epistemic, rtol=1e-4, atol=1e-6)
    assert preds["class"].tolist() == [data.labels[k] for k in expected.probs.argmax(1)]


def test_predictions_of_numbers_are_in_the_units_of_the_target(script, numbers):
    rows = table().drop(columns="key")
    rows.to_csv(numbers / "new.csv", index=False)
    done(script("predict", f"runs=[{numbers / 'run'}]", f"input={numbers / 'new.csv'}", f"output={numbers / 'p.csv'}"))
    preds = pd.read_csv(numbers / "p.csv")
    assert list(preds) == ["mean", "std", "aleatoric", "epistemic", "q05", "q50", "q95"]
    data = read_table(numbers / "table.csv", "y", id=["key"])
    config = OmegaConf.load(numbers / "run" / "config.yaml")
    posterior = bdl.Posterior.load(numbers / "run", instantiate(config.model, _convert_="all"))
    x = data.encoding.inputs.encode(rows, "", "")
    target = data.encoding.target
    outputs = torch.stack(
        [torch.func.functional_call(posterior.net, s.tensors, (x,)) for s in posterior.stream()]
    ).double()
    mean = target.mean + target.std * outputs[..., 0]
    noise = target.std**2 * outputs[..., 1].exp() * (1 + 0.01 * (5**2 - 1))  # one row in a hundred is 5 times as wide
    np.testing.assert_allclose(preds["mean"], mean.mean(0).detach(), rtol=1e-5)
    np.testing.assert_allclose(preds["epistemic"], mean.std(0, correction=0).detach(), rtol=1e-3)
    np.testing.assert_allclose(preds["aleatoric"], noise.mean(0).sqrt().detach(), rtol=1e-4)
    np.testing.assert_allclose(preds["std"] ** 2, preds["aleatoric"] ** 2 + preds["epistemic"] ** 2, rtol=1e-4)
    assert (preds["q05"] < preds["q50"]).all() and (preds["q50"] < preds["q95"]).all()
    assert (preds["mean"] - 1000).abs().max() < 500


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """A finished run that predicts `y` and `rent`, each with gaps, with a covariance and conformal intervals."""
    folder, frame = tmp_path_factory.mktemp("two"), table()
    frame["rent"] = -0.01 * frame["y"] + np.random.RandomState(1).randn(len(frame))
    frame.loc[10:19, "y"] = np.nan
    frame.loc[18:25, "rent"] = np.nan
    frame.to_csv(folder / "table.csv", index=False)
    of_data = (f"data.path={folder / 'table.csv'}", "data.target=[y,rent]", "data.id=[key]", "data.val_fraction=0.4")
    law = ("loss=normal", "loss.covariance=true", "calibrate=conformal", "sampler.lr=0.001")
    with pytest.warns(bdl.BdlWarning, match="which are (left out|kept)"):
        whole_table(folder / "run", *of_data, *law)
    return folder


def test_two_targets_with_gaps_go_from_table_to_predictions(script, two):
    target = json.loads((two / "run" / "samples" / "target.json").read_text())
    assert target["loss"]["type"] == "bdl.ObservedNLL" and target["loss"]["of"]["type"] == "bdl.MultivariateNormalNLL"
    assert target["model"]["sizes"][-1] == 5 and target["data"]["target"] == ["y", "rent"]
    parts = ("mean", "std", "aleatoric", "epistemic", "q05", "q50", "q95", "low", "high")
    done(script("predict", f"run={two}/run", f"input={two}/table.csv", f"output={two}/preds.csv"))
    found = pd.read_csv(two / "preds.csv", dtype={"key": "str"})
    assert list(found) == ["key", *(f"{part}_{name}" for part in parts for name in ("y", "rent"))] and len(found) == 60
    assert abs(found["mean_y"].mean() - 1000) < 100 and abs(found["mean_rent"].mean() + 10) < 5
    for name in ("y", "rent"):
        low, mean, high = (found[f"{part}_{name}"] for part in ("low", "mean", "high"))
        assert ((low < mean) & (mean < high)).all()
    frame = bdl.predict_table(two / "run", pd.read_csv(two / "table.csv"))
    np.testing.assert_allclose(frame["std_rent"], found["std_rent"], rtol=1e-5)


def test_each_of_two_targets_has_its_scores_and_its_part_of_the_page(two):
    metrics = json.loads((two / "run" / "metrics.json").read_text())
    scores = {"rmse", "nll", "crps", "coverage_90"}
    for name in ("y", "rent"):
        assert {f"test/bma/{name}/{score}" for score in scores} <= metrics.keys()
    assert metrics["test/bma/y/rmse"] > 10 * metrics["test/bma/rent/rmse"]  # in the units of each
    page = (two / "run" / "report.html").read_text()
    assert all(f"Predictions against data: {name}" in page for name in ("y", "rent"))
    assert "y (regression, standardised: 1 is" in page and 'id="targets"' in page


def test_rows_of_pandas_get_the_numbers_of_the_command(script, numbers):
    rows = table().drop(columns="y").sample(frac=1, random_state=0)
    rows.to_csv(numbers / "new.csv", index=False)
    output = numbers / "same.csv"
    assert script("predict", f"run={numbers / 'run'}", f"input={numbers / 'new.csv'}", f"output={output}")[0] == 0
    predictions = bdl.predict_table(numbers / "run", rows)
    assert predictions.index.equals(rows.index)
    np.testing.assert_allclose(pd.read_csv(output).drop(columns="key"), predictions, rtol=1e-6)
    with pytest.raises(bdl.ConfigError, match="input: size: the table has no such column"):
        bdl.predict_table([numbers / "run"], rows.drop(columns="size"))
    with pytest.raises(bdl.ConfigError, match="size has 'big' in row 1, and no finite number in 60 of 60 rows"):
        bdl.predict_table(numbers / "run", rows.assign(size="big").set_index("key"))


@pytest.mark.filterwarnings("default::bdl.errors.BdlWarning")
def test_predictions_beyond_all_that_training_had_are_told(script, numbers, tmp_path):
    """Row 2 alone: what ReLU makes of a size of 1e17 has no bound."""
    of_data = (f"data.path={numbers / 'table.csv'}", "data.target=y", "data.id=[key]", "sampler.lr=0.001")
    sampled(tmp_path / "run", "data=csv", *SMALL, *of_data, "model.activation=relu")
    rows = table().drop(columns="y").iloc[10:15].assign(size=[0.1, 1e17, -0.3, 0.2, 2.0])
    rows.to_csv(tmp_path / "far.csv", index=False)
    output = tmp_path / "p.csv"
    status, _, err = script("predict", f"run={tmp_path / 'run'}", f"input={tmp_path / 'far.csv'}", f"output={output}")
    assert status == 0 and len(err) == 2, err
    assert "far from all training rows: size in 1 of 5 rows (20 %), 1e+17 in row 2" in err[0]
    assert "far.csv: for 1 of 5 rows, row 2 the first, the mean or the standard deviation of y is beyond any" in err[1]
    assert not pd.read_csv(output)["std"].iloc[1] < 1e15


def test_targets_far_from_zero_keep_their_digits(script, tmp_path):
    """Seconds since 1970: float32 has steps of 128 s there, and seven digits have steps of 1,000 s."""
    frame = table()
    frame["y"] = 1.7e9 + 3600 * frame["y"]
    frame.to_csv(tmp_path / "table.csv", index=False)
    of_data = (f"data.path={tmp_path / 'table.csv'}", "data.target=y", "data.id=[key]", "sampler.lr=0.001")
    sampled(tmp_path / "run", "data=csv", *SMALL, *of_data)
    output = tmp_path / "p.csv"
    assert script("predict", f"run={tmp_path / 'run'}", f"input={tmp_path / 'table.csv'}", f"output={output}")[0] == 0
    preds = pd.read_csv(output)
    exact = bdl.predict_table(tmp_path / "run", frame)
    assert preds["mean"].nunique() == exact["mean"].nunique() > 50
    for name in ("mean", "q05", "q50", "q95"):
        assert (preds[name] - exact[name]).abs().max() < 1e-5 * preds["std"].min()
    law = (exact["q95"] - exact["q05"]) / exact["std"]
    assert ((law > 2) & (law < 5)).all()


@pytest.mark.filterwarnings("default::bdl.errors.BdlWarning")
def test_categories_unseen_in_training_are_used_and_counted(script, classes):
    new = table().drop(columns="kind").iloc[10:15]
    new.assign(city=["Bonn", "Rome", "Aachen", "Oslo", "Bonn"]).to_csv(classes / "new.csv", index=False)
    output = classes / "unseen.csv"
    status, _, err = script("predict", f"run={classes / 'run'}", f"input={classes / 'new.csv'}", f"output={output}")
    assert status == 0 and len(pd.read_csv(output)) == 5
    assert len(err) == 2 and "new.csv: city has categories in 2 of 5 rows that no training row has ('Rome'" in err[0]
    assert "verdict: not known" in err[1]  # a run of few steps


def test_predictions_take_the_place_of_no_pipe(script, classes, tmp_path):
    """Refused before anything is predicted."""
    os.mkfifo(tmp_path / "pipe")
    words = (f"run={classes / 'run'}", f"input={tmp_path / 'none.csv'}", f"output={tmp_path / 'pipe'}")
    assert "pipe is no regular file: name the file for the predictions" in refusal(script("predict", *words))
    assert (tmp_path / "pipe").is_fifo()


BAD = {
    "column": ({"size": None, "city": None}, (), "input: size, city: new.csv has no such columns"),
    "text": ({"size": "big"}, (), "size has 'big' in row 1, and no finite number in 60 of 60 rows: correct them"),
    "id": ({}, ("id=[name]",), "id=name: "),
    "no run": ({}, ("run=null",), "run has no value: run=outputs/a names a run directory"),
    "no input": ({}, ("input=???",), "input has no value: write it as in bdl predict run=outputs/a input=new.csv"),
    "no table": ({}, ("input=none.csv",), "input=none.csv is not there"),
    "itself": ({}, ("output=new.csv",), "output=new.csv is the input: choose another file"),
    "folder": ({}, ("output=.",), "output=. is a folder: name the file for the predictions"),
    "doubled": ({"entropy": 1}, ("id=[entropy]",), "id=entropy is a column of the predictions too: rename it in new"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_of_predict_gets_one_line_and_writes_nothing(script, classes, tmp_path, monkeypatch, name):
    columns, overrides, words = BAD[name]
    monkeypatch.chdir(tmp_path)
    rows = table().drop(columns=[c for c, value in columns.items() if value is None])
    rows.assign(**{c: value for c, value in columns.items() if value is not None}).to_csv("new.csv", index=False)
    before = Path("new.csv").read_bytes()
    error = refusal(script("predict", f"run={classes / 'run'}", "input=new.csv", "output=p.csv", *overrides))
    assert words in error
    assert [p.name for p in tmp_path.iterdir()] == ["new.csv"] and Path("new.csv").read_bytes() == before


def copied(classes: Path, folder: Path) -> Path:
    return Path(shutil.copytree(classes / "run", folder / "copy"))


ALTERED = {
    "labels": (lambda p: p["target"].update(labels=p["target"]["labels"][::-1]), "was altered: its checksum is not"),
    "a mean": (lambda p: p["columns"][0].update(mean=3.0), "was altered: its checksum is not"),
    "a type": (lambda p: p["columns"][0].update(std="x"), "was altered: its checksum is not"),
    "a key": (lambda p: p["target"].pop("labels"), "no encoding of a table, 'labels' is missing or wrong"),
    "a separator": (lambda p: p["reading"].update(separator="(a+)+b"), "data.separator must be comma"),
    "a list": (lambda p: [], "is damaged (it is no mapping): restore it"),
    "depth": (lambda p: "[" * 100_000, "is damaged (it is nested too deep): restore it"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_predictions_need_columns_that_samples_were_drawn_with(script, classes, tmp_path, name):
    """Labels in another order inverted every prediction."""
    (change, words), run = ALTERED[name], copied(classes, tmp_path)
    path = run / "preprocessing.json"
    plain = json.loads(path.read_text())
    changed = change(plain)
    path.write_text(changed if isinstance(changed, str) else json.dumps(plain if name != "a list" else changed))
    with warnings.catch_warnings():
        # a warning alone, with which predictions went on; here, because the run of `classes` may set filters of its own
        warnings.filterwarnings("ignore", ".*was altered or lost")
        error = refusal(
            script("predict", f"run={run}", f"input={classes / 'table.csv'}", f"output={tmp_path / 'p.csv'}")
        )
    assert words in error and str(path) in error and not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize("raw", [False, True])
def test_formulas_of_strangers_are_texts_in_predictions(script, classes, tmp_path, raw):
    """A spreadsheet executes a field that begins with =. The key `raw` copies the texts as they are."""
    rows = table()
    rows["key"] = ["=HYPERLINK(A1)", "-2.5", "@x", "a=b", *rows["key"][4:]]
    rows.to_csv(tmp_path / "new.csv", index=False)
    output = tmp_path / "p.csv"
    script("predict", f"run={classes / 'run'}", f"input={tmp_path / 'new.csv'}", f"output={output}", f"raw={raw}")
    keys = pd.read_csv(output, dtype=str)["key"].tolist()[:4]
    sign = "" if raw else "'"
    assert keys == [f"{sign}=HYPERLINK(A1)", "-2.5", f"{sign}@x", "a=b"]


def test_a_configuration_nested_too_deep_is_refused_at_once(classes, tmp_path):
    """OmegaConf would build 3,000 levels for seconds, and 100,000 for hours."""
    (tmp_path / "config.yaml").write_text("a: " + "[" * 3000 + "]" * 3000)
    with pytest.raises(ConfigError, match="config.yaml is damaged .*nested more than 50 deep"):
        read_config(tmp_path)


def test_the_hash_reads_the_weights_of_a_folder_alone(tmp_path):
    """A folder was read whole, whatever it held; what lies beside the weights changes no sample."""

    def hash_of() -> str:
        return config_hash(compose("start=checkpoint", f"start.path={tmp_path}"))

    (tmp_path / "model.safetensors").write_bytes(b"weights")
    first = hash_of()
    (tmp_path / "notes.txt").write_text("a")
    assert hash_of() == first
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert hash_of() != first


def test_a_file_of_the_kernel_is_not_hashed(tmp_path):
    """The name of the run's folder hashes the table; a reader of /proc/kmsg waits for messages."""
    (tmp_path / "table.csv").symlink_to("/proc/self/status")
    assert checksum(str(tmp_path / "table.csv")) == str(tmp_path / "table.csv")


def test_a_run_on_other_data_predicts_no_tables(script, run, tmp_path):
    error = refusal(script("predict", f"run={run}", "input=a.csv", f"output={tmp_path / 'p.csv'}"))
    assert "has no preprocessing.json: it is no run on a table" in error


def test_samples_of_another_network_are_refused(script, classes, tmp_path):
    copy = tmp_path / "run"
    (copy / "samples").mkdir(parents=True)
    for path in [*(classes / "run").glob("*.*"), *(classes / "run" / "samples").iterdir()]:
        (copy / path.relative_to(classes / "run")).write_bytes(path.read_bytes())
    config = OmegaConf.load(copy / "config.yaml")
    config.model.sizes[1] = 5
    OmegaConf.save(config, copy / "config.yaml")
    error = refusal(script("predict", f"run={copy}", f"input={classes / 'table.csv'}", f"output={tmp_path / 'p.csv'}"))
    assert "net" in error and not (tmp_path / "p.csv").exists()


def test_evaluate_reads_table_again_and_refuses_a_changed_one(script, classes, tmp_path):
    command = ("evaluate", f"runs={classes / 'run'}", f"out={tmp_path}")
    assert script(*command)[0] == 0
    before = (classes / "table.csv").read_bytes()
    try:
        changed = table()
        changed.loc[20, "size"] += 1
        for rows in (changed, changed.iloc[:30]):
            rows.to_csv(classes / "table.csv", index=False)
            assert "data.path is no longer the table or folder of this run" in refusal(script(*command))
    finally:
        (classes / "table.csv").write_bytes(before)


def test_the_contents_of_a_table_name_run_and_its_place_does_not(tmp_path):
    def hash_of(path: Path, *more: str) -> str:
        return config_hash(compose("run_dir=x", "data=csv", f"data.path={path}", "data.target=y", *more))

    table().to_csv(tmp_path / "a.csv", index=False)
    table().to_csv(tmp_path / "b.csv", index=False)
    first = hash_of(tmp_path / "a.csv")
    assert first == hash_of(tmp_path / "b.csv") != hash_of(tmp_path / "a.csv", "data.task=counts")
    table(50).to_csv(tmp_path / "a.csv", index=False)
    assert first != hash_of(tmp_path / "a.csv")


def test_a_learned_scale_is_a_parameter_behind_the_network(tmp_path):
    table().to_csv(tmp_path / "table.csv", index=False)
    of_data = (f"data.path={tmp_path / 'table.csv'}", "data.target=y", "data.drop=[key]", "sampler.lr=0.001")
    sampled(tmp_path / "run", "data=csv", *SMALL, *of_data, "loss=normal", "loss.scale=learned")
    config = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert config.model.net.sizes == [10, 4, 1] and config.model.targets == 1
    posterior = bdl.Posterior.load(tmp_path / "run", instantiate(config.model, _convert_="all"))
    assert posterior.predict(torch.zeros(3, 10)).aleatoric.std() < 1e-6


REFUSED = {
    "column": ("data.target=Y", "data.target=Y: table.csv has no such column; did you mean data.target=y?"),
    "file": ("data.path=none.csv", "data.path=none.csv is not there"),
    "no path": ("data.path=???", "data.path has no value"),
    "task": ("data.task=ranking", 'data.task must be "classification", "regression" or "counts" or null'),
    "loss": (
        "loss=categorical",
        "loss._target_=bdl.CategoricalNLL is a likelihood of classes, and the task is regression",
    ),
    "scale": ("loss=normal; loss.scale=wide", "loss.scale must be input or learned, got 'wide'"),
    "sizes": ("model.sizes=[10,4,1]", "the model has 1 outputs for a likelihood that needs 2: change model.sizes"),
    "hidden": (
        "model.hidden=[4,many]",
        "model.hidden must be \"auto\" or a list of whole numbers from 1 to 1,000,000, got [4, 'many']",
    ),
    "list": ("data.drop=key", "data.drop must be a list of words, got 'key': write 'data.drop=[key]'"),
    "no list": ("data.drop=null", "data.drop must be a list of words, got None: write 'data.drop=[]' for none"),
    "null": ("data.target=null", """got None: write 'data.target="null"' for the column null"""),
    "true": ("data.target=true", "data.target='\"true\"': table.csv has no such column"),
    "images": ("model=resnet20", "does not take inputs of shape (10,): choose another"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_about_tables_gets_one_line_and_leaves_nothing(script, tmp_path, monkeypatch, name):
    override, words = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    table().to_csv("table.csv", index=False)
    small = [o for o in SMALL if "hidden" not in o]
    of_data = ("data=csv", "data.path=table.csv", "data.target=y", "data.drop=[key]", "hydra.run.dir=run")
    error = refusal(script("train", *small, *of_data, *override.split("; ")))
    assert words in error
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]  # no empty folder either


def test_predictions_import_neither_lightning_nor_what_draws_pictures(classes):
    """The modules as Python itself lists them: their import is most of what a person waits for."""
    words = (f"run={classes / 'run'}", f"input={classes / 'table.csv'}", f"output={classes / 'imports.csv'}")
    command = (sys.executable, "-X", "importtime", "-m", "bdl", "predict", *words)
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time")}
    assert {"pandas", "bdl.posterior.predict", "bdl.posterior.verdict"} <= imported
    assert not imported & {"lightning", "torchmetrics", "matplotlib", "scipy.stats", "sklearn", "arviz_stats"}
