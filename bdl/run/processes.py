"""Several processes for one run, one per device: which one this is, and starting them where no cluster does."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch.distributed.rendezvous import rendezvous

from bdl.errors import BdlError, ConfigError, Stopped
from bdl.run.console import one_line_errors

GRACE = 60.0  # seconds in which the other processes may end a step and write a checkpoint when one of them has ended


@dataclass(frozen=True)
class Place:
    """This process among all of a run: its number, its number on this machine, how many there are in all."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    started: bool = False  # by somebody who gave it this place

    @property
    def first(self) -> bool:
        return self.rank == 0


ALONE = Place()


def find_place() -> Place:
    """The place that torchrun, SLURM or `launch` gave this process; alone where none of them did."""
    cluster = _cluster()
    if cluster is not None:
        return Place(cluster.global_rank(), cluster.local_rank(), cluster.world_size(), True)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    if not all(name in os.environ for name in names):
        return ALONE
    rank, local_rank, size = (int(os.environ[name]) for name in names)
    return Place(rank, local_rank, size, True)


def count_processes(accelerator: str, devices: Any, concurrent: Any = 1) -> int:
    """How many processes a machine is to run, `concurrent` on each device; on a CPU, a device is a core.

    Raises ConfigError for more devices than there are, and for what is not a number: it is part of what a run is.
    """
    if not isinstance(concurrent, int) or concurrent < 1:
        raise ConfigError(f"trainer.concurrent must be a number of processes on each device, got {concurrent}")
    if not isinstance(devices, int) or devices < 1:
        raise ConfigError(
            f"trainer.devices must be a number of devices, got {devices}; CUDA_VISIBLE_DEVICES chooses among them"
        )
    gpus = torch.cuda.device_count()
    on_cpu = accelerator == "cpu" or accelerator == "auto" and gpus == 0
    there, what = (os.cpu_count() or 1, "CPU cores") if on_cpu else (gpus, "GPUs")
    if devices > there:
        raise ConfigError(f"trainer.devices={devices}, but there are {there} {what} here: set at most that many")
    return devices * concurrent


def check_count(place: Place, wanted: int) -> None:
    """Raise ConfigError if torchrun or SLURM started another number of processes than the Trainer is to have."""
    if place.size != wanted:
        raise ConfigError(
            f"{place.size} processes were started from outside, but the trainer wants {wanted}, devices x concurrent x "
            "num_nodes: start that many"
        )


def launch(count: int, work: Callable[..., None], *arguments: Any) -> None:
    """Run `work(*arguments)` in `count` new processes of this machine, in the environment that torchrun would make.

    Signals are handed on to all. When one fails, the others are asked to stop, and killed after GRACE seconds; when
    this process dies, they die. Raises Stopped after a signal, else BdlError with the words of the first that failed.
    """
    context = multiprocessing.get_context("spawn")
    lines: Any = context.SimpleQueue()
    running: list[Any] = []
    asked: list[int] = []

    def hand_on(signum: int) -> None:
        for process in running:
            if process.exitcode is None:
                os.kill(process.pid, signum)

    def on_signal(signum: int, _: Any) -> None:
        asked.append(signum)
        hand_on(signum if len(asked) < 3 else signal.SIGKILL)  # the third time somebody means it

    previous = {signum: signal.signal(signum, on_signal) for signum in (signal.SIGINT, signal.SIGTERM)}
    port = find_free_network_port()
    try:
        for rank in range(count):
            if not asked:
                with _environment(rank, count, port):
                    process = context.Process(target=_work, args=(lines, work, arguments))
                    process.start()
                running.append(process)
        failed = _supervise(running, lambda: None if asked else hand_on(signal.SIGTERM))
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
    said = None if lines.empty() else lines.get()
    if asked and (failed or len(running) < count):
        raise Stopped(asked[0], said or f"stopped by signal {asked[0]}; the same command goes on")
    killed = [(rank, -status) for rank, status in failed if status < 0]
    if killed:
        rank, signum = killed[0]
        raise BdlError(f"process {rank} of {count} was ended by signal {signum}; the same command goes on")
    if failed:
        raise BdlError(said or f"process {failed[0][0]} of {count} ended with status {failed[0][1]}")


class Attendance:
    """Which steps the processes of a run have reached, told to the first one through torch's key-value store.

    No process group: nothing of it is in a chain's way. Made by all processes at the same time, it waits for all.
    """

    def __init__(self, place: Place):
        cluster = _cluster()
        if cluster is not None:  # which puts them into the environment
            _ = cluster.main_address, cluster.main_port
        self.place = place
        self._store: Any = next(iter(rendezvous("env://", place.rank, place.size)))[0]

    def tell(self, steps: int) -> None:
        self._store.set(f"steps/{self.place.rank}", str(steps))

    def wait(self) -> list[int]:
        """The steps of every process, when all have told."""
        keys = [f"steps/{rank}" for rank in range(self.place.size)]
        while not self._store.check(keys):
            time.sleep(0.1)
        return [int(self._store.get(key)) for key in keys]


def _cluster() -> ClusterEnvironment | None:
    kinds = (TorchElasticEnvironment, SLURMEnvironment)
    return next((kind() for kind in kinds if kind.detect()), None)


@contextlib.contextmanager
def _environment(rank: int, size: int, port: int) -> Iterator[None]:
    """Set before the process starts: Lightning reads the rank when it is imported."""
    before = dict(os.environ)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _work(lines: Any, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setpgrp()  # Ctrl-C reaches the parent alone, which hands it on: twice would mean at once
    threading.Thread(target=_follow, daemon=True).start()
    with one_line_errors(lines.put):
        work(*arguments)


def _follow() -> None:
    """Die with the parent, or a second run in the same folder would meet the orphans of the first."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _supervise(processes: list[Any], stop: Callable[[], None]) -> list[tuple[int, int]]:
    """Wait for all to end. Returns (rank, status) of those that failed first."""
    first: list[tuple[int, int]] = []
    deadline = float("inf")
    while alive := [p for p in processes if p.exitcode is None]:
        wait([p.sentinel for p in alive], timeout=1.0)
        failed = [(rank, p.exitcode) for rank, p in enumerate(processes) if p.exitcode]
        if failed and not first:
            first, deadline = failed, time.monotonic() + GRACE
            stop()
        if time.monotonic() > deadline:
            for process in alive:
                process.kill()
    return first
