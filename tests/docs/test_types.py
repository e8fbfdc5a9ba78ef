"""Tests of `bdl/__init__.pyi` as readers meet it: pyright follows the Python blocks of the README and of docs/."""

from __future__ import annotations

import json
import subprocess
import sys

import gallery
import pytest
from pages import PAGES, ROOT, blocks

SETTINGS = {
    "typeCheckingMode": "standard",
    "pythonVersion": "3.11",
    "extraPaths": [str(ROOT)],
    "reportMissingModuleSource": False,
    "reportPrivateImportUsage": False,  # arviz_stats exports its functions in a way that pyright does not follow
}


@pytest.mark.slow
def test_the_blocks_of_the_pages_pass_pyright(tmp_path):
    """All blocks of a page are one program, as in test_snippets. Examples of the gallery are programs too."""
    for page in PAGES:
        program = "".join(block.code + "\n" for block in blocks(page, "python") if block.runs)
        (tmp_path / f"{page.stem.replace('-', '_')}_page.py").write_text(program)
    for script in gallery.examples():
        (tmp_path / f"{script.stem}_example.py").write_text(script.read_text())
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(SETTINGS))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    found = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout)
    assert found["summary"]["filesAnalyzed"] == len(PAGES) + len(gallery.examples())
    faults = [describe(fault) for fault in found["generalDiagnostics"] if fault["severity"] == "error"]
    assert not faults, "\n".join(faults)


def describe(fault):
    return (
        f"{fault['file'].rpartition('/')[2]}:{fault['range']['start']['line'] + 1}: {fault['message'].splitlines()[0]}"
    )
