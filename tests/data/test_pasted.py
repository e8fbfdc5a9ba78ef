"""Tests of `bdl.advice` in messages about tables: what they print of the user's words can be pasted into bash."""

import re
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import bdl
from bdl.advice import override
from bdl.data.table import read_table
from bdl.errors import ConfigError

ROWS, ODD = 60, "price ($)"
SOURCES = sorted(Path(bdl.__file__).parent.rglob("*.py"))
WRITTEN = re.compile(r"data\.(\w+)=\[?\{+(\w+)")
CHOICES = ("task", "fold", "batch_size", "max_levels", "context", "day_first")  # numbers, and words that bdl chooses
# What `of_each` fills in, and names that bdl has for signs and encodings
FILLED = ("columns", "words", "sign", "guess")
RNG = np.random.default_rng(0)
PLAIN = pd.DataFrame({"a": RNG.normal(size=ROWS), "y": RNG.normal(size=ROWS)})
WORDS = np.where(np.arange(ROWS) % 9 == 4, "k.A.", PLAIN.a.astype(str))

# The column ODD, the settings, and the key and value that the message must hold
CASES = {
    "target, absent": (None, {"target": ODD}, "data.target", ODD),
    "target, no value": (np.nan, {"target": ODD}, "data.target", ODD),
    "target, constant": (1.5, {"target": ODD}, "data.target", ODD),
    "target, one class": ("x", {"target": ODD}, "data.target", ODD),
    "target, many classes": ([f"t{i}" for i in range(ROWS)], {"target": ODD}, "data.target", ODD),
    "target, whole numbers": (np.arange(ROWS) % 5, {"target": ODD}, "data.target", ODD),
    "target, not positive": (PLAIN.a, {"target": ODD, "loss": "bdl.GammaNLL"}, "data.target", ODD),
    "target, not repeated": (PLAIN.a, {"target": ODD, "loss": "bdl.HurdleNLL"}, "data.target", ODD),
    "targets": ("x", {"target": ["y", ODD]}, "data.target", ["y", ODD]),
    "columns, absent": (None, {"drop": [ODD, "b c"]}, "data.drop", [ODD, "b c"]),
    "exposure": (0, {"exposure": ODD, "target": "count"}, "data.exposure", ODD),
    "exposure, task": (1, {"exposure": ODD, "task": "regression"}, "data.exposure", ODD),
    "weight": (0, {"weight": ODD}, "data.weight", ODD),
    "order": ([*range(ROWS - 1), np.nan], {"order": ODD}, "data.order", ODD),
    "order, one value": (3, {"order": ODD}, "data.order", ODD),
    "group": (["u", None] * 30, {"group": ODD}, "data.group", ODD),
    "group, one": ("u", {"group": ODD}, "data.group", ODD),
    "group, divided": ("u", {"group": ODD, "split_column": "part"}, "data.group", ODD),
    "series": (["u", None] * 30, {"group": ODD, "order": "row", "lags": {"y": [1]}}, "data.group", ODD),
    "split": ("x", {"split_column": ODD}, "data.split_column", ODD),
    "split, no test": ("train", {"split_column": ODD}, "data.split_column", ODD),
    "path": (1, {"path": "a table (1).csv"}, "data.path", "a table (1).csv"),
    "encoding": (1, {"encoding": "my code"}, "data.encoding", "my code"),
    "words": (WORDS, {}, "data.missing", ["?", "k.A."]),
    "words of two": (WORDS, {"missing": ["n/a"], "other": True}, "data.missing", ["n/a", "k.A.", "zu ¼"]),
    "words in the target": (WORDS, {"target": ODD}, "data.missing", ["?", "k.A."]),
    "words in the target's last rows": (
        [*WORDS[:-1], "zu ¼"], {"target": ODD, "task": "regression", "missing": ["n/a"]}, "data.missing",
        ["n/a", "k.A.", "zu ¼"],
    ),
    "categorical": (WORDS, {}, "data.categorical", [ODD]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_a_message_prints_can_be_pasted(tmp_path, case, monkeypatch):
    monkeypatch.chdir(tmp_path)
    column, settings, key, value = CASES[case]
    frame = PLAIN.assign(count=np.arange(ROWS) % 7, row=np.arange(ROWS), part=["train", "test"] * 30)
    frame = frame if column is None else frame.assign(**{ODD: column})
    settings = dict(settings)
    if settings.pop("other", False):
        frame["second"] = [*frame.a[:-2].astype(str), "zu ¼", "zu ¼"][::-1]
    frame.to_csv("t.csv", index=False)
    with pytest.raises(ConfigError) as refusal, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_table(**{"path": "t.csv", "target": "y", **settings})
    written, line = override(key, value), str(refusal.value)
    assert written in line and "\n" not in line
    word = subprocess.run(["bash", "-c", f"printf %s {written}"], capture_output=True, check=True).stdout.decode()
    read = OverridesParser.create().parse_override(word).value()
    assert ([str(part) for part in read] if isinstance(value, list) else str(read)) == value


def test_no_message_prints_a_word_of_the_user_by_itself():
    """`data.key={word}` outside `override` could not be pasted; remedies of `Refused` name {columns} and {words}."""
    found = [(path.name, *fields) for path in SOURCES for fields in WRITTEN.findall(path.read_text())]
    assert len(found) > 10 and [each for each in found if each[1] not in CHOICES and each[2] not in FILLED] == []
