"""Tests of tables whose rows are not exchangeable, from the command to preds.csv: groups, an order, lags, encodings."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from running import ON_TABLE, done

from bdl.run.predict import predict_table
from bdl.run.records import read_metrics

SMALL = (*ON_TABLE, "chains=2", "trainer.max_steps=12", "collect.keep.burn_in=5")
WARNS = pytest.mark.filterwarnings("default::bdl.errors.BdlWarning")
GERMAN = ("data.separator=semicolon", "data.decimal=comma")


def visits(days: int = 8, persons: int = 25) -> pd.DataFrame:
    random = np.random.RandomState(0)
    table = pd.DataFrame({"person": np.repeat(np.arange(persons), days), "visit": np.tile(np.arange(days), persons)})
    table["speech"] = random.randn(persons)[table["person"]] + 0.1 * random.randn(len(table))
    return table.assign(score=20 + 3 * random.randn(persons)[table["person"]] + random.randn(len(table)))


def predict(script, folder: Path, rows: Path) -> tuple[pd.DataFrame, str]:
    """The predictions, and what the command says on stderr."""
    status, _, err = script("predict", f"run={folder}", f"input={rows}", f"output={folder / 'preds.csv'}")
    assert status == 0, err
    return pd.read_csv(folder / "preds.csv"), "\n".join(err)


def test_groups_from_the_command_to_intervals(script, tmp_path):
    """The page and the overview count groups, the calibration is by group, also where `bdl evaluate` makes it."""
    visits().to_csv(path := tmp_path / "table.csv", index=False)
    words = (
        f"data.path={path}",
        "data.target=score",
        "data.group=person",
        "data.drop=[visit]",
        "data.val_fraction=0.5",
    )
    calibrated = ("calibrate=conformal", "calibrate.level=0.8")
    out = done(script("train", f"hydra.run.dir={tmp_path / 'run'}", *SMALL, *words, *calibrated))
    counts, page = "rows of one person stay together, 10 train, 10 val, 5 test groups", tmp_path / "run" / "report.html"
    assert counts in out and counts in page.read_text() and "for items of new groups" in page.read_text()
    metrics = read_metrics(tmp_path / "run" / "metrics.json")
    assert metrics["calibration/groups"] == 10 and metrics["calibration/items"] == 80
    preds, _ = predict(script, tmp_path / "run", path)
    assert (preds["low"] < preds["high"]).all() and len(preds) == 200
    done(script("evaluate", f"runs=[{tmp_path / 'run'}]", *calibrated))
    again = read_metrics(tmp_path / "run" / "evaluation" / "metrics.json")
    assert again["calibration/groups"] == 10
    assert again["test/conformal/coverage"] == pytest.approx(metrics["test/conformal/coverage"])


@WARNS
def test_lags_from_the_command_to_the_next_day(script, tmp_path):
    table = visits(days=40, persons=1).drop(columns="person").assign(day=lambda t: pd.to_datetime(t["visit"], unit="D"))
    table[:-1].sample(frac=1, random_state=0).to_csv(path := tmp_path / "table.csv", index=False)
    words = (f"data.path={path}", "data.target=score", "data.order=day", "data.id=[day]", "data.drop=[visit]")
    words += ("data.lags={score:[1,2],speech:[1]}",)
    status, out, err = script("train", f"hydra.run.dir={tmp_path / 'run'}", *SMALL, *words)
    assert status == 0 and "2 of 39 rows have fewer than 2 rows before them" in "".join(err), err
    assert "ordered by day, the last rows, from 1970-02-01 on" in out and "29 train, 8 test rows" in out
    table[-1:].drop(columns="score").to_csv(new := tmp_path / "new.csv", index=False)
    table.to_csv(whole := tmp_path / "whole.csv", index=False)
    next_day, _ = predict(script, tmp_path / "run", new)
    rows, said = predict(script, tmp_path / "run", whole)
    assert "2 of 40 rows, the first of their series" in said
    assert rows["mean"].isna().tolist() == [True] * 2 + [False] * 38 and rows["day"].tolist() == sorted(rows["day"])
    assert next_day["mean"].item() == pytest.approx(rows["mean"].iloc[-1], rel=1e-5)
    in_python = predict_table(tmp_path / "run", table[-1:].set_index(pd.Index(["next"])).drop(columns="score"))
    assert in_python.loc["next", "mean"] == pytest.approx(next_day["mean"].item(), rel=1e-5)


@WARNS
def test_a_table_in_latin1_from_the_command_to_predictions(script, tmp_path):
    random = np.random.RandomState(0)
    lines = [f"{i % 9},5;{('Nord', 'Süd')[i % 2]};{100 * random.rand():.2f}".replace(".", ",") for i in range(60)]
    (path := tmp_path / "table.csv").write_bytes("\r\n".join(["Größe;Straße;Preis", *lines]).encode("latin-1"))
    words = (f"data.path={path}", "data.target=Preis", *GERMAN)
    status, _, err = script("train", f"hydra.run.dir={tmp_path / 'run'}", *SMALL, *words)
    assert status == 0 and "".join(err).count("read as latin-1, with words such as 'Größe'") == 1, err
    plain = json.loads((tmp_path / "run" / "preprocessing.json").read_text())
    assert plain["reading"]["encoding"] == "latin-1"
    first, said = predict(script, tmp_path / "run", path)
    assert "UTF-8" not in said and "latin-1" not in said
    (other := tmp_path / "new.csv").write_bytes(path.read_bytes().decode("latin-1").encode())
    second, said = predict(script, tmp_path / "run", other)
    assert "is UTF-8 text" in said and first.equals(second)
