"""`bench.py scale`: how times grow with chains, parameters, samples, tensors and processes."""

from __future__ import annotations

import functools
import gc
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from bench_problem import landsat
from bench_torch_kernels import SamplerLoop
from torch import Tensor

import bdl
from bdl.data import LandsatDataModule
from bdl.models import MLP
from bdl.posterior.store import SampleStore

ROUNDS, SECONDS = 5, 0.15  # a time is the median of so many rounds, each at least so long
CHAINS = tuple(2**k for k in range(10))
PARAMETERS = tuple(10**k for k in range(3, 9))
SAMPLES, SAMPLE_CHAINS = (10, 100, 1000, 10_000), 10
TENSORS, OF_TENSORS = (4, 10, 40, 100, 400), 100_000  # parameters in all, whatever the number of tensors
OF_PROCESSES = 2.0  # seconds that every process counts its steps
TENSORS_PER_PARAMETER = 8  # θ, gradient, m, noise and room for what a step allocates


@dataclass(frozen=True)
class Curve:
    """One line of a panel: y over x."""

    name: str
    x: list[int]
    y: list[float]


@dataclass(frozen=True)
class Panel:
    """One picture: what grows, what is measured, and the curves."""

    name: str
    title: str
    xlabel: str
    ylabel: str
    curves: list[Curve]


def bench_scale(cores: Sequence[int]) -> list[Panel]:
    """All panels. cores: the numbers of the cores that processes may use."""
    return [chains(CHAINS), parameters(PARAMETERS), tensors(TENSORS), samples(SAMPLES), processes(cores)]


def median_time(step: Callable[[], object], rounds: int = ROUNDS, seconds: float = SECONDS) -> float:
    """Median seconds per call; the first call warms up, the second says how many fill a round."""
    step()
    start = time.perf_counter()
    step()
    count = max(1, int(seconds / (time.perf_counter() - start)))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            step()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


def chains(counts: Sequence[int]) -> Panel:
    problem = landsat()
    y = [median_time(SamplerLoop(problem, n).step) / n * 1e6 for n in counts]
    curve = Curve("Sampler.step with its gradient", list(counts), y)
    return Panel("chains", "Landsat MLP, batch 100", "chains in a stack", "us per chain-step", [curve])


def parameters(counts: Sequence[int]) -> Panel:
    fitting = [n for n in counts if 4 * n * TENSORS_PER_PARAMETER < free_memory()]
    for n in sorted(set(counts) - set(fitting)):
        print(f"scale: {n:,} parameters are left out: they need {4 * n * TENSORS_PER_PARAMETER / 2**30:.0f} GiB")
    curves = []
    for name, make in (("Sampler.step, SGHMC", update), ("floor: normal_ + fused SGD", floor)):
        y = []
        for n in fitting:
            y.append(median_time(make([n])) * 1e6)
            gc.collect()
        curves.append(Curve(name, fitting, y))
    return Panel("parameters", "Update alone, one tensor", "parameters", "us per step", curves)


def tensors(counts: Sequence[int]) -> Panel:
    curves = []
    for name, make in (("Sampler.step, SGHMC", update), ("floor: normal_ + fused SGD", floor)):
        y = [median_time(make([OF_TENSORS // n] * n)) * 1e6 for n in counts]
        curves.append(Curve(name, list(counts), y))
    return Panel("tensors", f"Update alone, {OF_TENSORS:,} parameters", "tensors", "us per step", curves)


def with_gradients(sizes: Sequence[int]) -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in sizes]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    return parameters


def update(sizes: Sequence[int]) -> Callable[[], object]:
    return bdl.Sampler(with_gradients(sizes), bdl.SGHMC(), num_data=50_000, lr=1e-9).step


def floor(sizes: Sequence[int]) -> Callable[[], object]:
    optimizer = torch.optim.SGD(with_gradients(sizes), lr=1e-9, momentum=0.9, fused=True)
    z = torch.empty(sum(sizes))

    def step() -> None:
        z.normal_()
        optimizer.step()

    return step


def samples(counts: Sequence[int]) -> Panel:
    x = LandsatDataModule().tensors("test")[0]
    net = MLP((36, 30, 30, 6))
    y = []
    for n in counts:
        with tempfile.TemporaryDirectory() as folder:
            write_samples(folder, n)
            predict = functools.partial(load_and_predict, folder, net, x)
            y.append(median_time(predict, rounds=3 if n < 10_000 else 1) / n * 1e6)
    title = f"Posterior.load(...).predict, {len(x):,} rows"
    return Panel("samples", title, "samples on disk", "us per sample", [Curve("Landsat MLP", list(counts), y)])


def load_and_predict(folder: str, net: torch.nn.Module, x: Tensor) -> None:
    bdl.Posterior.load(folder, net).predict(x)


def write_samples(folder: str, count: int) -> None:
    """A store of `count` random networks, as a run of 10 chains would write it."""
    store = SampleStore(folder)
    stack = bdl.ChainStack(MLP((36, 30, 30, 6)), SAMPLE_CHAINS)
    state = {name: p.detach() for name, p in stack.named_parameters()}
    state = {name.removeprefix("net."): p for name, p in state.items()}
    store.folder.mkdir(parents=True)
    (store.folder / "target.json").write_text(json.dumps({"num_data": 4435, "outputs": "logits"}))
    for step in range(count // SAMPLE_CHAINS):
        store.write(
            {name: p + 0.1 * torch.randn_like(p) for name, p in state.items()},
            step=step + 1, stack=0, chains=list(range(SAMPLE_CHAINS)), cycle=0, lr=0.1, temperature=0.2, zeta=0.0,
            energy_batch=None, energy_full=None, log_weight=None, psi_frozen=False,
        )  # fmt: skip


def processes(cores: Sequence[int]) -> Panel:
    counts = [n for n in (2**k for k in range(11)) if n < len(cores)] + [len(cores)]
    y = [sum(chain_steps_per_second(cores[:n])) for n in counts]
    curve = Curve("8 chains in each process", counts, y)
    return Panel("processes", "Independent processes", "processes", "chain-steps per second, all together", [curve])


def chain_steps_per_second(cores: Sequence[int]) -> list[float]:
    """Chain-steps per second of processes that run side by side, one on each of the cores."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit the threads of torch
    ready, queue = context.Barrier(len(cores)), context.Queue()
    workers = [context.Process(target=work, args=(core, ready, queue), daemon=True) for core in cores]
    for worker in workers:
        worker.start()
    speeds = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    return speeds


def work(core: int, ready, queue) -> None:
    """In a process of its own: sample on one core for OF_PROCESSES seconds and report chain-steps per second."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [core])
    torch.set_num_threads(1)
    step, count = SamplerLoop(landsat(), 8).step, 0
    for _ in range(20):
        step()
    ready.wait(timeout=100)
    start = time.perf_counter()
    while (seconds := time.perf_counter() - start) < OF_PROCESSES:
        step()
        count += 8
    queue.put(count / seconds)


def free_memory() -> float:
    """Bytes that this machine can still give; infinite where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float("inf")
