"""Tests of `bdl.data.table` and `bdl.advice` with names of columns that Hydra or YAML reads as other values."""

import subprocess
import warnings

import numpy as np
import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from bdl.advice import override
from bdl.data.table import TableDataModule, read_table
from bdl.errors import ConfigError
from bdl.run.console import quoted

ROWS = 60
RNG = np.random.default_rng(0)
NAMES = (
    "007", "7", "2020", "1.50", "1.5", "1e3", "-1", "+5", ".5", "5.", "1_000", "123456789012345678901", "true", "True",
    "null", "None", "nan", "inf", "no", "2020-01-01", "12:30", "a,b", "a:b", "a b", "größe (m²)", "a=b", "=a", 'a"b',
    "it's", "a\\", "$HOME", "${a}", "[a]", "#x", "*", "~x", "?", "`id`", "日本",
)  # fmt: skip
# Each key that takes the name of a column: the column's values, and whether the table was read in this way
KEYS = {
    "target": (RNG.normal(size=ROWS), lambda data, name: data.encoding.target.name == name),
    "drop": (RNG.normal(size=ROWS), lambda data, name: name not in data.encoding.inputs.names),
    "id": ([f"r{i}" for i in range(ROWS)], lambda data, name: data.encoding.id == (name,)),
    "categorical": (RNG.integers(0, 3, ROWS), lambda data, name: name in data.encoding.inputs.written),
    "weight": (RNG.uniform(1, 2, ROWS), lambda data, name: data.weighted),
    "exposure": (RNG.uniform(1, 2, ROWS), lambda data, name: data.encoding.exposure.name == name),
    "order": (np.arange(ROWS), lambda data, name: f"ordered by {name}" in data.overview),
    "group": (RNG.integers(0, 20, ROWS), lambda data, name: f"rows of one {name} stay" in data.overview),
    "split_column": (RNG.choice(["train", "test"], ROWS), lambda data, name: name not in data.encoding.inputs.names),
}
LISTS = ("drop", "id", "categorical")


def read(path, key: str, word: str) -> TableDataModule:
    """The table, with a key of the command as Hydra reads it of a word that bash has read."""
    value = OmegaConf.create({key: OverridesParser.create().parse_override(word).value()})
    value = OmegaConf.to_container(value, resolve=True)[key]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_table(path, **{"target": "y", key: value})


def in_bash(words: str) -> str:
    return subprocess.run(["bash", "-c", f"printf %s {words}"], capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize("key", KEYS)
def test_a_column_of_any_name_is_taken_or_the_line_says_how_to_name_it(tmp_path, key):
    values, used = KEYS[key]
    for name in NAMES:
        table = pd.DataFrame({"x1": RNG.normal(size=ROWS), "x2": RNG.normal(size=ROWS), "y": RNG.permutation(ROWS)})
        table.assign(**{name: values}).to_csv(tmp_path / "t.csv", index=False)
        written = override(f"data.{key}", [name] if key in LISTS else name)
        assert used(read(tmp_path / "t.csv", key, in_bash(written)), name), written
        plain = f"data.{key}=[{name}]" if key in LISTS else f"data.{key}={name}"
        try:
            OverridesParser.create().parse_override(plain)
        except Exception:  # the command says how to quote it
            if quoted(plain) != "'key=\"value\"'":
                assert "," in name or used(read(tmp_path / "t.csv", key, in_bash(quoted(plain))), name), plain
            continue
        if name in ("${a}", "a,b") or name == "null" and key not in ("target", *LISTS):
            continue  # another key of the configuration, a sweep, and no column at all
        try:
            data = read(tmp_path / "t.csv", key, plain)
        except ConfigError as refusal:
            assert name in ("null", "[a]") or f"did you mean {override(f'data.{key}', name)}?" in str(refusal)
        else:
            assert used(data, name), plain
