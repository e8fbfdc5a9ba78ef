"""Memory and time of chains of adapters over one frozen body: python scripts/bench_adapters.py [OUT.json].

The body is a GPT of 10^8 parameters at random values; 8 chains sample adapters of rank 8 in the attention of its upper
blocks, or of all of them, by SGHMC on shared batches of one window, through `bdl.sample`, which also stores samples and
a checkpoint, and loads the posterior. Each case runs in a process of its own. The peaks are what the kernel counts of
the process, above what it held before the body was made; a small network was sampled before, so that the libraries are
loaded.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import lightning as L
import torch
from bench_memory import peak_above, status
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.disk.files import write_atomically
from bdl.models import GPT, lora
from bdl.run.machine import device_name

OUT = Path(__file__).parent / "results" / "adapters.json"
CHAINS, RANK, LAYERS, STEPS = 8, 8, 14, 6
VOCABULARY, CONTEXT = 256, 16  # a batch is one window of so many tokens
CASES = {"upper": (LAYERS - 2, LAYERS - 1), "all": tuple(range(LAYERS))}  # blocks that have adapters


class Clock(L.Callback):
    """CPU seconds of this process after each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.process_time())


def sampled(net: torch.nn.Module, blocks: tuple[int, ...], folder: str) -> dict[str, float]:
    """Adapters into the attention of these blocks, STEPS steps of all chains, and the posterior that was stored."""
    named = [f"blocks.{i}.attention.{name}" for i in blocks for name in ("queries_keys_values", "out")]
    adapted, clock = lora(net, r=RANK, lora_alpha=2 * RANK, target_modules=named), Clock()
    tokens = torch.randint(VOCABULARY, (STEPS, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=1)
    keep = bdl.schedules.EveryStep(burn_in=0, every=STEPS // 2)
    bdl.sample(
        adapted, bdl.CategoricalNLL(), loader, folder, steps=STEPS, lr=1e-4, dynamics=bdl.SGHMC(0.1), chains=CHAINS,
        only="*.lora_*", num_data=STEPS * CONTEXT, keep=keep, callbacks=[clock],
    )  # fmt: skip
    each = [after - before for before, after in itertools.pairwise(clock.seconds)]
    count = sum(p.numel() for name, p in adapted.named_parameters() if "lora_" in name)
    return {"adapters": count, "step_core_seconds": statistics.median(each)}


def measure(blocks: tuple[int, ...]) -> dict[str, float]:
    """Peak of building and sampling in bytes, and by how much of the body it is above the body."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        sampled(GPT(VOCABULARY, CONTEXT, 32, 2, 2), (0, 1), f"{folder}/small")

        def work() -> None:
            net = GPT(VOCABULARY, CONTEXT, 768, LAYERS, 12)
            found["body"] = sum(p.numel() for p in net.parameters())
            found.update(sampled(net, blocks, f"{folder}/run"))

        peak = peak_above(status("VmRSS"), work)
    return {**found, "peak": peak, "above": peak / (4 * found["body"]) - 1}


def main() -> None:
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = pool.map(measure, CASES.values(), chunksize=1)
    about = {"bdl": bdl.__version__, "torch": torch.__version__, "device": device_name(), "threads": 1}
    settings = {"chains": CHAINS, "rank": RANK, "context": CONTEXT, "layers": LAYERS}
    record = {**about, "date": date.today().isoformat(), **settings, "cases": dict(zip(CASES, found, strict=True))}
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    write_atomically(out, json.dumps(record, indent=1).encode() + b"\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
