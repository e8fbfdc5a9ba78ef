"""Tests of `bdl.run.suggestions` and `bdl.run.console`: misspelled keys, and pipes whose reader has gone."""

import subprocess
import sys

import pytest
from composing import ROOT
from repeats import slow_where
from running import refusal

from bdl.run.config import config_folder
from bdl.run.suggestions import keys_of, nearest, suggestion


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("chans", "chains"),
        ("sampler.friction", "sampler.dynamics.friction"),
        ("sampler.temprature", "sampler.temperature"),
        ("model.hiden", "model.hidden"),
        ("data.bach_size", "data.batch_size"),
        ("data.seperator", "data.separator"),
        ("lenght", "length"),
        ("check_every", "checkpoint_every"),
    ],
)
def test_a_misspelled_key_gets_the_nearest(key, meant):
    line = suggestion(f"Could not override '{key}'. To append to your config use +{key}=3", "train", config_folder())
    assert line == f"{key} is no key of this command (did you mean {meant}?): --help lists the keys"


@pytest.mark.parametrize(
    ("key", "choice"),
    [("start.epochs", "start=adamw"), ("sampler.dynamics.energy_var", "sampler/dynamics=mclmc"),
     ("calibrate.level", "calibrate=conformal"), ("data.target", "data=csv")],
)  # fmt: skip
def test_a_key_of_a_choice_that_is_not_chosen_names_the_choice(key, choice):
    """It is spelled as it should be, so that "did you mean" would name the key itself."""
    line = suggestion(f"Could not override '{key}'. To append to your config use +{key}=3", "train", config_folder())
    assert line is not None and line.startswith(f"{key} is a key of {choice}, which this command line does not choose")
    assert f"add {choice.partition(' or ')[0]}" in line


def test_keys_are_those_of_the_command():
    keys = set(keys_of("evaluate", config_folder()))
    assert "runs" in keys and "chains" not in keys and "hydra" not in keys
    assert nearest("zzz", sorted(keys)) is None


def test_a_misspelled_choice_and_key_on_the_command_line(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for override, words in [
        ("sampler=sghmcc", "sampler=sghmcc: there is no such sampler (did you mean sghmc?): choose among awpsgld, "),
        ("chans=3", "chans is no key of this command (did you mean chains?)"),
    ]:
        assert words in refusal(script("train", override))


@pytest.mark.parametrize("command", slow_where("evaluate".__eq__, ["train", "evaluate"]))
def test_a_closed_pipe_is_silent(command):
    """The reader is gone before the command prints, as with `| head -0`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bdl", command, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 141


def test_what_is_too_long_or_too_deep_is_one_line(script, tmp_path):
    """A list of many columns is longer than the name of a file may be, and is none."""
    columns = f"data.drop=[{','.join(f'column_{i}' for i in range(80))}]"
    table = tmp_path / "table.csv"
    table.write_text("a,y\n" + "".join(f"{i},{i % 7}\n" for i in range(40)))
    words = [f"hydra.run.dir={tmp_path / 'run'}", "data=csv", "data.target=y"]
    conf = tmp_path / "conf" / "model"
    conf.mkdir(parents=True)
    (conf / "deep.yaml").write_text("_target_: bdl.models.MLP\nsizes: " + "[" * 3000 + "]" * 3000)
    for more, told in [
        ([f"data.path={table}", columns], "data.drop=[column_0,column_1,"),
        ([f"data.path={'x' * 5000}"], "is too long for the name of a file: give a shorter path"),
        (
            [f"data.path={table}", "data.drop=" + "[" * 3000 + "]" * 3000],
            "nested too deep: write it with fewer brackets",
        ),
        ([f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "model=deep"], "nested too deep: write it with fewer"),
    ]:
        assert told in refusal(script("train", *words, *more))
