"""Tests of `bdl.run.typed`: what is printed to do next runs as the person at the terminal types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bdl.run.typed import after_table, typed


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


def test_after_a_table_come_the_rows_of_all_splits_and_predictions():
    predict, refit = after_table("bdl train data=csv seed=1", Path("runs/a b"), False, 700)
    assert predict.endswith("bdl predict 'run=runs/a b' input=new.csv output=predictions.csv")
    assert refit.endswith("(about 12 minutes): bdl train data=csv seed=1 'hydra.run.dir=runs/a b' refit=all")
    assert len(after_table("bdl train data=csv", Path("a"), True, None)) == 1
