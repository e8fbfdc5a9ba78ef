"""Tests of `bdl.run.typed`: what is printed to do next runs as the person at the terminal types it."""

import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from bdl.posterior.calibrated import CalibrationRequest
from bdl.run.typed import after_table, calibration, typed


@pytest.mark.parametrize(
    ("argv0", "whole", "words"),
    [
        ("scripts/train.py", [".venv/bin/python", "scripts/train.py"], ".venv/bin/python scripts/predict.py"),
        ("bdl train", ["python3", "-m", "bdl", "train"], "python3 -m bdl predict"),
        ("bdl train", ["/env/bin/python", "/env/bin/bdl", "train"], "/env/bin/bdl predict"),
        ("ipykernel_launcher.py", ["python", "-m", "ipykernel_launcher"], "bdl predict"),
    ],
)
def test_a_command_begins_as_it_was_typed(monkeypatch, argv0, whole, words):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert " ".join(typed("predict", argv0, whole)) == words


def test_a_console_script_on_the_path_keeps_its_name(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: "/env/bin/bdl")
    assert typed("train", "bdl train", ["/env/bin/python", "/env/bin/bdl", "train"]) == ["bdl", "train"]


@pytest.mark.parametrize("folder", ["runs/a b", "runs (1)", "a,b", "2026=x"])
def test_after_a_table_come_the_rows_of_all_splits_and_predictions(folder):
    predict, refit = after_table("bdl train data=csv hydra.run.dir=x seed=1", Path(folder), False, 700)
    *first, run, rows, output = shlex.split(predict)
    assert first[-2:] == ["bdl", "predict"] and [rows, output] == ["input=new.csv", "output=predictions.csv"]
    *again, place = shlex.split(refit.partition("(about 12 minutes): ")[2])
    assert again == ["bdl", "train", "data=csv", "seed=1", "refit=all"]
    read = OverridesParser.create().parse_overrides([run, place])
    assert [(word.key_or_group, word.value()) for word in read] == [("run", folder), ("hydra.run.dir", folder)]
    assert len(after_table("bdl train data=csv", Path("a"), True, None)) == 1


def test_the_command_that_calibrates_begins_as_it_was_typed(monkeypatch):
    monkeypatch.setattr("sys.argv", ["scripts/train.py"])
    monkeypatch.setattr("sys.orig_argv", ["python", "scripts/train.py"])
    command = calibration(Path("runs/a b"), CalibrationRequest("conformal", 0.8))
    assert command == "python scripts/evaluate.py runs='runs/a b' calibrate=conformal calibrate.level=0.8"
