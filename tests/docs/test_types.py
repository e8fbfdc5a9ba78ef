"""Tests of `bdl/__init__.pyi` as readers meet it: pyright follows the Python blocks of the README and of docs/."""

import json
import subprocess
import sys

import pytest
from pages import PAGES, ROOT, blocks
from tools import gallery

SETTINGS = {
    "typeCheckingMode": "standard",
    "pythonVersion": "3.11",
    "extraPaths": [str(ROOT)],
    "reportMissingModuleSource": False,
}

# A loss or a likelihood says which kind of prediction a posterior makes
KINDS = """from typing import assert_type
import torch
from torch import nn
import bdl

net, x, y = nn.Linear(2, 2), torch.ones(1, 2), torch.ones(1)
data = bdl.data.TensorBatches(x, y, 1)
classes = bdl.sample(net, nn.CrossEntropyLoss(), data, "run", steps=1, lr=0.1)
assert_type(classes.predict(x), bdl.Prediction)
assert_type(bdl.sample(net, None, data, "run", steps=1, lr=0.1, only="fc.*").predict(x), bdl.Prediction)
numbers = bdl.sample(net=net, loss=bdl.GaussianNLL(0.1), loader=data, run_dir="run", steps=1, lr=0.1, temperature=0.1)
assert_type(numbers.predict(x), bdl.ValuePrediction)
assert_type(bdl.sample(net, nn.BCEWithLogitsLoss(), data, "run", steps=1, lr=0.1).predict(x), bdl.LabelPrediction)
bdl.sample(net, lambda outputs, y: outputs.mean(), data, "run", steps=1, lr=0.1).predict(x).whatever
assert_type(bdl.Posterior.load("run", net, likelihood=bdl.PoissonNLL()).predict(x), bdl.ValuePrediction)
classes.predict(x).mean  # wrong
numbers.predict(x).probs  # wrong
bdl.sample(net, nn.CrossEntropyLoss(), data, "run", steps=1, lr=0.1, temprature=1)  # wrong
bdl.sample(net, nn.CrossEntropyLoss(), data, "run", steps=1)  # wrong
"""


@pytest.mark.slow
def test_the_blocks_of_the_pages_pass_pyright(tmp_path):
    """All blocks of a page are one program, as in test_snippets. Examples of the gallery are programs too."""
    for page in PAGES:
        program = "".join(block.code + "\n" for block in blocks(page, "python"))
        (tmp_path / f"{page.stem.replace('-', '_')}_page.py").write_text(program)
    for script in gallery.examples():
        (tmp_path / f"{script.stem}_example.py").write_text(script.read_text())
    (tmp_path / "kinds.py").write_text(KINDS)
    found = checked(tmp_path)
    assert found["summary"]["filesAnalyzed"] == len(PAGES) + len(gallery.examples()) + 1
    errors = [fault for fault in found["generalDiagnostics"] if fault["severity"] == "error"]
    faults = [describe(fault) for fault in errors if not fault["file"].endswith("kinds.py")]
    assert not faults, "\n".join(faults)
    of_kinds = [fault for fault in errors if fault["file"].endswith("kinds.py")]
    wrong = [n for n, line in enumerate(KINDS.splitlines()) if line.endswith("# wrong")]
    assert sorted({fault["range"]["start"]["line"] for fault in of_kinds}) == wrong, "\n".join(map(describe, of_kinds))


def checked(folder):
    """What pyright finds in the files of the folder."""
    (folder / "pyrightconfig.json").write_text(json.dumps(SETTINGS))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    return json.loads(subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout)


def describe(fault):
    return (
        f"{fault['file'].rpartition('/')[2]}:{fault['range']['start']['line'] + 1}: {fault['message'].splitlines()[0]}"
    )
