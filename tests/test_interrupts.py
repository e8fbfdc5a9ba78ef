"""Tests of `bdl.interrupts` and `bdl.__main__`: Ctrl-C ends a command, even where a library swallows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pandas as pd
import pytest

from bdl.data.frame import Reading
from bdl.interrupts import explained, interruptible
from bdl.run.console import BEGINS_ANEW, one_line_errors


@pytest.mark.parametrize("swallow", ["as an error", "without a word"])
def test_an_interrupt_that_was_swallowed_is_raised(swallow):
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            if swallow == "as an error":
                raise ValueError("Calling read(nbytes) on source failed") from None
    assert signal.getsignal(signal.SIGINT) is handler


def test_errors_and_results_pass():
    with interruptible():
        assert True
    with pytest.raises(ValueError, match="mine"), interruptible():
        raise ValueError("mine")


def test_ctrl_c_while_a_table_is_parsed_is_no_fault_of_the_table(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")

    def read_csv(*args, **kwargs):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise pd.errors.ParserError(
                "Error tokenizing data. C error: Calling read(nbytes) on source failed."
            ) from None

    monkeypatch.setattr(pd, "read_csv", read_csv)
    with pytest.raises(KeyboardInterrupt):
        Reading().read(tmp_path / "t.csv")


def test_a_command_says_in_one_line_what_an_interrupt_leaves(capsys):
    with pytest.raises(SystemExit) as end, one_line_errors(), explained(lambda: "all samples are kept"):
        raise KeyboardInterrupt
    assert (end.value.code, capsys.readouterr().err) == (130, "bdl: interrupted; all samples are kept\n")


@pytest.mark.parametrize(
    ("name", "swallow"), [("bdl.errors", False), ("bdl.run.train", False), ("bdl.run.train", True)]
)
def test_ctrl_c_during_imports_ends_a_command_in_one_line(tmp_path, name, swallow):
    """Imports take seconds on a busy machine. Some libraries try an import, and go on without what failed."""
    blocked = (
        "import os, runpy, signal, sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {name!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            try: signal.raise_signal(signal.SIGINT)\n"
        f"            except KeyboardInterrupt:\n                if not {swallow}: raise\n"
        f"            if {swallow}: raise ImportError('half of it')\n"
        "sys.meta_path.insert(0, Slow())\n"
        "sys.argv = ['bdl', 'train', 'data=csv', 'data.path=t.csv', 'data.target=y', 'hydra.run.dir=run']\n"
        "runpy.run_module('bdl', run_name='__main__')\n"
    )
    ran = subprocess.run([sys.executable, "-c", blocked], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 130, ran.stderr
    assert len(ran.stderr.splitlines()) == 1 and ran.stderr.startswith("bdl: interrupted; "), ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_command_that_keeps_nothing_does_not_promise_to_continue(capsys):
    with pytest.raises(SystemExit), one_line_errors(kept=BEGINS_ANEW):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "bdl: interrupted; the same command begins again\n"
