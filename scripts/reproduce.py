"""Runs published experiments and sets their numbers beside ours: python scripts/reproduce.py NAME... | --all | --list.

Each leaves DIR/NAME/ with its pictures, table.md ("published | ours | settings") and results.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from literature import REGISTRY, Context, find, markdown, reproduce
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bdl.errors import ConfigError
from bdl.run.console import one_line_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments to run, see --list")
    parser.add_argument("--list", action="store_true", help="name the experiments and stop")
    parser.add_argument("--all", action="store_true", help="run them all, but those that collect runs")
    parser.add_argument("--quick", action="store_true", help="small runs, to see that they work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/reproduce"), metavar="DIR", help="default: %(default)s"
    )
    collected = parser.add_argument_group("cifar10, cifar100", "collect runs of scripts/train.py that have ended")
    collected.add_argument("--runs", type=Path, nargs="+", default=[], metavar="DIR", help="run directories, or above")
    collected.add_argument("--epochs", type=int, help="count runs of this length only")
    arguments = parser.parse_args()
    console = Console()
    if arguments.list:
        return show_names(console)
    if arguments.all == bool(arguments.names):
        raise ConfigError("name the experiments to run, or give --all; --list shows their names")
    torch.set_num_threads(1)  # sums are then the same everywhere; chains are vectorised instead
    every = [name for name, experiment in sorted(REGISTRY.items()) if not experiment.collects]
    chosen = [find(name) for name in (every if arguments.all else arguments.names)]
    for experiment in chosen:
        started = time.perf_counter()
        with progress_bar(console) as progress:
            context = Context(arguments.quick, arguments.seed, progress, arguments.runs, arguments.epochs)
            result, folder = reproduce(experiment, context, arguments.out)
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
    with one_line_errors():
        main()
