"""Samples two kinds of network of 10^7 parameters on a CPU, and writes their peak memory in bytes a parameter.

    python scripts/bench_memory.py OUT.json

Each case runs in a process of its own, through `Trainer.fit`: steps of SGHMC, with and without kept samples, of which
one is read again. The peak is what the kernel counts of the process, above what it held before the network was made:
parameters, activations and what the libraries allocate are in it.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import platform
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import lightning as L
import torch
from torch import nn

import bdl
from bdl.disk.files import write_atomically
from bdl.models import MLP

STEPS, ITEMS, BATCH = 4, 64, 16  # the batch noise is estimated in the first two


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
        trainer = L.Trainer(
            accelerator="cpu", max_steps=STEPS, logger=False, enable_progress_bar=False, callbacks=keep,
            enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
        )  # fmt: skip
        peak = peak_above(base, lambda: trainer.fit(module, bdl.data.TensorBatches(x, y, BATCH)))
        if not samples:
            return {"parameters": count, "steps": peak / count}
        store = bdl.SampleStore(folder)
        record, before = store.records()[-1], status("VmRSS")
        reading = peak_above(before, lambda: store.read(record))
        return {"parameters": count, "steps and samples": peak / count, "reading a sample": reading / count}


def main() -> None:
    cases = [(name, samples) for name in NETWORKS for samples in (False, True)]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = pool.starmap(measure, cases, chunksize=1)
    networks: dict[str, dict[str, float]] = {name: {} for name in NETWORKS}
    for (name, _), peaks in zip(cases, found, strict=True):
        networks[name] |= peaks
    cpu = next(line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line)
    versions = {"bdl": bdl.__version__, "torch": torch.__version__, "python": platform.python_version()}
    machine = {"versions": versions, "threads": 1, "device": cpu, "date": date.today().isoformat()}
    record = {"machine": machine, "networks": networks}
    write_atomically(Path(sys.argv[1]), json.dumps(record, indent=1).encode() + b"\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
