"""Tests of `bdl.run.outcome` and `.train`: the chains of one run in several stacks.

Who carries them, and how often they are stopped, does not change a byte.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from composing import compose
from omegaconf import OmegaConf
from repeats import slow_where
from running import finish, planned, refusal, samples, start, stop

import bdl
from bdl.run import train
from bdl.run.directory import RunDirectory
from bdl.run.outcome import Outcome, gather_outcomes
from bdl.run.processes import SINGLE

FOUR = (
    "logger=none", "chains=4", "trainer.max_steps=400", "model.sizes=[36,8,6]", "model.dropout=0.1",
    "collect.keep.every=20", "collect.keep.burn_in=20", "checkpoint_every=50", "train_items=200",
)  # fmt: skip


def on(processes: int, folder: Path, *overrides: str):
    return start(f"processes={processes}", f"hydra.run.dir={folder}", *FOUR, *overrides)


def of_stack(stack: int, folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in samples(folder).items() if name.split(".")[0].endswith(f"-{stack}")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Two stacks of two chains, one after the other in this process."""
    folder = tmp_path_factory.mktemp("stacks")
    train.run(planned(f"run_dir={folder}", *FOUR))
    return folder


def differences(folder: Path, reference: Path) -> list[str]:
    """The samples and metrics that are not the same byte for byte."""
    one, other = samples(folder), samples(reference)
    files = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    metrics, expected = (json.loads((path / "metrics.json").read_text()) for path in (folder, reference))
    return files + [f"{k}: {metrics.get(k)}, not {expected.get(k)}" for k in expected if metrics.get(k) != expected[k]]


@pytest.mark.parametrize("stack", slow_where(lambda stack: stack == 0, [0, 1]))
def test_each_stack_is_the_run_of_that_stack_alone(tmp_path, uninterrupted, stack):
    train.run(planned(f"run_dir={tmp_path}", *FOUR, f"stack={stack}", "stacks=1", "chains=2"))
    assert len(of_stack(stack, tmp_path)) > 18
    assert of_stack(stack, tmp_path) == of_stack(stack, uninterrupted)


def test_the_run_is_one_posterior_of_all_chains(uninterrupted):
    records = bdl.SampleStore(uninterrupted).records()
    assert {(r.stack, *r.chains) for r in records} == {(0, 0, 1), (1, 2, 3)}
    metrics = json.loads((uninterrupted / "metrics.json").read_text())
    assert metrics["chains"] == 4 and metrics["samples"] == 2 * len(records)
    config = OmegaConf.load(uninterrupted / "config.yaml")
    assert config.stacks == 2 and config.chains == 4 and config.trainer.precision == "32-true"


STOPS = [(signal.SIGTERM, 1, 2), (signal.SIGKILL, 2, 1)]


@pytest.mark.parametrize("signum, before, after", slow_where(lambda signum, *_: signum == signal.SIGTERM, STOPS))
def test_a_stopped_run_continues_on_other_numbers_of_processes(tmp_path, uninterrupted, signum, before, after):
    process = on(before, tmp_path)
    stop(process, tmp_path, signum)
    _, err = process.communicate(timeout=200)  # until the last process that holds the output is gone
    assert process.returncode == (-signum if signum == signal.SIGKILL else 128 + signum), err
    assert len(err.splitlines()) == (0 if signum == signal.SIGKILL else 1)
    assert not (tmp_path / "metrics.json").exists()
    if after == 1:
        train.run(planned(f"run_dir={tmp_path}", *FOUR))
    else:
        assert finish(on(after, tmp_path))[1] == ""
    assert differences(tmp_path, uninterrupted) == []


def test_a_finished_stack_is_not_sampled_again(tmp_path, uninterrupted, capsys):
    plan = planned(f"run_dir={tmp_path}", *FOUR)
    train.sample_stacks(plan, RunDirectory(tmp_path, plan.hash), range(1), 2, SINGLE)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "samples").glob("*-0.*")}
    assert len(written) > 18
    train.run(plan)
    assert capsys.readouterr().out.count("resuming from") == 1
    assert written == {path: path.stat().st_mtime_ns for path in written}
    assert differences(tmp_path, uninterrupted) == []


def test_a_time_limit_is_that_of_all_stacks_together(tmp_path, capsys):
    train.run(planned(f"run_dir={tmp_path}", *FOUR, "trainer.max_steps=200000", "trainer.max_time=00:00:00:01"))
    assert "stopped at step 0 of 200000 in the slowest of 2 stacks" in capsys.readouterr().out
    checkpoints = [path.name for path in (tmp_path / "checkpoints").glob("*.ckpt")]
    assert checkpoints == ["last.ckpt"]
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] > 0


def test_stacks_stopped_at_different_steps_have_no_joint_trace(tmp_path):
    directory = RunDirectory(tmp_path, "hash")
    outcomes = [Outcome(steps, {"energy": torch.ones(steps // 50, 2)}, None) for steps in (800, 400)]
    joint = gather_outcomes(None, directory, range(2), range(2), outcomes, 800)
    assert joint == Outcome(400, {}, None)
    whole = gather_outcomes(None, directory, range(2), range(2), outcomes[:1] * 2, 800)
    assert whole.steps == 800 and whole.trace["energy"].shape == (16, 4)


def test_two_processes_write_what_one_does_with_its_objective(tmp_path, uninterrupted, capfd, monkeypatch):
    """They return it also when the run is complete."""
    monkeypatch.setattr(train, "start_by", lambda accelerator: "fork")  # other tests left threads, which need spawn
    cfg = compose(f"run_dir={tmp_path}", *FOUR, "processes=2")
    nll = json.loads((uninterrupted / "metrics.json").read_text())["test/bma/nll"]
    assert train.train(cfg) == pytest.approx(nll, rel=1e-12)
    out, err = capfd.readouterr()
    assert err == "" and "stack 0 (2 in all, 2 at a time)" in out
    assert differences(tmp_path, uninterrupted) == []
    assert (tmp_path / "config.yaml").read_text() == (uninterrupted / "config.yaml").read_text()
    assert train.train(cfg) == pytest.approx(nll, rel=1e-12) and "already holds this run" in capfd.readouterr().out


def test_a_stack_that_diverges_ends_the_run_in_one_line(tmp_path):
    process = on(2, tmp_path, "sampler.lr=1e30")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1 and len(err.splitlines()) == 1 and "is not finite at step" in err


def test_evaluate_reads_all_stacks(script, tmp_path, uninterrupted):
    assert script("evaluate", f"runs={uninterrupted}", f"out={tmp_path}", "train_items=200")[0] == 0
    one, again = (json.loads((folder / "metrics.json").read_text()) for folder in (uninterrupted, tmp_path))
    assert {k: one[k] for k in one if "/" in k} == {k: again[k] for k in one if "/" in k}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_ctrl_z_stops_the_processes_and_fg_continues_them(tmp_path):
    process = on(2, tmp_path, "trainer.max_steps=200000")
    stop(process, tmp_path, signal.SIGTSTP)
    wait_until(lambda: [state(pid) for pid in (process.pid, *children(process.pid))] == ["T"] * 3)
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: "T" not in [state(pid) for pid in (process.pid, *children(process.pid))])
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 143 and len(err.splitlines()) == 1


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(true) -> None:
    deadline = time.monotonic() + 200
    while not true():
        if time.monotonic() > deadline:  # a hang, not a slow machine
            raise TimeoutError
        time.sleep(0.02)


IMPOSSIBLE = {
    "divisor": ("stacks=3; chains=8", "stacks=3 does not divide chains=8: choose a divisor, or leave it null"),
    "more stacks than chains": ("stacks=4; chains=2", "stacks=4 does not divide chains=2"),
    "ladder": ("stacks=2; sampler=resghmc; chains=8", "stacks=2, but the chains of a replica exchange belong together"),
    "chains": ("stacks=2; trainer=chains", "stacks=2 divides the chains of a run on one CPU (trainer=cpu, debug)"),
    "ddp": ("stacks=2; trainer=ddp", "stacks=2 divides the chains of a run on one CPU (trainer=cpu, debug)"),
    "gpu": ("stacks=2; trainer=gpu", "leave it null or set it to 1; trainer=chains starts a stack on each"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_stacks_get_one_line_and_leave_nothing(script, tmp_path, name):
    overrides, words = IMPOSSIBLE[name]
    error = refusal(script("train", f"hydra.run.dir={tmp_path / 'run'}", *FOUR, *overrides.split("; ")))
    assert words in error
    assert not (tmp_path / "run").exists() or [p for p in (tmp_path / "run").rglob("*") if p.is_file()] == []
