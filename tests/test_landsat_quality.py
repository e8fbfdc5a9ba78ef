"""The main job, shortened: what a user gets from Landsat, as errors and NLL on the test rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_quarter_of_the_default_run_is_calibrated(tmp_path: Path):
    """20,000 of 80,000 steps. Bounds: what a one-sample network of this size reaches is 10.5 %, NLL .35; the standard
    error of an error of 8 % on 2,000 rows is .6 points, and the average of 8 chains has to be 3 of them better."""
    command = [
        sys.executable,
        str(ROOT / "scripts" / "train.py"),
        "trainer.max_steps=20000",
        f"hydra.run.dir={tmp_path}",
    ]
    subprocess.run(command, check=True, env={**os.environ, "WANDB_MODE": "offline"}, timeout=400)
    m = json.loads((tmp_path / "metrics.json").read_text())
    assert m["test/bma/accuracy"] >= 0.913
    assert m["test/bma/nll"] <= 0.24
    assert m["test/bma/ece"] <= 0.03
    assert m["test/bma/nll"] < m["test/chain_bma/nll"] < m["test/one_sample/nll"]
    assert m["samples"] == 800 and m["chains"] == 8
    # Two measurements that share nothing: differences of gradients, and the size of the momenta.
    assert m["t_eff"] == pytest.approx(m["kinetic_temperature"], rel=0.25)
