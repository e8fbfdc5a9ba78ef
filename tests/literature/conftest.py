import functools

import pytest


@pytest.fixture
def script(script):
    """Runs reproduce.py with a command line, in this process: (exit status, stdout, lines on stderr)."""
    return functools.partial(script, "reproduce")
