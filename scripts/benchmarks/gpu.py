"""Measures a GPU in ten minutes, and writes a page of results with the card and the date.

python scripts/bench.py gpu PAGE.md

The page has the tables of `SECTIONS`: steps of stacks of small networks beside JAX, where it is installed; gradients
and steps of ResNet20; epochs of images as CIFAR's; the kernels of a block of steps; and tests/test_gpu.py. Each is
written when it is known, so that a run that is stopped leaves the earlier ones; PAGE.json has the numbers. A section
that fails says so in its place. `--device cpu --small` runs everything in small sizes, which a test does.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import torch
from tools.command import Said, UsageError
from tools.results import ROOT, markdown, save
from torch.profiler import profile

import bdl
from bdl.data import Augment, Normalise, TensorBatches
from bdl.engine.branches import Branches
from bdl.engine.choose import of_stack
from bdl.engine.forward import Method
from bdl.engine.gradient import Autograd, Gradient, InTurn, OnLeaves
from bdl.engine.graphs import record_on_cuda
from bdl.models import ResNet
from bdl.run.machine import find_device, prepare_torch, provenance
from benchmarks.speed import silence
from benchmarks.speed.cifar import MEAN, STD
from benchmarks.speed.problem import landsat
from benchmarks.speed.timing import fit, timed

MINUTES = 10
WEIGHTINGS = {"SGHMC": bdl.Flat(), "AWSGHMC": bdl.AdaptiveWeight(zeta=1.0, low=0.0, high=8000.0)}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    chains: Sequence[tuple[int, int]] = ((8, 2000), (64, 2000), (512, 600), (4096, 200))  # chains, timed steps
    jax_block: int = 100  # steps in one call of a jitted scan
    gradients: Sequence[tuple[int, int, Method]] = (  # networks, images a batch, way
        (1, 256, "auto"), (8, 128, "vmap"), (8, 128, "loop"), (8, 128, "branches"),
    )  # fmt: skip
    networks: Sequence[tuple[int, int]] = ((1, 256), (8, 128), (8, 256))  # networks, images a batch, by Trainer.fit
    depth: int = 20
    images: int = 50_000
    warm_up: int = 100  # steps
    steps: int = 300
    profiled: int = 50
    rounds: int = 3


SMALL = Size(
    chains=((2, 4),), jax_block=5, gradients=((2, 2, "loop"), (2, 2, "branches")), networks=((2, 4),), depth=8,
    images=8, warm_up=1, steps=2, profiled=2, rounds=1,
)  # fmt: skip


@dataclass
class Bench:
    """A device, how much is measured on it, and until when."""

    device: torch.device
    size: Size
    end: float = field(default_factory=lambda: time.monotonic() + 60 * MINUTES)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak(self) -> float | None:
        """The peak of memory since the last call, MiB; None on a CPU."""
        if self.device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
        return peak

    def fit(self, module: Any, loader: Any, steps: int, callbacks: Sequence[Any] = (), **options: Any) -> float:
        """Milliseconds a step of Trainer.fit, with what a run always has: a schedule and a Monitor."""
        lr, t = (bdl.schedules.Constant(x) for x in (0.01, 0.01))
        always = [bdl.Schedule(lr=lr, temperature=t), bdl.Monitor(50), *callbacks]
        warm_up, count = self.size.warm_up, self.size.warm_up + steps
        return fit(
            module, loader, count, always, False, warm_up=warm_up, wait=self.wait, accelerator=self.device.type,
            devices=1, enable_progress_bar=False, **options,
        )  # fmt: skip

    def precision(self) -> Any:
        """bf16, but for a CPU, which may have to emulate it."""
        return torch.autocast(self.device.type, torch.bfloat16, self.device.type != "cpu", cache_enabled=False)

    def images(self, chains: int, batch: int) -> TensorBatches:
        """Random bytes in CIFAR's shape, which cost as much as CIFAR's."""
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(256, (self.size.images, 3, 32, 32), generator=draw, dtype=torch.uint8)
        y = torch.randint(10, (self.size.images,), generator=draw)
        return TensorBatches(x, y, batch, chains=chains, augment=Augment(), transform=Normalise(MEAN, STD, True))


def small_networks(bench: Bench) -> Rows:
    """Landsat's 36-30-30-6, batch 100, through Trainer.fit: us a step of all chains, beside JAX's jit(scan(vmap)).

    JAX walks through orders of batches that lie on the device before its clock starts; bdl makes its own.
    """
    rows = []
    for chains, steps in bench.size.chains:
        row: dict[str, Any] = {"chains": chains}
        bench.peak()
        for name, weighting in WEIGHTINGS.items():
            row[f"{name}, us"] = 1e3 * bench.fit(stacked(chains, weighting), landsat().batches(chains), steps)
        row["MiB"] = bench.peak()
        row["JAX, us"] = jax_scan(chains, bench.size.jax_block)
        row["AWSGHMC / SGHMC"] = row["AWSGHMC, us"] / row["SGHMC, us"]
        row["SGHMC / JAX"] = None if row["JAX, us"] is None else row["SGHMC, us"] / row["JAX, us"]
        rows.append(row)
    return rows


def stacked(chains: int, weighting: Any = bdl.Flat()) -> bdl.BayesianModule:  # noqa: B008 (immutable)
    problem = landsat()
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=problem.num_data, lr=0.1, weighting=weighting)
    return bdl.BayesianModule(problem.stack(chains), build)


def jax_scan(chains: int, block: int) -> float | None:
    """us a step of all chains on JAX's own device; None without JAX."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of the GPU's memory
    try:
        from benchmarks.speed.jax_kernels import JaxScan, jax
    except ModuleNotFoundError:
        return None
    scan = JaxScan(landsat(), chains, block)
    rows = scan.epochs.rows(block)
    run = timed(lambda: jax.block_until_ready(scan.scan(scan.state, scan.key, rows)), 3)
    run()
    return 1e3 * statistics.median(run() for _ in range(3)) / block


def gradients(bench: Bench) -> Rows:
    """The gradient of ResNet20 by itself, bf16: ms kernel by kernel, ms and images/s as a graph."""
    return [gradient(bench, *row) for row in bench.size.gradients]


def gradient(bench: Bench, chains: int, batch: int, method: Method) -> dict[str, Any]:
    stack = bdl.ChainStack(ResNet(bench.size.depth), chains, method=method).to(bench.device)
    x = torch.randn(chains * batch, 3, 32, 32, device=bench.device).contiguous(memory_format=torch.channels_last)
    x, y = x.unflatten(0, (chains, batch)), torch.randint(10, (chains, batch), device=bench.device)
    loss, plain = bdl.CategoricalNLL(), of_stack(stack, bdl.CategoricalNLL())
    if method in ("loop", "branches"):
        branches = Branches(bench.device) if method == "branches" else None
        form: Gradient = InTurn(stack, loss, bench.precision, branches)
    else:
        form = OnLeaves(Autograd(plain.losses_of, plain.params, bench.precision), stack)
    out = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in form.params]
    bench.peak()
    single, graph = milliseconds(bench, lambda: form.write(x, y, out)), None
    if bench.device.type == "cuda":
        graph = milliseconds(bench, record_on_cuda(lambda: form.write(x, y, out))[0])
    return {
        "networks": chains, "images": batch, "way": method, "single kernels, ms": single, "graph, ms": graph,
        "images/s": 1e3 * chains * batch / (graph or single), "MiB": bench.peak(),
    }  # fmt: skip


def milliseconds(bench: Bench, work: Callable[[], object]) -> float:
    """The median time of one call."""
    run = timed(work, 1 + bench.size.steps // 10, bench.wait)
    run()
    return statistics.median(run() for _ in range(bench.size.rounds))


def epochs(bench: Bench) -> Rows:
    """SGHMC of ResNet20 on 50,000 augmented images, bf16-mixed, through Trainer.fit."""
    rows = []
    for chains, batch in bench.size.networks:
        loader = bench.images(chains, batch)
        build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=bench.size.images, lr=0.01)
        module = bdl.BayesianModule(bdl.ChainStack(ResNet(bench.size.depth), chains), build)
        bench.peak()
        step = bench.fit(
            module, loader, bench.size.steps, precision="32-true" if bench.device.type == "cpu" else "bf16-mixed"
        )
        epoch = step * len(loader) / 1e3
        rows.append({
            "networks": chains, "images": batch, "ms a step": step, "images/s": 1e3 * chains * batch / step,
            "s an epoch": epoch, "s in 500 epochs": 500 * epoch, "MiB": bench.peak(),
        })  # fmt: skip
    return rows


class Profiler(bdl.callbacks.StepCallback):
    """Profiles the steps after `first`, to `last`; a block ends at both."""

    def __init__(self, first: int, last: int):
        self.first, self.last = first, last
        self.profile = profile()  # of all that there is: the host, and a GPU

    def must_see(self, step: int) -> bool:
        return step in (self.first, self.last)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.first:
            self.profile.__enter__()
        elif trainer.global_step == self.last:
            self.profile.__exit__(None, None, None)


def block(bench: Bench) -> Rows:
    """What the host calls, and what the device runs, for each step of SGHMC in a block of 64 chains."""
    chains, (first, steps) = min(64, bench.size.chains[-1][0]), (bench.size.warm_up, bench.size.profiled)
    profiler = Profiler(first, first + steps)
    bench.fit(stacked(chains), landsat().batches(chains), steps + 1, [profiler])
    calls, microseconds = Counter[str](), Counter[str]()
    for event in profiler.profile.events() or ():
        calls[event.name] += 1
        microseconds[event.name] += event.device_time_total or event.cpu_time_total
    most = [name for name, _ in microseconds.most_common(12)]
    most += [name for name in calls if name.startswith("cuda") and name not in most]
    return [{"name": n[:80], "calls a step": calls[n] / steps, "us a step": microseconds[n] / steps} for n in most]


def tests(bench: Bench) -> Rows:
    """tests/test_gpu.py, in six processes."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-m", "", "-n", "6", "tests/test_gpu.py"]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=max(60.0, bench.end - time.monotonic())
    )
    lines = ended.stdout.strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return [{"result": line} for line in [*failed, *lines[-1:]]]


SECTIONS: dict[str, Callable[[Bench], Rows]] = {
    "Stacks of small networks": small_networks,
    "Gradients of ResNet20": gradients,
    "ResNet20 through the Trainer": epochs,
    "A block of steps": block,
    "tests/test_gpu.py": tests,
}


def main(
    page: Annotated[Path, Said("the page of results, Markdown", "PAGE.md")],
    *,
    device: Annotated[str, Said("cuda, or cuda:1 for the second GPU")] = "cuda",
    small: Annotated[bool, Said("small sizes, and no tests, to try the script")] = False,
) -> None:
    if page.suffix != ".md":
        raise UsageError(f"{page} must end with .md: the numbers go to the file of that name with .json")
    bench = Bench(find_device(device), SMALL if small else Size())
    prepare_torch(None, tf32=False, processes=1)
    silence()
    machine = {**provenance(bench.device), "date": date.today().isoformat()}
    found: dict[str, Rows] = {}
    for title, section in ((t, s) for t, s in SECTIONS.items() if not (small and s is tests)):
        start = time.monotonic()
        try:
            found[title] = section(bench)
        except Exception as error:  # the other sections are worth having
            found[title] = [{"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}]
        print(f"{title}: {time.monotonic() - start:.0f} s", flush=True)
        save(page.with_suffix(".json"), {"machine": machine, **found}, text(machine, found))


def text(machine: dict[str, Any], found: dict[str, Rows]) -> str:
    """The page."""
    lines = [f"# {machine['device']}, {machine['date']}\n\nbdl {machine['versions']['bdl']}\n"]
    for title, rows in found.items():
        about = " ".join((SECTIONS[title].__doc__ or "").split())
        head = list(dict.fromkeys(name for row in rows for name in row))
        table = markdown(head, [[shown(row.get(name)) for name in head] for row in rows])
        lines.append(f"\n## {title}\n\n{about}\n\n{table}")
    return "".join(lines)


def shown(value: Any) -> str:
    """A cell: three digits, thousands apart; – for what was not measured."""
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
