"""Tests of `bdl.run.train`.

Runs in separate processes: signals lose nothing, and several processes make one run.
"""

import itertools
import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forked import Forked
from lightning.pytorch.callbacks import timer
from running import planned, sampled, samples, start, start_interpreter, stop
from safetensors.torch import load_file

import bdl
from bdl.run import train

LONG = (
    "logger=none", "chains=2", "trainer.max_steps=3000", "model.sizes=[36,6]", "collect.keep.every=40",
    "collect.keep.burn_in=100", "checkpoint_every=300",
)  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    sampled(folder, *LONG)
    return samples(folder)


def test_a_time_limit_is_that_of_one_call(tmp_path, uninterrupted, capsys, monkeypatch):
    """Every call samples for a second, by a clock that moves on by a millisecond whenever it is read, and the samples
    are those of a run without a limit."""
    monkeypatch.setattr(timer, "time", SimpleNamespace(monotonic=itertools.count(0, 0.001).__next__))
    limited, reached = planned(f"run_dir={tmp_path}", *LONG, "trainer.max_time=00:00:00:01"), [0]
    for _ in range(2):
        train.run(limited)
        reached.append(torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"])
    assert 0 < reached[1] < reached[2] < 3000 and f"stopped at step {reached[2]} of 3000" in capsys.readouterr().out
    train.run(planned(f"run_dir={tmp_path}", *LONG))
    assert samples(tmp_path) == uninterrupted


def test_a_refusal_in_a_process_of_its_own(tmp_path):
    process = start_interpreter(f"hydra.run.dir={tmp_path}", "sampler=nuts")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert len(err.splitlines()) == 1 and "sampler=nuts: there is no such sampler" in err and "Traceback" not in err


SHORTER = (*LONG, "trainer.max_steps=400", "collect.keep.every=10", "collect.keep.burn_in=20", "checkpoint_every=100")


def on_two(kind: str, folder: Path, *overrides: str) -> Forked:
    batches = ("sampler=sghmc",) if kind == "ddp" else ()  # all the data are no batch that can be dealt out
    return start(f"trainer={kind}", "trainer.accelerator=cpu", f"hydra.run.dir={folder}", *batches, *overrides)


def of_stack(stack: int, folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in samples(folder).items() if name.split(".")[0].endswith(f"-{stack}")}


def test_stacks_in_one_run_are_those_of_runs_of_their_own(tmp_path):
    """This holds for a run that a signal stops and the same command resumes. Both stacks are evaluated together."""
    folder = tmp_path / "both"
    process = on_two("chains", folder, *SHORTER)
    stop(process, folder, signal.SIGINT, stacks=2)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert len(err.splitlines()) == 1 and err.startswith("bdl: stopped by Ctrl-C (SIGINT); the same command resumes"), (
        err
    )
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {"last.ckpt", "last-1.ckpt"}
    assert not (folder / "metrics.json").exists()
    out, err = on_two("chains", folder, *SHORTER).communicate(timeout=200)
    assert err == "" and out.count("resuming from") == 1
    for stack in (0, 1):
        alone = tmp_path / f"stack {stack}"
        sampled(alone, f"stack={stack}", *SHORTER)
        assert len(of_stack(stack, alone)) > 35 and of_stack(stack, folder) == of_stack(stack, alone)
    records = bdl.SampleStore(folder).records()
    assert {(r.stack, *r.chains) for r in records} == {(0, 0, 1), (1, 2, 3)}
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["chains"] == 4 and metrics["samples"] == 2 * len(records)
    traces = [load_file(folder / "checkpoints" / f"trace-{stack}.safetensors") for stack in (0, 1)]
    kept = traces[0]["step"] >= records[0].step
    t_eff = torch.cat([t["t_eff"][kept] for t in traces], 1)
    assert metrics["t_eff"] == pytest.approx(float(t_eff.mean()), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "chains"])  # the stacks of trainer=cpu: test_run_stacks.py
def test_processes_die_with_their_parent_and_the_command_resumes(tmp_path, kind):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first = on_two(kind, whole, *SHORTER)
    second = on_two(kind, killed, *SHORTER)
    stop(second, killed, signal.SIGKILL)
    second.communicate(timeout=200)  # until the last one that holds its output is gone
    assert first.communicate(timeout=200)[1] == "" and first.returncode == 0
    assert not (killed / "metrics.json").exists()
    assert on_two(kind, killed, *SHORTER).communicate(timeout=200)[1] == ""
    assert samples(whole) == samples(killed)
    assert (whole / "metrics.json").read_bytes() == (killed / "metrics.json").read_bytes()
    assert len(samples(whole)) > 35
