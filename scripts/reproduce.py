"""Runs published experiments and puts our numbers beside theirs: python scripts/reproduce.py NAME... | --all | --list.

Each experiment writes its pictures, table.md ("published | ours | settings") and results.json into DIR/NAME/.
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
    arguments, console = parse(), Console()
    if arguments.list:
        return show_names(console)
    if arguments.all == bool(arguments.names):
        raise ConfigError("name the experiments to run, or give --all; --list shows their names")
    torch.set_num_threads(1)  # sums have the same order on every machine; chains are vectorised instead
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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments to run; --list shows them")
    parser.add_argument("--list", action="store_true", help="list the experiments and exit")
    parser.add_argument("--all", action="store_true", help="run every experiment except those that collect runs")
    parser.add_argument("--quick", action="store_true", help="run small, to see that the experiments work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/reproduce"), metavar="DIR", help="default: %(default)s"
    )
    collected = parser.add_argument_group("cifar10, cifar100, cnn", "collect finished runs of scripts/train.py")
    collected.add_argument(
        "--runs", type=Path, nargs="+", default=[], metavar="DIR", help="run directories, or folders above them"
    )
    collected.add_argument("--epochs", type=int, help="count only runs of this length")
    return parser.parse_args()


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
