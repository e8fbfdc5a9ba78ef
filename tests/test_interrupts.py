"""Tests of `bdl.interrupts` and `bdl.__main__`: a signal ends a command, even where a library swallows it."""

import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from bdl.data.frame import Reading
from bdl.interrupts import Terminated, explained, interruptible, terminable
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
    ("sign", "name", "swallow"),
    [
        ("SIGINT", "bdl.errors", False),
        ("SIGINT", "bdl.run.train", False),
        ("SIGINT", "bdl.run.train", True),
        ("SIGTERM", "bdl.run.console", False),
        ("SIGTERM", "bdl.run.train", True),
    ],
)
def test_a_signal_during_imports_ends_a_command_in_one_line(tmp_path, sign, name, swallow):
    """Imports take seconds on a busy machine. Some libraries try an import, and go on without what failed."""
    blocked = (
        "import os, runpy, signal, sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {name!r}:\n"
        "            sys.meta_path.remove(self)\n"
        f"            try: signal.raise_signal(signal.{sign})\n"
        f"            except KeyboardInterrupt:\n                if not {swallow}: raise\n"
        f"            if {swallow}: raise ImportError('half of it')\n"
        "sys.meta_path.insert(0, Slow())\n"
        "sys.argv = ['bdl', 'train', 'data=csv', 'data.path=t.csv', 'data.target=y', 'hydra.run.dir=run']\n"
        "runpy.run_module('bdl', run_name='__main__')\n"
    )
    ran = subprocess.run([sys.executable, "-c", blocked], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    word = {"SIGINT": "interrupted", "SIGTERM": "stopped by SIGTERM"}[sign]
    assert ran.returncode == 128 + signal.Signals[sign], ran.stderr
    assert len(ran.stderr.splitlines()) == 1 and ran.stderr.startswith(f"bdl: {word}; "), ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_command_that_keeps_nothing_does_not_promise_to_continue(capsys):
    with pytest.raises(SystemExit), one_line_errors(kept=BEGINS_ANEW):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "bdl: interrupted; the same command begins again\n"


def test_sigterm_ends_a_command_as_ctrl_c_does(capsys):
    with pytest.raises(SystemExit) as end, one_line_errors(kept=BEGINS_ANEW), terminable():
        os.kill(os.getpid(), signal.SIGTERM)
    line = "bdl: stopped by SIGTERM; the same command begins again\n"
    assert (end.value.code, capsys.readouterr().err) == (143, line)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_that_a_library_swallowed_is_raised_and_explained():
    with pytest.raises(Terminated, match="kept"), terminable(), explained(lambda: "all is kept"), interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise ValueError("Calling read(nbytes) on source failed") from None


def test_ctrl_c_that_says_what_is_kept_ends_a_script_in_one_line():
    """As during the report of `bdl.sample`, where the samples are kept."""
    code = (
        "from bdl.interrupts import explained, terminable\n"
        "with terminable(), explained(lambda: 'all samples are kept'):\n    raise KeyboardInterrupt\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert (ran.returncode, ran.stderr) == (130, "bdl: interrupted; all samples are kept\n")


def test_a_fork_ends_by_sigterm_as_it_always_did():
    with terminable():
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, b"!")
            for _ in range(1000):  # not signal.pause, which a signal just before it does not end
                time.sleep(0.01)
            os._exit(0)
        os.read(reading, 1)  # Python drops a signal that comes while it forks
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_script_that_a_signal_stops_ends_with_its_status_and_one_line(tmp_path, sign):
    """A traceback and status 1 would look like a fault of the script."""
    script = f"""
import signal, bdl, torch
from torch.utils.data import DataLoader, TensorDataset
class Kill(bdl.callbacks.StepCallback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 3:
            signal.raise_signal({int(sign)})
    def must_see(self, step): return step == 3
    def reads_energy(self, step): return False
loader = DataLoader(TensorDataset(torch.randn(20, 2), torch.randn(20, 1)), 10)
bdl.sample(torch.nn.Linear(2, 1), bdl.GaussianNLL(1.0), loader, "run", steps=50, lr=1e-3, callbacks=[Kill()])
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 128 + sign, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.splitlines()[-1].endswith("; the same call resumes from run/checkpoints/last.ckpt"), ran.stderr
