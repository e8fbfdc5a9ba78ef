"""`bench.py start`: from the command of the default run to its first step, and from its last step to its report.

Each run is a command of its own. It makes 4,000 steps in place of 80,000, of which it keeps as many samples. The times
are those of its files: config.yaml is written as training starts, and a checkpoint after the last step.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from tools.results import SCRIPTS

from bdl.data import LandsatDataModule
from bdl.posterior.report.numbers import summarise
from bdl.posterior.report.page import write_page
from bdl.posterior.report.pictures import pictures_of
from bdl.posterior.traces import read_traces, side_by_side
from bdl.posterior.verdict import verdict
from bdl.run.stored import load_runs
from benchmarks.speed.timing import Times, ratio

T = TypeVar("T")
TRAIN = (sys.executable, str(SCRIPTS / "train.py"))
STACKS = 2  # of the default run


def bench_start(rounds: int, steps: int = 4000) -> tuple[Times, dict[str, float]]:
    """Milliseconds. The parts of the evaluation are measured in one process, which has imported all that they need."""
    torch.set_num_threads(1)  # as the run has
    times: Times = {}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(rounds + 1):  # the first one warms up: files, bytecode, compiled code
            run, measured = Path(folder) / str(i), {"import torch": seconds_of(sys.executable, "-c", "import torch")}
            measured |= {"--help": seconds_of(*TRAIN, "--help"), **of_run(run, steps), **of_parts(run)}
            for name, seconds in measured.items() if i else ():
                times.setdefault(name, []).append(1e3 * seconds)
    shown = ("--help", "first step", "evaluation")
    return times, {f"{name} / import torch": ratio(times[name], times["import torch"]) for name in shown}


def seconds_of(*command: str) -> float:
    # the bytecode of bdl too is read from files, as it is for a user
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def of_run(run: Path, steps: int) -> dict[str, float]:
    """Seconds until the first step of a run, and from its last one to the end of the command."""
    began = time.time()
    whole = seconds_of(*TRAIN, f"length={steps}", f"hydra.run.dir={run}")
    last = max(path.stat().st_mtime for path in (run / "checkpoints").glob("*.ckpt"))
    return {"first step": (run / "config.yaml").stat().st_mtime - began, "evaluation": began + whole - last}


def of_parts(run: Path) -> dict[str, float]:
    posterior, _ = load_runs([run], (), "cpu")
    data = LandsatDataModule()
    splits = {split: data.slices(split) for split in ("test", "train")}
    trace = side_by_side(read_traces(run, range(STACKS)))
    average, _ = timed(lambda: posterior.evaluate_all(splits))
    numbers, summary = timed(lambda: summarise(posterior, splits, trace))
    judged, _ = timed(lambda: verdict(summary.metrics))
    page, shown = timed(lambda: write_page(run / "page.html", posterior, summary, {}, "", trace))
    drawn, _ = timed(lambda: [picture.embedded for picture in pictures_of(shown)])
    return {
        "evaluation: average over samples": average,
        "evaluation: scores and convergence": numbers - average,
        "evaluation: verdict": judged,
        "evaluation: page": page,
        "evaluation: pictures of the page": drawn,
    }


def timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result
