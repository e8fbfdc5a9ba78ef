"""Runs published experiments and puts our numbers beside theirs: python scripts/reproduce.py NAME... | --all | --list.

Each experiment writes its pictures, table.md ("published | ours | settings") and results.json into DIR/NAME/.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from literature import REGISTRY, Context, find, markdown, reproduce
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tools.command import Said, run

from bdl.errors import ConfigError


def main(
    *names: Annotated[str, Said("experiments to run; --list shows them", "NAME")],
    list: Annotated[bool, Said("list the experiments and exit")] = False,
    all: Annotated[bool, Said("run every experiment except those that collect runs")] = False,
    quick: Annotated[bool, Said("run small, to see that the experiments work")] = False,
    seed: int = 0,
    out: Annotated[Path, Said("default: %(default)s", "DIR")] = Path("outputs/reproduce"),
    runs: Annotated[Sequence[Path], Said("cifar10, cifar100, cnn: finished runs, or folders above them", "DIR")] = (),
    epochs: Annotated[int | None, Said("cifar10, cifar100, cnn: count only runs of this length")] = None,
) -> None:
    console = Console()
    if list:
        return show_names(console)
    if all == bool(names):
        raise ConfigError("name the experiments to run, or give --all; --list shows their names")
    torch.set_num_threads(1)  # sums have the same order on every machine; chains are vectorised instead
    every = [name for name, experiment in sorted(REGISTRY.items()) if not experiment.collects]
    for experiment in [find(name) for name in (every if all else names)]:
        started = time.perf_counter()
        with progress_bar(console) as progress:
            result, folder = reproduce(experiment, Context(quick, seed, progress, runs, epochs), out)
        for table in result.tables:
            print(markdown(table) + "\n")
        console.print(f"{experiment.name}: {time.perf_counter() - started:.0f} s, {folder}", highlight=False)


def progress_bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def show_names(console: Console) -> None:
    grid = Table("name", "experiment", "source", box=None, title_justify="left")
    for name, experiment in sorted(REGISTRY.items()):
        grid.add_row(name, experiment.title, experiment.source)
    console.print(grid)


if __name__ == "__main__":
    run(main)
