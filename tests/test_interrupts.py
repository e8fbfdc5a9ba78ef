"""Tests of `bdl.interrupts`: Ctrl-C ends a command, even where a library swallows it."""

from __future__ import annotations

import os
import signal

import pandas as pd
import pytest

from bdl.data.frame import Reading
from bdl.interrupts import explained, interruptible
from bdl.run.console import one_line_errors


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
