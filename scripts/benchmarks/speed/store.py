"""What keeping samples costs: the time of a write, and whether the memory of a long run stays flat. For bench.py."""

import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.results import SCRIPTS
from torch import nn

from bdl.models import MLP, ResNet, ResNet18
from bdl.posterior.store import SampleStore
from benchmarks.speed.predict import SIZES
from benchmarks.speed.timing import Times, interleave, timed

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # name -> network, chains
    "Landsat MLP, 8 chains": (lambda: MLP(SIZES), 8),
    "ResNet20": (lambda: ResNet(20), 1),
    "ResNet18": (ResNet18, 1),
}
SECOND = 1000.0  # milliseconds
LONG = ("chains=1", "length=1000000", "collect.keep.every=1000", "train_items=200", "threads=1", "logger=none")
STEP = re.compile(r"step ([\d,]+) of ([\d,]+)")


def bench_store(rounds: int) -> tuple[Times, dict[str, float]]:
    """Milliseconds per file of samples, beside a plain write of as many bytes that waits for the disk as well.

    The ratios are shares of sampling, at one such file a second.
    """
    with tempfile.TemporaryDirectory() as name:
        contestants = {}
        for network, (build, chains) in NETWORKS.items():
            write = writer(Path(name, network), build(), chains)
            size = write()
            megabytes = f"{network}, {size / 1e6:.3g} MB"
            contestants[f"bdl write, {megabytes}"] = timed(write, 3)
            contestants[f"plain write, {megabytes}"] = timed(plain_writer(Path(name, "plain"), size), 3)
        times = interleave(contestants, rounds)
    ours = {contestant: t for contestant, t in times.items() if contestant.startswith("bdl")}
    return times, {f"{k} a second / sampling": statistics.median(t) / SECOND for k, t in ours.items()}


def writer(folder: Path, net: nn.Module, chains: int) -> Callable[[], int]:
    """A function that writes the next file of samples and returns its bytes."""
    store, steps = SampleStore(folder), itertools.count()
    tensors = {name: t.detach().expand(chains, *t.shape).clone() for name, t in net.state_dict().items()}
    fields = {"stack": 0, "chains": list(range(chains)), "lr": 0.1, "temperature": 1.0}
    return lambda: store.write(tensors, step=next(steps), **fields).bytes


def plain_writer(path: Path, size: int) -> Callable[[], None]:
    data = os.urandom(size)

    def write() -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    return write


def bench_memory(*overrides: str) -> tuple[Times, dict[str, float]]:
    """The memory of `train.py` at the end of a million steps, against that at a tenth of them.

    Raises RuntimeError if the run fails, or did not tell its steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(SCRIPTS / "train.py"), f"hydra.run.dir={folder}/run"]
        seen: dict[float, float] = {}  # share of the steps -> MB
        with subprocess.Popen([*command, *LONG, *overrides], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if found := STEP.search(line):
                    step, of = (int(number.replace(",", "")) for number in found.groups())
                    seen[step / of] = resident(process.pid)
    begins = min((share for share in seen if share >= 0.1), default=None)
    if process.returncode or begins is None or 1.0 not in seen:
        raise RuntimeError(f"the long run ended with status {process.returncode} after {seen}")
    return {}, {f"MB at {begins:.0%}": seen[begins], "memory at 100 % / at 10 % of the steps": seen[1.0] / seen[begins]}


def resident(pid: int) -> float:
    """Megabytes of a process in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
