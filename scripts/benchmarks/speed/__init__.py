"""Speed, as ratios of medians measured side by side: python scripts/bench.py [update] [train] [jax] ...

update: Sampler.step against its floor (one normal draw and one fused SGD step) and against the peers of the extra
        [bench], where they are installed.
train:  Landsat, 8 chains through Trainer.fit, against a bare single-chain loop and against Lightning with a DataLoader.
chains: three ways to run a stack of networks: batched matrix products, vmap and a loop; with `--devices 2` also a stack
        on each of two devices at once, beside one alone.
predict: 800 samples and 2,000 rows, and one row, against a loop that loads and runs one network at a time; and the
        module of 100 samples of ResNet20 against 100 forward passes.
store:  a file of samples of three networks, against a plain write of its bytes, and as a share of a second.
jax:    Landsat at 1, 8 and 64 chains, through the callbacks of train.py, against a jitted scan in JAX and blackjax.
        First the law that each of them samples is checked. Needs the extra [bench].
bde:    a gradient of MILE in bde's sampling phase, against bdl on the same network with all rows in a batch.
cifar:  ResNet20 on images, against a hand-written loop and plain Lightning; on a GPU add `--device cuda --precision
        bf16-mixed --compile`. A run without names leaves it out.
graphs: Landsat, 8 chains through Trainer.fit on a GPU, with CUDA graphs and without: `graphs --device cuda`. A run
        without names leaves it out.
start:  seconds from the command of the default run to its first step, and from its last step to its report, beside
        those of `import torch`. A run without names leaves it out.
memory: the memory of a run of a million steps at its end, against that at a tenth of it. A run without names leaves it
        out.
scale:  how times grow with chains, parameters, tensors, samples and processes; `--markdown` and `--picture` write them
        as a table and as a PNG. A run without names leaves it out.

The other files of scripts/benchmarks run by their names and have options of their own: `bench.py table --help`.
"""

import importlib
import logging
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Annotated

import torch
from rich.console import Console
from rich.table import Table
from tools.command import Said, UsageError
from tools.results import save

from bdl.run.machine import keep_freed_memory, provenance
from benchmarks.speed.chains import bench_chains
from benchmarks.speed.cifar import Setup, bench_cifar
from benchmarks.speed.predict import bench_predict
from benchmarks.speed.scale import bench_scale
from benchmarks.speed.start import bench_start
from benchmarks.speed.store import bench_memory, bench_store
from benchmarks.speed.timing import Times, on_cores
from benchmarks.speed.train import bench_graphs, bench_train
from benchmarks.speed.update import bench_update

NAMES = ("update", "train", "chains", "predict", "store", "jax", "bde", "cifar", "graphs", "start", "memory", "scale")
BY_NAME_ONLY = ("cifar", "graphs", "start", "memory", "scale")
PEERS = ("jax", "blackjax", "bde")  # packages whose absence leaves a name out


def show(name: str, times: Times, ratios: dict[str, float], console: Console) -> None:
    table = Table(title=name, box=None, title_justify="left")
    for title in ("", "median ms", "min", "max"):
        table.add_column(title, justify="left" if not title else "right")
    for contestant, t in times.items():
        table.add_row(contestant, *(f"{v:.3f}" for v in (statistics.median(t), min(t), max(t))))
    console.print(table)
    for what, value in ratios.items():
        console.print(f"  {what}: {value:.3f}", highlight=False, soft_wrap=True)


def main(
    *names: Annotated[str, Said(f"any of {', '.join(NAMES)}; default: all but {', '.join(BY_NAME_ONLY)}", "name")],
    rounds: int = 9,
    threads: int = 1,
    device: Annotated[str, Said("device of chains, cifar and graphs; the others run on the CPU")] = "cpu",
    devices: Annotated[int, Said("chains: how many devices, or cores of a CPU, carry a stack at once")] = 1,
    json: Annotated[Path | None, Said("write the results to this file")] = None,
    markdown: Annotated[Path | None, Said("scale: write a table to this file")] = None,
    picture: Annotated[Path | None, Said("scale: draw a PNG")] = None,
    images: Annotated[int, Said("cifar")] = 50_000,
    steps: Annotated[int, Said("cifar: steps of every contestant in a round")] = 10,
    precision: Annotated[str, Said("cifar", choices=["32-true", "bf16-mixed"])] = "32-true",
    compile: Annotated[bool, Said("cifar")] = False,
    workers: Annotated[int, Said("cifar: worker processes of the DataLoaders")] = 2,
) -> None:
    check(names, device)
    torch.set_num_threads(threads)
    keep_freed_memory()  # train.py does the same; here it serves all contestants
    silence()
    machine = {**provenance(torch.device(device)), "cores": os.cpu_count(), "date": str(date.today())}
    where, console, results = torch.device(device), Console(), {}
    contests: dict[str, Callable[[], tuple[Times, dict[str, float]]]] = {
        "update": lambda: bench_update(rounds),
        "train": lambda: bench_train(rounds),
        "chains": lambda: bench_chains(rounds, where, devices),
        "predict": lambda: bench_predict(rounds),
        "store": lambda: bench_store(rounds),
        "jax": lambda: on_jax("jax", rounds, threads),
        "bde": lambda: on_jax("bde", rounds, threads),
        "cifar": lambda: bench_cifar(rounds, Setup(images, steps, device, precision, compile, workers)),
        "graphs": lambda: bench_graphs(rounds, where),
        "start": lambda: bench_start(rounds),
        "memory": bench_memory,
    }
    for name in names or [name for name in NAMES if name not in BY_NAME_ONLY]:
        torch.manual_seed(0)
        start = time.perf_counter()
        if name == "scale":
            about = f"{machine['device']}, {machine['threads']} thread(s) a process"
            results[name] = measure_scale(about, console, markdown, picture)
        else:
            results[name] = compare(name, contests[name], console)
        console.print(f"{name}: {time.perf_counter() - start:.0f} s", highlight=False)
    if json:
        save(json, {"machine": machine, **{name: result for name, result in results.items() if result is not None}})


def check(names: Sequence[str], device: str) -> None:
    """Raises UsageError for a name that there is not, and for CUDA graphs without a GPU."""
    if unknown := [name for name in names if name not in NAMES]:
        raise UsageError(f"unknown name {unknown[0]!r}: choose from {', '.join(NAMES)}")
    if "graphs" in names and torch.device(device).type != "cuda":
        raise UsageError("graphs compares CUDA graphs with single kernels, which needs a GPU: add --device cuda")


def compare(
    name: str, run: Callable[[], tuple[Times, dict[str, float]]], console: Console
) -> dict[str, dict[str, float]] | None:
    """Medians and ratios of the contestants of one name; None where a package that they need is missing."""
    try:
        times, ratios = run()
    except ModuleNotFoundError as error:
        if error.name not in PEERS:
            raise
        print(f"{name} is left out ({error}): pip install -e '.[bench]' installs what it needs")
        return None
    show(name, times, ratios, console)
    return {"milliseconds": {k: statistics.median(t) for k, t in times.items()}, "ratios": ratios}


def on_jax(name: str, rounds: int, threads: int) -> tuple[Times, dict[str, float]]:
    """A contest with JAX, which takes all cores of the process whatever torch is told."""
    with on_cores(threads):
        return importlib.import_module(f"benchmarks.speed.against_{name}").bench(rounds)


def measure_scale(machine: str, console: Console, table: Path | None, picture: Path | None) -> list[dict]:
    """The panels of `scale`, which it prints, and writes as Markdown and as a picture where it is told to."""
    from benchmarks.speed.scale_report import draw, markdown  # imports matplotlib

    panels = bench_scale(own_cores())
    for panel in panels:
        for curve in panel.curves:
            points = ", ".join(f"{x:,}: {y:,.4g}" for x, y in zip(curve.x, curve.y, strict=True))
            line = f"  {panel.title}; {curve.name}; {panel.ylabel} by {panel.xlabel}: {points}"
            console.print(line, highlight=False, soft_wrap=True)
    if table:
        table.write_text(markdown(panels, machine))
    if picture:
        draw(panels, machine, picture)
    return [asdict(panel) for panel in panels]


def own_cores() -> list[int]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def silence() -> None:
    """Keep the warnings and notes of Lightning out of the report."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
