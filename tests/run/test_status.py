"""Tests of `bdl.run.jobs`, `bdl.contrib.comparison.status`: what is told of the jobs of a sweep, and of runs."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, replace

import pandas as pd
import pytest
from omegaconf import OmegaConf
from running import TINY, refusal

from bdl.contrib.comparison.status import job_of, run_in, status
from bdl.disk.owner import Owner
from bdl.errors import BdlWarning, ConfigError, Stopped
from bdl.posterior.store import SampleStore
from bdl.run.directory import OWNER
from bdl.run.jobs import NOTE, NOTES, noted, read_note

FIXED = ("trainer=debug", *TINY)


def test_a_sweep_ends_with_a_table_also_where_a_job_fails(tmp_path, script):
    """The second job diverges, so that the third does not begin. The table says which, by what the jobs differ in."""
    status, out, err = script("train", "-m", f"hydra.sweep.dir={tmp_path}", *FIXED, "sampler.lr=0.01,1e9,0.02")
    assert status == 1 and "not finite" in err[-1]
    table = pd.read_csv(tmp_path / "sweep.csv")
    assert dict(zip(table["sampler.lr"], table["state"], strict=True)) == {
        0.01: "ended",
        1e9: "failed",
        0.02: "not begun",
    }
    (run,) = (path.parent for path in tmp_path.rglob("metrics.json"))
    known = ["state", "done", "seconds left", "test/bma/nll", "verdict", "folder", "detail"]
    assert [*table] == ["sampler.lr", *known] and f"table: {tmp_path / 'sweep.csv'}" in out
    status, again, _ = script("status", str(tmp_path))
    nll = json.loads((run / "metrics.json").read_text())["test/bma/nll"]
    for text in (out, again):
        assert "1 ended, 1 failed" in text and "sampler.lr=1000000000.0: the energy is not finite" in text
        assert f"{nll:#.4g}" in text and str(run) in text
    assert status == 0 and f"{nll:#.4g}" in script("status", str(run))[1]


@pytest.mark.slow
def test_an_optimising_sweep_has_a_table_too(tmp_path, script):
    pytest.importorskip("optuna", "4", reason="needs the extra [sweep]")
    words = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "sampler.lr=interval(0.01,0.1)")
    status, out, err = script("train", "-m", f"hydra.sweep.dir={tmp_path}", *FIXED, *words)
    assert (status, err) == (0, []) and "2 runs: 2 ended" in out
    assert pd.read_csv(tmp_path / "sweep.csv")["sampler.lr"].between(0.01, 0.1).all()


def dead() -> Owner:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return replace(Owner.this_process(), pid=process.pid, started="long ago")


HERE, AWAY = Owner.this_process(), replace(Owner.this_process(), host="node7", machine="another")


@pytest.mark.parametrize(
    ("owner", "why", "state", "detail"),
    [
        (HERE, None, "running", ""),
        (AWAY, None, "running", "on node7, silent for"),
        (dead(), None, "killed", ""),
        (None, Stopped(signal.SIGTERM, "stopped by SIGTERM"), "stopped", "SIGTERM"),
        (None, ConfigError("lr is wrong"), "failed", "lr is wrong"),
        (None, None, "stopped", ""),
    ],
)
def test_the_state_of_a_run_follows_from_its_files(tmp_path, owner, why, state, detail):
    with suppress(Stopped, ConfigError), noted(tmp_path / NOTE, ["seed=3", "+a=1"]):
        if why is not None:
            raise why
    if owner is not None:
        (tmp_path / OWNER).write_text(json.dumps(asdict(owner)))
    for stack, step in enumerate((100, 20)):
        note = {"step": step, "steps": 200, "per_second": 10}
        (tmp_path / f"progress-{stack}.json").write_text(json.dumps(note))
    os.utime(tmp_path / "progress-0.json", (0, 0))
    os.utime(tmp_path / "progress-1.json", (30, 30))
    job = run_in(tmp_path, read_note(tmp_path / NOTE))
    assert (job.state, job.done, job.overrides) == (state, 0.3, {"seed": "3", "a": "1"}) and detail in job.detail
    if state == "running":
        assert job.left == 280 / 20  # steps left of both stacks, by what both make a second


@pytest.mark.parametrize(
    ("owner", "step", "state"), [(HERE, 50, "running"), (None, 50, "stopped"), (None, 200, "ended")]
)
def test_a_run_of_bdl_sample_names_its_owner_among_the_samples_and_needs_no_report(tmp_path, owner, step, state):
    SampleStore(tmp_path).write_target({"num_data": 100})
    if owner is not None:
        (tmp_path / "samples" / "owner-0.json").write_text(json.dumps(asdict(owner)))
    (tmp_path / "progress-0.json").write_text(json.dumps({"step": step, "steps": 200, "per_second": 10}))
    job = run_in(tmp_path, {})
    assert (job.state, job.done) == (state, step / 200)


@pytest.mark.parametrize(
    ("note", "state"),
    [
        ({"process": asdict(HERE)}, "waiting"),
        ({}, "waiting"),  # in the queue of a cluster, whether or not the command that put it there goes on
        ({"process": asdict(dead())}, "not begun"),
        ({"process": asdict(dead()), "run": "../gone"}, "killed"),
        ({"why": "refused", "stopped": False}, "failed"),
    ],
)
def test_a_job_without_a_run_stands_as_its_note_says(tmp_path, note, state):
    (tmp_path / NOTE).write_text(json.dumps({"overrides": ["seed=1"], **note}))
    assert job_of(read_note(tmp_path / NOTE), tmp_path / NOTES).state == state


BROKEN = {
    "a pipe": os.mkfifo,
    "a loop": lambda path: path.symlink_to(path),
    "a folder": lambda path: path.mkdir(),
    "noise": lambda path: path.write_bytes(b"\xff{"),
    "words": lambda path: path.write_text('{"overrides": [7], "step": "x", "steps": null}'),
    "no process": lambda path: path.write_text('{"overrides": ["a=1"], "process": {"x": 1}, "step": 1}'),
}


@pytest.mark.parametrize("file", [NOTE, OWNER, "progress-0.json", "config.yaml", f"../{NOTES}/a.json"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_run_with_a_broken_file_hides_no_other(tmp_path, capsys, file, how):
    for path in (tmp_path / "sound" / NOTE, tmp_path / "broken" / NOTE, tmp_path / NOTES / "b.json"):
        path.parent.mkdir()
        path.write_text('{"overrides": ["seed=3"]}')
    (tmp_path / "broken" / file).unlink(missing_ok=True)
    BROKEN[how](tmp_path / "broken" / file)
    status(OmegaConf.create({"runs": str(tmp_path), "metric": None}))
    told = capsys.readouterr().out
    assert str(tmp_path / "sound") in told and "1 waiting" in told


def test_a_folder_that_cannot_be_read_is_told(tmp_path, capsys, monkeypatch):
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / NOTE).write_text('{"overrides": []}')
    scan, exists = os.scandir, os.path.exists

    def refusing(path):
        if os.path.basename(path) == "theirs":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    monkeypatch.setattr(os.path, "exists", lambda path: "theirs" not in str(path) and exists(path))
    with pytest.warns(BdlWarning, match=r"theirs cannot be read \(Permission denied\)"):
        status(OmegaConf.create({"runs": str(tmp_path), "metric": None}))
    assert "1 run: 1 stopped" in capsys.readouterr().out


def test_why_a_job_ended_makes_no_folder_again_and_hides_no_error(tmp_path):
    with pytest.raises(ConfigError, match="lr is wrong"), noted(tmp_path / "run" / NOTE, []):
        (tmp_path / "run").rename(tmp_path / "moved")
        raise ConfigError("lr is wrong")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place, words", [("nothing", "is no folder"), (".", "holds no run")])
def test_a_folder_without_runs_is_one_line(tmp_path, script, place, words):
    assert words in refusal(script("status", str(tmp_path / place)))
