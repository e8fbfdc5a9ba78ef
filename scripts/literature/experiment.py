"""An experiment is a function of a Context that returns figures, tables and numbers; it is registered by name."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure
from rich.progress import Progress

from bdl.errors import ConfigError

T = TypeVar("T")
J = TypeVar("J")


@dataclass
class Table:
    """One Markdown table. note: a paragraph below it, on what differs from the published numbers and why."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"{self.title}: a row has {len(row)} cells, the header {len(self.header)}: {row}")


@dataclass
class Result:
    """The figures, tables and numbers of one experiment."""

    figures: dict[str, Figure]  # name -> figure, written as <name>.png
    tables: list[Table]  # table.md
    numbers: dict[str, Any]  # results.json; tensors and arrays are written as lists


@dataclass(frozen=True)
class Context:
    """How to run an experiment.

    quick: run small, in seconds, to see that the experiment works. runs, epochs: for an experiment that collects
    finished runs, the folders that hold them and the length of the runs that count (None: any).
    """

    quick: bool
    seed: int
    progress: Progress | None = field(default=None, repr=False, compare=False)
    runs: Sequence[Path] = ()
    epochs: int | None = None

    def choose(self, full: T, quick: T) -> T:
        """`quick` in a quick run, otherwise `full`."""
        return quick if self.quick else full

    def silent(self) -> Context:
        """The same context without a progress bar, for another process."""
        return replace(self, progress=None)

    def track(self, iterable: Iterable[T], description: str, total: float | None = None) -> Iterator[T]:
        """Yield the items of `iterable` and show a progress bar that disappears after the last one."""
        if self.progress is None:
            yield from iterable
            return
        total = len(iterable) if total is None and hasattr(iterable, "__len__") else total  # type: ignore[arg-type]
        task = self.progress.add_task(description, total=total)
        try:
            for item in iterable:
                yield item
                self.progress.advance(task)
        finally:
            self.progress.remove_task(task)


def on_all_cores(work: Callable[[J], T], jobs: Iterable[J], context: Context) -> Iterator[T]:
    """`work` of each job, in order, on one process per core, each with one thread; a quick run stays in this one."""
    if context.quick:
        yield from map(work, jobs)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), spawn, torch.set_num_threads, (1,)) as pool:
        yield from pool.map(work, jobs)


Run = Callable[[Context], Result]


@dataclass(frozen=True)
class Experiment:
    name: str
    source: str  # where it was published
    title: str
    run: Run
    collects: bool = False  # whether it only collects finished runs of scripts/train.py


REGISTRY: dict[str, Experiment] = {}


def experiment(name: str, source: str, title: str, collects: bool = False) -> Callable[[Run], Run]:
    """Register `run(context) -> Result` under `name`."""

    def register(run: Run) -> Run:
        if name in REGISTRY:
            raise ValueError(f"two experiments are called {name}")
        REGISTRY[name] = Experiment(name, source, title, run, collects)
        return run

    return register


def find(name: str) -> Experiment:
    """The experiment of that name. Raises ConfigError, which lists the known names."""
    if name not in REGISTRY:
        raise ConfigError(f"no experiment is called {name!r}; choose one of {', '.join(sorted(REGISTRY))}")
    return REGISTRY[name]
