"""Tests of `bdl.collector`."""

import gc
import subprocess
import sys

import pytest

from bdl.collector import paused


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was(enabled, monkeypatch):
    states = [enabled]
    monkeypatch.setattr(gc, "isenabled", lambda: states[-1])
    monkeypatch.setattr(gc, "enable", lambda: states.append(True))
    monkeypatch.setattr(gc, "disable", lambda: states.append(False))
    with pytest.raises(KeyError), paused():
        assert states[-1] is False
        raise KeyError
    assert states[-1] is enabled


@pytest.mark.parametrize(
    "line",
    [
        "import bdl.sklearn",
        "bdl.Posterior",
        "import numpy; from bdl.posterior.diagnostics import rhat; rhat(numpy.random.randn(4, 50, 2))",
    ],
)
def test_large_imports_are_made_without_full_collections(line):
    """A full collection walks through all that the imports have made so far."""
    prepared = "import gc, bdl; gc.set_threshold(700, 10, 10)"
    if "numpy" in line:
        prepared = "import numpy, torch, gc, bdl; gc.freeze()"  # what the line imports is seen by itself
    count = "gc.get_stats()[2]['collections']"
    code = f"{prepared}; before = {count}; {line}; print({count} - before, gc.isenabled())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    collections, enabled = ran.stdout.split()
    assert int(collections) <= 1 and enabled == "True"
