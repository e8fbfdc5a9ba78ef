"""`bench.py chains`: three ways to run a stack of networks: batched matrix products, vmap and a loop.

With several devices, also how much slower a stack on each is than one alone: a process for each, as trainer=chains has.
"""

import functools
import tempfile
from pathlib import Path

import torch

import bdl
from bdl.models import MLP, ResNet
from bdl.run.launch import launch
from bdl.run.processes import StepStore, count_processes, process_info
from benchmarks.speed.timing import Times, interleave, no_wait, ratio, timed

SIZES = (36, 30, 30, 6)
CHAINS, BATCH = 8, 100


def networks() -> dict[str, tuple[torch.nn.Module, torch.Tensor, int]]:
    """Network, inputs (chains, batch, ...), and how many steps are timed together."""
    return {
        "MLP": (MLP(SIZES), torch.randn(CHAINS, BATCH, 36), 30),
        "ResNet8": (ResNet(8), torch.randn(4, 16, 3, 32, 32), 1),
    }


def bench_chains(rounds: int, device: torch.device, devices: int = 1) -> tuple[Times, dict[str, float]]:
    """Raises ConfigError for more devices than the machine has."""
    count_processes("gpu" if device.type == "cuda" else "cpu", devices)
    wait = torch.cuda.synchronize if device.type == "cuda" else no_wait
    contestants, ratios = {}, {}
    for name, (net, x, count) in networks().items():
        for method in ("bmm", "vmap", "loop") if name == "MLP" else ("vmap", "loop"):
            stack = bdl.ChainStack(net, len(x), method=method).to(device)
            step = functools.partial(forward_backward, stack, x.to(device))
            contestants[f"{name} x {len(x)}, {method}"] = timed(step, count, wait)
    times = interleave(contestants, rounds)
    for name, t in times.items():
        loop = times[name.rsplit(", ", 1)[0] + ", loop"]
        ratios[f"{name} / loop"] = ratio(t, loop)
    if devices > 1:
        alone, together = (on_devices(count, rounds, device) for count in (1, devices))
        times |= {f"{name}, one device": t for name, t in alone.items()}
        times |= {f"{name}, the slowest of {devices} devices": t for name, t in together.items()}
        ratios |= {f"{name}, {devices} devices / one": ratio(together[name], alone[name]) for name in alone}
    return times, ratios


def on_devices(count: int, rounds: int, device: torch.device) -> Times:
    """Milliseconds a step of a stack on each of the first devices at once: in each round those of the slowest."""
    with tempfile.TemporaryDirectory() as folder:
        launch(count, on_one, Path(folder), rounds, device.type)
        each = [torch.load(path, weights_only=True) for path in sorted(Path(folder).iterdir())]
    return {name: [max(t) for t in zip(*(times[name] for times in each), strict=True)] for name in each[0]}


def on_one(folder: Path, rounds: int, kind: str) -> None:
    """The work of one process: it begins to measure when all processes have built their stacks."""
    torch.set_num_threads(1)
    process, gpu = process_info(), kind == "cuda"
    device = torch.device(kind, process.local_rank) if gpu else torch.device(kind)
    wait, steps = functools.partial(torch.cuda.synchronize, device) if gpu else no_wait, {}
    for name, (net, x, count) in networks().items():
        step = functools.partial(forward_backward, bdl.ChainStack(net, len(x)).to(device), x.to(device))
        step()
        steps[f"{name} x {len(x)}"] = timed(step, count, wait)
    StepStore(process)
    times = {name: [run() for _ in range(rounds)] for name, run in steps.items()}
    torch.save(times, folder / f"{process.rank}.pt")


def forward_backward(stack: bdl.ChainStack, x: torch.Tensor) -> None:
    stack.zero_grad()
    stack(x).square().mean().backward()
