"""Speed, as ratios of medians measured side by side: python scripts/bench.py [update] [train] [jax] ...

update: Sampler.step against its floor (one normal draw and one fused SGD step) and against the peers of the extra
        [bench], where they are installed.
train:  Landsat, 8 chains through Trainer.fit, against a bare single-chain loop and against Lightning with a DataLoader.
chains: three ways to run a stack of networks: batched matrix products, vmap and a loop.
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
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import statistics
import time
import warnings
from dataclasses import asdict
from datetime import date
from pathlib import Path

import torch
from bench_chains import bench_chains
from bench_cifar import Setup, bench_cifar
from bench_predict import bench_predict
from bench_scale import bench_scale
from bench_start import bench_start
from bench_store import bench_memory, bench_store
from bench_tools import Times, on_cores
from bench_train import bench_graphs, bench_train
from bench_update import bench_update
from rich.console import Console
from rich.table import Table

from bdl.run.machine import keep_freed_memory, provenance

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


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # train.py does the same; here it serves all contestants
    silence()
    machine = {**provenance(torch.device(arguments.device)), "cores": os.cpu_count(), "date": str(date.today())}
    console, results = Console(), {}
    for name in arguments.names or [name for name in NAMES if name not in BY_NAME_ONLY]:
        torch.manual_seed(0)
        start = time.perf_counter()
        if name == "scale":
            results[name] = scale(arguments, f"{machine['device']}, {machine['threads']} thread(s) a process", console)
        else:
            results[name] = compare(name, arguments, console)
        console.print(f"{name}: {time.perf_counter() - start:.0f} s", highlight=False)
    if arguments.json:
        done = {name: result for name, result in results.items() if result is not None}
        arguments.json.write_text(json.dumps({"machine": machine, **done}, indent=1) + "\n")


def compare(name: str, arguments: argparse.Namespace, console: Console) -> dict[str, dict[str, float]] | None:
    """Medians and ratios of the contestants of one name; None where a package that they need is missing."""
    try:
        times, ratios = run(name, arguments)
    except ModuleNotFoundError as error:
        if error.name not in PEERS:
            raise
        print(f"{name} is left out ({error}): pip install -e '.[bench]' installs what it needs")
        return None
    show(name, times, ratios, console)
    return {"milliseconds": {k: statistics.median(t) for k, t in times.items()}, "ratios": ratios}


def scale(arguments: argparse.Namespace, machine: str, console: Console) -> list[dict]:
    """The panels of `scale`, which it prints, and writes as Markdown and as a picture where it is told to."""
    from bench_scale_report import draw, markdown  # imports matplotlib

    panels = bench_scale(own_cores())
    for panel in panels:
        for curve in panel.curves:
            points = ", ".join(f"{x:,}: {y:,.4g}" for x, y in zip(curve.x, curve.y, strict=True))
            console.print(
                f"  {panel.title}; {curve.name}; {panel.ylabel} by {panel.xlabel}: {points}",
                highlight=False,
                soft_wrap=True,
            )
    if arguments.markdown:
        arguments.markdown.write_text(markdown(panels, machine))
    if arguments.picture:
        draw(panels, machine, arguments.picture)
    return [asdict(panel) for panel in panels]


def own_cores() -> list[int]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help=f"any of {', '.join(NAMES)}; default: all but {', '.join(BY_NAME_ONLY)}",
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="device of chains, cifar and graphs; the others run on the CPU")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    scale = parser.add_argument_group("scale")
    scale.add_argument("--markdown", type=Path, help="write a table to this file")
    scale.add_argument("--picture", type=Path, help="draw a PNG")
    cifar = parser.add_argument_group("cifar")
    cifar.add_argument("--images", type=int, default=50_000)
    cifar.add_argument("--steps", type=int, default=10, help="steps of every contestant in a round")
    cifar.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed"])
    cifar.add_argument("--compile", action="store_true")
    cifar.add_argument("--workers", type=int, default=2, help="worker processes of the DataLoaders")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in NAMES]:
        parser.error(f"unknown name {unknown[0]!r}: choose from {', '.join(NAMES)}")
    if "graphs" in arguments.names and torch.device(arguments.device).type != "cuda":
        parser.error("graphs compares CUDA graphs with single kernels, which needs a GPU: add --device cuda")
    return arguments


def silence() -> None:
    """Keep the warnings and notes of Lightning out of the report."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def run(name: str, a: argparse.Namespace) -> tuple[Times, dict[str, float]]:
    if name == "cifar":
        return bench_cifar(a.rounds, Setup(a.images, a.steps, a.device, a.precision, a.compile, a.workers))
    if name == "chains":
        return bench_chains(a.rounds, torch.device(a.device))
    if name == "graphs":
        return bench_graphs(a.rounds, torch.device(a.device))
    if name == "memory":
        return bench_memory()
    if name == "start":
        return bench_start(a.rounds)
    if name in ("jax", "bde"):
        with on_cores(a.threads):  # JAX takes all cores whatever torch is told
            module = importlib.import_module(f"bench_{name}")  # imports JAX
            return getattr(module, f"bench_{name}")(a.rounds)
    cases = {"update": bench_update, "train": bench_train, "predict": bench_predict, "store": bench_store}
    return cases[name](a.rounds)


if __name__ == "__main__":
    main()
