from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce.py"


@pytest.fixture
def script(monkeypatch, capsys):
    """Runs reproduce.py with a command line, in this process: (exit status, stdout, lines on stderr)."""

    def run(*arguments: str) -> tuple[int, str, list[str]]:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        capsys.readouterr()
        status = 0
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        except SystemExit as error:
            status = error.code
        out, err = capsys.readouterr()
        return status, out, [line for line in err.splitlines() if line.strip()]

    return run
