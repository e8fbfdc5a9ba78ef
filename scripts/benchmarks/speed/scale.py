"""`bench.py scale`: how times grow with chains, parameters, samples, tensors and processes."""

import functools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import bdl
from bdl.data import LandsatDataModule
from bdl.models import MLP
from benchmarks.speed.predict import write_samples
from benchmarks.speed.problem import landsat
from benchmarks.speed.timing import timed
from benchmarks.speed.torch_kernels import SamplerLoop
from benchmarks.speed.update import floor

ROUNDS, SECONDS = 5, 0.15  # a time is the median of so many rounds, each at least so long
CHAINS = tuple(2**k for k in range(10))
PARAMETERS = tuple(10**k for k in range(3, 9))
SAMPLES, SAMPLE_CHAINS = (10, 100, 1000, 10_000), 10
TENSORS, OF_TENSORS = (4, 10, 40, 100, 400), 100_000  # parameters in all, whatever the number of tensors
OF_PROCESSES = 2.0  # seconds that every process counts its steps
NUMBERS = 10  # held per parameter by a sampler and its floor together, with room for what a step allocates


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


def median_times(steps: Sequence[Callable[[], object]]) -> list[float]:
    """Median microseconds per call of every step. They take turns, so a busy machine slows all of them alike.

    A call that takes over a second is timed once, after one to warm up.
    """
    counts: list[int] = []
    times: list[list[float]] = []  # milliseconds; the first entry is of a single call
    for step in steps:
        step()
        once = timed(step, 1)()
        counts.append(max(1, int(1e3 * SECONDS / once)))
        times.append([once])
    for _ in range(ROUNDS):
        for step, count, own in zip(steps, counts, times, strict=True):
            if own[0] < 1e3:
                own.append(timed(step, count)())
    return [1e3 * statistics.median(own[1:] or own) for own in times]


def chains(counts: Sequence[int]) -> Panel:
    problem = landsat()
    times = median_times([SamplerLoop(problem, n).step for n in counts])
    y = [t / n for t, n in zip(times, counts, strict=True)]
    curve = Curve("bdl", list(counts), y)
    return Panel(
        "chains", "Landsat MLP, Sampler.step with its gradient", "chains in a stack", "µs per chain-step", [curve]
    )


def parameters(counts: Sequence[int]) -> Panel:
    fitting = [n for n in counts if 4 * n * NUMBERS < free_memory()]
    for n in sorted(set(counts) - set(fitting)):
        print(f"scale: {n:,} parameters are left out: they need {4 * n * NUMBERS / 2**30:.0f} GiB")
    pairs = [median_times([update([n]), floor(with_gradients([n]))]) for n in fitting]
    return Panel("parameters", "Update alone, one tensor", "parameters", "µs per step", both(fitting, pairs))


def tensors(counts: Sequence[int]) -> Panel:
    sizes = [[OF_TENSORS // n] * n for n in counts]
    times = median_times([step for each in sizes for step in (update(each), floor(with_gradients(each)))])
    pairs = list(zip(times[::2], times[1::2], strict=True))
    return Panel(
        "tensors", f"Update alone, {OF_TENSORS:,} parameters", "tensors", "µs per step", both(list(counts), pairs)
    )


def both(x: list[int], pairs: Sequence[Sequence[float]]) -> list[Curve]:
    names = ("Sampler.step, SGHMC", "floor: normal draw, fused SGD")
    return [Curve(name, x, list(y)) for name, y in zip(names, zip(*pairs, strict=True), strict=True)]


def with_gradients(sizes: Sequence[int]) -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in sizes]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    return parameters


def update(sizes: Sequence[int]) -> Callable[[], object]:
    return bdl.Sampler(with_gradients(sizes), bdl.SGHMC(), num_data=50_000, lr=1e-9).step


def samples(counts: Sequence[int]) -> Panel:
    x = LandsatDataModule().tensors("test")[0]
    net = MLP((36, 30, 30, 6))
    y = []
    for n in counts:
        with tempfile.TemporaryDirectory() as folder:
            write_samples(Path(folder), n // SAMPLE_CHAINS, SAMPLE_CHAINS)
            y.append(median_times([functools.partial(load_and_predict, folder, net, x)])[0] / n)
    title = f"Landsat MLP, Posterior.predict on {len(x):,} rows"
    return Panel("samples", title, "samples on disk", "µs per sample", [Curve("bdl", list(counts), y)])


def load_and_predict(folder: str, net: torch.nn.Module, x: Tensor) -> None:
    bdl.Posterior.load(folder, net, likelihood=bdl.CategoricalNLL()).predict(x)


def processes(cores: Sequence[int]) -> Panel:
    counts = [n for n in (2**k for k in range(11)) if n < len(cores)] + [len(cores)]
    y = [sum(chain_steps_per_second(cores[:n])) for n in counts]
    curves = [Curve("measured", counts, y), Curve("as many times the first", counts, [n * y[0] for n in counts])]
    title = "Landsat MLP, 8 chains in each process"
    return Panel("processes", title, "processes", "Chain-steps per second, all together", curves)


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
