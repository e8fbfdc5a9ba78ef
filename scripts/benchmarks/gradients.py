"""Times the gradient of stacks of ResNet20 on a GPU, kernel by kernel, as a CUDA graph, and under torch.compile.

python scripts/bench.py gradients [FILE.json]

Each row is the median of five rounds of 30 gradients of random images, in ms, and the peak of memory that torch had
allocated in MiB by the first of them. The rows go to the file.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from tools.results import save

import bdl
from bdl.engine.choose import of_stack
from bdl.engine.forward import Method
from bdl.engine.gradient import Autograd, OnLeaves
from bdl.engine.graphs import record_on_cuda
from bdl.models import ResNet
from bdl.run.machine import compile_if_possible, provenance
from benchmarks.speed.timing import timed

COMPILED = [(1, True, False), (8, True, False)]  # chains, bf16, deterministic: of rows that torch.compile runs too
ROWS: list[tuple[int, int, Method, bool, bool]] = [  # chains, images a batch, method, bf16, deterministic kernels
    (1, 256, "auto", False, False), (1, 256, "auto", True, False), (1, 256, "auto", False, True),
    (1, 256, "auto", True, True), (8, 128, "vmap", False, False), (8, 128, "loop", False, False),
    (8, 128, "vmap", True, False), (8, 128, "loop", True, False), (32, 128, "vmap", True, False),
]  # fmt: skip


def main(file: Path | None = None) -> None:
    device = torch.device("cuda")
    rows = []
    for row in ROWS:
        rows.append(measure(device, *row))
        print(rows[-1], flush=True)
    if file is not None:
        save(file, {"machine": {**provenance(device), "date": str(date.today())}, "rows": rows})


def measure(
    device: torch.device, chains: int, batch: int, method: Method, bf16: bool, deterministic: bool
) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(deterministic)
    stack = bdl.ChainStack(ResNet(20), chains, method=method).to(device)
    x = torch.randn(chains * batch, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    x, y = x.unflatten(0, (chains, batch)), torch.randint(10, (chains, batch), device=device)
    plain = of_stack(stack, bdl.CategoricalNLL())
    precision = functools.partial(torch.autocast, device.type, torch.bfloat16, enabled=bf16)
    gradient = OnLeaves(Autograd(plain.losses_of, plain.params, precision), stack)
    out = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in gradient.params]
    torch.cuda.reset_peak_memory_stats()
    single = milliseconds(lambda: gradient.write(x, y, out))
    peak = torch.cuda.max_memory_allocated() / 2**20
    launch, _ = record_on_cuda(lambda: gradient.write(x, y, out))
    graph = milliseconds(launch)
    compiled = None
    if (chains, bf16, deterministic) in COMPILED and method != "loop":
        compile_if_possible(stack)  # calls of the stack, which `plain` makes
        by_torch = Autograd(plain.losses_of, plain.params, precision)
        compiled = milliseconds(lambda: by_torch.write(x, y, out))
    return {
        "chains": chains, "batch": batch, "method": method, "precision": "bf16-mixed" if bf16 else "32-true",
        "deterministic": deterministic, "single": single, "graph": graph, "compiled": compiled, "peak_mib": peak,
    }  # fmt: skip


def milliseconds(work: Callable[[], object], count: int = 30, rounds: int = 5) -> float:
    """The median time of one call."""
    for _ in range(5):
        work()
    run = timed(work, count, torch.cuda.synchronize)
    return statistics.median(run() for _ in range(rounds))
