"""Tests of `bdl.run.help`, `.completion`, `.directory`: --help, completion, and what differs in a folder."""

import re
import subprocess
import sys

import pytest
from composing import ROOT
from omegaconf import OmegaConf
from repeats import slow_where

from bdl.run import command
from bdl.run.config import config_folder
from bdl.run.directory import differing_key
from bdl.run.help import ABOUT, help_of


def test_the_help_of_train_explains_each_key_and_each_group(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bdl train", "sampler=awsghmc", "--help"])
    command.run_command("train")
    shown = capsys.readouterr().out
    config = OmegaConf.load(config_folder() / "train.yaml")
    keys = config.keys() - {"defaults", "hydra"}
    assert len(keys) > 20 and all(re.search(rf"^{key}: ?.*  # \S", shown, re.M) for key in keys)
    groups = {name for one in config.defaults if OmegaConf.is_dict(one) for name in one}
    assert len(groups) > 10 and all(f"\n{group}: " in shown for group in groups)
    for words in (
        "sampler.*, of sampler=awsghmc",
        "sampler.dynamics.*, of sampler/dynamics=sghmc",
        "tuned.weighted.zeta",
    ):
        assert words in shown
    assert "sampler/dynamics=baoab" in help_of("train") and "\nhydra" not in shown
    assert "chains: 8 or tuned.chains" in shown and "burn_in: 0.4 or tuned.burn_in of the steps" in shown
    assert "oc.select" not in shown and ": ???" not in shown
    assert all(len(line) <= 110 for line in shown.splitlines() if "cifar10/hmc" in line or "awsgld" in line)


COMPLETE = """
bdl() {{ {python} -m bdl "$@"; }}
eval "$(bdl completion)"
COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}
_bdl_completion
printf '%s|' "${{COMPREPLY[@]}}"
complete -p bdl
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    slow_where(
        lambda line, expected: line not in ("bdl tr", "bdl train sampler=sgh"),
        [
            ("bdl tr", ["train "]),
            ("bdl train sampler=sgh", ["sghmc "]),
            ("bdl train chains=4 check", ["checkpoint_every="]),
            ("bdl evaluate train_i", ["train_items="]),
            ("bdl train data=cifar", ["cifar10", "cifar100"]),
        ],
    ),
)
def test_bash_completes_commands_groups_and_keys(line, expected):
    """In a real bash, whose COMP_WORDBREAKS hold =: what stands before it is not repeated."""
    script = COMPLETE.format(python=sys.executable, line=line)
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=100)
    *replies, installed = shell.stdout.split("|")
    assert sorted(replies) == expected, shell.stderr
    assert "_bdl_completion bdl" in installed


def test_hydras_word_for_the_installation_gives_the_same_script(capsys, monkeypatch):
    scripts = []
    for words in (["bdl", "completion"], ["bdl", "train", "--shell-completion", "install=bash"]):
        monkeypatch.setattr(sys, "argv", words)
        command.main()
        scripts.append(capsys.readouterr().out)
    assert scripts[0] == scripts[1] and " ".join(ABOUT) in scripts[0]


PRINTING = ["--help", "train --help", "train --info", "train --cfg job"]


@pytest.mark.parametrize("words", slow_where(lambda words: words != "train --help", PRINTING))
def test_a_pipe_that_closes_ends_the_command_in_silence(words):
    line = f"{sys.executable} -m bdl {words} | head -1"
    shell = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert shell.stderr == "" and len(shell.stdout.splitlines()) == 1


def test_what_differs_is_what_the_user_gave_alone():
    recorded = OmegaConf.create(
        {"seed": 0, "model": {"sizes": [3, 4, 1]}, "sampler": {"lr": 0.3}, "found": {"settings": {"sampler.lr": 0.3}}}
    )
    same = {"seed": 0, "model": {"sizes": None}, "sampler": {"lr": 0.1}}
    assert differing_key(same, recorded) == ""
    assert differing_key(same | {"seed": 2}, recorded) == "seed is 0 there, and 2 here"
    assert differing_key(same | {"clip": 1}, recorded) == "clip is absent there, and 1 here"
    assert (
        differing_key({"model": {"sizes": [3, 8, 1]}}, recorded) == "model.sizes is [3, 4, 1] there, and [3, 8, 1] here"
    )
