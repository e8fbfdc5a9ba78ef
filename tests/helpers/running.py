"""Helpers that run the commands, in this process or in one of their own."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composing import ROOT, SCRIPTS, compose
from forked import Forked
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from bdl.run import train
from bdl.run.build import Callbacks, build_stack
from bdl.run.config import register_resolvers
from bdl.run.directory import RunDirectory
from bdl.run.plan import Plan, RunRequest

WEIGHTED = ("sampler=awsghmc", "sampler.weighting.zeta=300", "sampler.temperature=0.25", "sampler.lr=0.05")
ON_TABLE = (  # overrides of a short run on a table
    "trainer=debug", "logger=none", "model.hidden=[4]", "collect.keep.every=2", "~start", "tune=false",
    "data.batch_size=20", "sampler=sghmc", "data=csv",
)  # fmt: skip
TINY = (
    "logger=none", "chains=2", "trainer.max_steps=12", "model.sizes=[36,6]", "collect.keep.burn_in=5",
    "collect.keep.every=2",
)  # fmt: skip
SMOOTHED = ("loss._target_=torch.nn.CrossEntropyLoss", "+loss.label_smoothing=0.1")

register_resolvers()


def asked(*overrides: str, steps: int | None = None) -> RunRequest:
    """What is asked of a run. steps: in place of the 200 of trainer=debug."""
    cfg = compose(*overrides)
    if steps is not None:
        assert cfg.trainer.max_steps == 200
        cfg.trainer.max_steps = steps
    return RunRequest(cfg, HydraConfig.get())


def planned(*overrides: str, steps: int | None = None, found: Mapping[str, Any] | None = None) -> Plan:
    """The plan of a run, with what tuning found. steps: see `asked`."""
    return asked(*overrides, steps=steps).plan(found)


def sampled(folder: Path, *overrides: str, steps: int | None = None) -> Callbacks:
    """A run up to the end of sampling, without evaluation and report. steps: see `planned`."""
    plan = planned(f"run_dir={folder}", *overrides, steps=steps)
    directory = RunDirectory(plan.folder, plan.hash)
    stack = build_stack(plan, directory, plan.stacks.first)
    train.sample_stack(stack, directory)
    return stack.callbacks


def samples(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "samples").iterdir())}


def whole(folder: Path, *overrides: str) -> None:
    train.run(planned(f"run_dir={folder}", "trainer=debug", *TINY, *overrides))
    GlobalHydra.instance().clear()


def refusal(result: tuple[int, str, list[str]]) -> str:
    status, _, err = result
    assert status == 1, err
    assert len(err) == 1 and err[0].startswith("bdl: "), err
    return err[0]


def done(result: tuple[int, str, list[str]]) -> str:
    """What a command that ended well has printed."""
    status, out, err = result
    assert status == 0, err
    return out


def start(*overrides: str) -> Forked:
    """Start scripts/train.py in a process of its own."""
    return Forked([str(SCRIPTS / "train.py"), *overrides], ROOT)


def start_interpreter(*overrides: str) -> subprocess.Popen:
    """Start scripts/train.py in a new interpreter, as a command line does."""
    command = [sys.executable, str(SCRIPTS / "train.py"), *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def stop(process: Forked | subprocess.Popen, folder: Path, signum: int, stacks: int = 1) -> None:
    """Signal the process once each stack has kept its first sample."""
    deadline = time.monotonic() + 100
    first = [folder / "samples" / f"index-{stack}.jsonl" for stack in range(stacks)]
    while not all(path.exists() for path in first) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate(timeout=10)
        time.sleep(0.01)
    process.send_signal(signum)


def finish(process: Forked) -> tuple[str, str]:
    """Wait for a run that ends well. Returns stdout and stderr."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out, err
