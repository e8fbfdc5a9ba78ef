"""The progress of an evaluation: silent while it is short, a few lines in a log file, a bar on a terminal."""

import io

import pytest
import rich.console
from rich import progress as rich_progress

from bdl.run.console import LINES, WorkProgress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until the test moves it."""
    now = [100.0]
    monkeypatch.setattr("bdl.run.console.time.perf_counter", lambda: now[0])
    return now


def work(clock, seconds: float, steps: int = 1000) -> None:
    with WorkProgress("evaluating") as progress:
        for done in range(1, steps + 1):
            clock[0] += seconds / steps
            progress(done, steps)


def test_short_work_is_silent(clock, capsys):
    work(clock, 1.9)
    assert capsys.readouterr().out == ""


def test_long_work_prints_a_few_lines_in_a_log_file(clock, capsys):
    work(clock, 100.0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == LINES
    assert (lines[0], lines[-1]) == ("evaluating: 10%, 10 s, 90 s left", "evaluating: 100%, 100 s, 0 s left")


def test_work_of_hours_says_after_ten_seconds_how_long_it_takes(clock, capsys):
    work(clock, 10_000.0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == LINES + 1 and lines[0] == "evaluating: 0%, 10 s, 9990 s left"


def test_a_terminal_gets_a_bar_that_ends_with_the_work(clock, monkeypatch, capsys):
    shown = io.StringIO()
    terminal = rich.console.Console(file=shown, force_terminal=True, width=100)
    monkeypatch.setattr(rich_progress, "get_console", lambda: terminal)
    work(clock, 1.9)
    assert "evaluating" not in shown.getvalue()
    work(clock, 10.0)
    assert "evaluating" in shown.getvalue() and "100%" in shown.getvalue() and capsys.readouterr().out == ""
