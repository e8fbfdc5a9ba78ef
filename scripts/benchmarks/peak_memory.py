"""Peak memory on a CPU: two kinds of network of 10^7 parameters, in bytes a parameter, and tables, in bytes a cell.

    python scripts/bench.py peak_memory OUT.json
    python scripts/bench.py peak_memory OUT.json --large

The second line reads and samples a table of 10^5 rows and 1,000 columns (800 MB, in the folder of temporary files) by
`scripts/train.py`, and adds what it took to OUT.json.

Each case runs in a process of its own, through `Trainer.fit`: steps of SGHMC, with and without kept samples, of which
one is read again. The peak is what the kernel counts of the process, above what it held before the network was made:
parameters, activations and what the libraries allocate are in it. A table is read after a small one, because that loads
libraries.
"""

import contextlib
import functools
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import lightning as L
import numpy as np
import torch
from tools.chains import QUIET
from tools.command import Said
from tools.processes import core_seconds
from tools.results import SCRIPTS, about, read, save
from torch import nn

import bdl
from bdl.data.frame import Reading
from bdl.models import MLP

STEPS, ITEMS, BATCH = 4, 64, 16  # the batch noise is estimated in the first two
TABLES = {"10^6 rows x 10 columns": (10**6, 10), "10^4 rows x 1,000 columns": (10**4, 1000)}
LARGE, BUDGET = (10**5, 1000), "3m"  # rows and columns, and the time of their run


class Transformer(nn.Module):
    """An encoder of 12 layers over 16 tokens, 49 of 784 pixels each, and a linear layer on the mean of its outputs."""

    def __init__(self, width: int = 264, layers: int = 12):
        super().__init__()
        self.embed = nn.Linear(49, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classify = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.encode(self.embed(x.view(len(x), 16, 49))).mean(1))


NETWORKS = {"MLP": lambda: MLP((784, 2600, 2600, 500, 10)), "transformer": Transformer}


def status(field: str) -> int:
    """Bytes that the process holds (VmRSS), or has held at most since the counter was cleared (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def peak_above(base: int, work: Callable[[], object]) -> int:
    """Bytes above `base` that the process holds at most during some work."""
    Path("/proc/self/clear_refs").write_text("5")
    work()
    return status("VmHWM") - base


def measure(name: str, samples: bool) -> dict[str, float]:
    """Peaks of one network, in bytes for each of its parameters. samples: it also keeps two, and reads one."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = torch.randn(ITEMS, 784), torch.randint(10, (ITEMS,))
    base = status("VmRSS")
    net = NETWORKS[name]()
    count = sum(p.numel() for p in net.parameters())
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(0.1), num_data=ITEMS, lr=1e-4)
    module = bdl.BayesianModule(net, build)
    with tempfile.TemporaryDirectory() as folder:
        keep: list[L.Callback] = [bdl.CollectSamples(bdl.schedules.EveryStep(0, STEPS // 2), folder)] if samples else []
        trainer = L.Trainer(**QUIET, max_steps=STEPS, callbacks=keep, default_root_dir=folder)
        peak = peak_above(base, lambda: trainer.fit(module, bdl.data.TensorBatches(x, y, BATCH)))
        if not samples:
            return {"parameters": count, "steps": peak / count}
        store = bdl.SampleStore(folder)
        record, before = store.records()[-1], status("VmRSS")
        reading = peak_above(before, lambda: store.read(record))
        return {"parameters": count, "steps and samples": peak / count, "reading a sample": reading / count}


def write_table(path: Path, rows: int, columns: int) -> None:
    """A CSV file of numbers between 0 and 10 with 5 decimals. The last column, y, is a noisy function of the others."""
    random = np.random.default_rng(0)
    inner, last = (np.array([f"{i / 1e5:.5f}{end}" for i in range(10**6)], "S8") for end in ",\n")
    slopes, block = random.normal(size=columns - 1) / (columns - 1) ** 0.5, max(1, 10**6 // columns)
    with open(path, "wb") as f:
        f.write(",".join([*(f"x{i}" for i in range(columns - 1)), "y\n"]).encode())
        for start in range(0, rows, block):
            x = random.integers(0, 10**6, (min(block, rows - start), columns - 1))
            y = 5 + 3 * np.tanh((x / 1e5 - 5) @ slopes / 3) + 0.3 * random.normal(size=len(x))
            f.write(np.concatenate([inner[x], last[(1e5 * y).astype(int).clip(0, 10**6 - 1)][:, None]], 1).tobytes())


def read_table(name: str) -> dict[str, float]:
    """Peak bytes a cell and core-seconds of the reading of one table."""
    rows, columns = TABLES[name]
    with tempfile.TemporaryDirectory() as folder:
        small, path = Path(folder) / "small.csv", Path(folder) / "table.csv"
        write_table(small, 200, columns)
        write_table(path, rows, columns)
        Reading().read(small)
        base, began = status("VmRSS"), time.process_time()
        peak = peak_above(base, lambda: Reading().read(path))
        seconds = time.process_time() - began
    return {"cells": rows * columns, "bytes a cell": peak / rows / columns, "core-seconds": seconds}


def tree(process: int) -> Iterator[int]:
    """A process and all that it has started, which may end meanwhile."""
    yield process
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def held(process: int) -> int:
    """Bytes of a process; memory that several share is divided among them."""
    with contextlib.suppress(OSError, StopIteration):
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return 1024 * int(next(line for line in rollup if line.startswith("Pss:")).split()[1])
    return 0


def sample_large() -> dict[str, Any]:
    """What a run on a large table takes, looked at twice a second: all its processes together."""
    rows, columns = LARGE
    with tempfile.TemporaryDirectory() as folder:
        path, run = Path(folder) / "table.csv", Path(folder) / "run"
        write_table(path, rows, columns)
        words = [f"hydra.run.dir={run}", "data=csv", f"data.path={path}", "data.target=y", f"budget={BUDGET}"]
        began, peak = time.perf_counter(), 0
        command = subprocess.Popen([sys.executable, str(SCRIPTS / "train.py"), *words])
        while command.poll() is None:
            peak = max(peak, sum(map(held, tree(command.pid))))
            time.sleep(0.5)
        if command.returncode:
            raise SystemExit(f"train.py failed with status {command.returncode}")
        seconds = time.perf_counter() - began
        metrics = json.loads((run / "metrics.json").read_text())
    return {
        "cells": rows * columns, "budget": BUDGET, "peak": peak, "bytes a cell": peak / rows / columns,
        "seconds": seconds, "core-seconds": core_seconds(),
        **{name: metrics[name] for name in ("samples", "chains", "test/bma/rmse")},
    }  # fmt: skip


def machine() -> dict[str, Any]:
    more = {"torch": torch.__version__, "python": platform.python_version(), "threads": 1}
    return {**about(), **more, "cores": os.cpu_count(), "load": round(os.getloadavg()[2], 1)}


def main(
    out: Annotated[Path, Said(metavar="OUT.json")],
    *,
    large: Annotated[bool, Said("sample the large table, and nothing else")] = False,
) -> None:
    record = read(out)
    if large:
        record["large table"] = sample_large() | {"machine": machine()}
    else:
        record |= {"machine": machine()} | measured()
    save(out, record)
    print(json.dumps(record, indent=1))


def measured() -> dict[str, Any]:
    """The networks and the tables, each in a process of its own."""
    networks: dict[str, dict[str, float]] = {name: {} for name in NETWORKS}
    cases = [(name, samples) for name in NETWORKS for samples in (False, True)]
    for (name, _), peaks in zip(cases, in_new_processes(measure, cases), strict=True):
        networks[name] |= peaks
    tables = in_new_processes(read_table, [(name,) for name in TABLES])
    return {"networks": networks, "tables": dict(zip(TABLES, tables, strict=True))}


def in_new_processes(work: Callable[..., Any], cases: Iterable[tuple]) -> list[Any]:
    """What `work` returns for the arguments of each case, one after another, each in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return pool.starmap(work, cases, chunksize=1)
