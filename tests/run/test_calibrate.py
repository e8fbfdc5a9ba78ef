"""Tests of `bdl.contrib.simulation.calibrate`: exact samplers rank the truth uniformly, heated ones do not."""

import json
from pathlib import Path

import pytest
import torch
from running import done, refusal, sampled

TABLE = (
    "trainer=debug", "logger=none", "data=csv", "data.target=y", "model.hidden=[]", "chains=4", "stacks=1",
    "tune=false", "~start", "sampler.prior.precision=2",
)  # fmt: skip
EXACT = ("sampler=hmc", "sampler.dynamics.adapt_steps=30", "sampler.dynamics.leapfrog=6", "collect.keep.burn_in=40")
HOT = ("sampler=sgld", "data.batch_size=10", "sampler.lr=2", "collect.keep.burn_in=60", "collect.keep.every=5")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> str:
    random = torch.Generator().manual_seed(0)
    x, noise = torch.randn(120, 3, generator=random), torch.randn(120, generator=random)
    rows = [
        ",".join(f"{v:.5f}" for v in row) + f",{'yes' if row[0] + n > 0 else 'no'}"
        for row, n in zip(x, noise, strict=True)
    ]
    path = tmp_path_factory.mktemp("table") / "table.csv"
    path.write_text("\n".join(["a,b,c,y", *rows]))
    return f"data.path={path}"


@pytest.fixture(scope="module")
def exact(tmp_path_factory, table) -> Path:
    folder = tmp_path_factory.mktemp("exact") / "run"
    sampled(folder, *TABLE, table, *EXACT, "collect.keep.every=3", steps=90)
    return folder


@pytest.mark.parametrize("origin", ["prior", pytest.param("posterior", marks=pytest.mark.slow)])
def test_an_exact_sampler_is_calibrated(exact, script, origin):
    out = done(script("calibrate", f"run={exact}", "replications=20", "length=1", f"origin={origin}"))
    assert "calibrated, as far as 20 replications tell" in out and "output of item 0" in out
    found = json.loads((exact / "calibration_law" / "ranks.json").read_text())
    assert found["replications"] == 20 and found["worst_p"] > 0.01 and found["from"] == origin
    assert all(sum(each["counts"]) == 20 for each in found["quantities"].values())


def test_a_heated_sampler_is_not(tmp_path, table, script):
    sampled(tmp_path / "run", *TABLE, table, *HOT, steps=120)
    out = done(script("calibrate", f"run={tmp_path / 'run'}", "replications=40", "length=1"))
    assert (
        "not calibrated" in out
        and json.loads((tmp_path / "run/calibration_law/ranks.json").read_text())["worst_p"] < 0.01
    )


def test_what_cannot_be_calibrated_is_one_line(exact, tmp_path, table, script):
    assert "replications must be" in refusal(script("calibrate", f"run={exact}", "replications=3"))
    assert "origin must be" in refusal(script("calibrate", f"run={exact}", "origin=data"))
    overrides = ("sampler=sghmc", "sampler.temperature=0.5", "collect.keep.burn_in=4", "collect.keep.every=2")
    sampled(tmp_path / "run", *TABLE, table, *overrides, steps=12)
    assert "at T = 0.5 a run samples no posterior" in refusal(script("calibrate", f"run={tmp_path / 'run'}"))
