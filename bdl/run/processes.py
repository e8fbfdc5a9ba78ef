"""The processes of one run: the rank of this one, and launching them where no cluster does."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from omegaconf import OmegaConf
from torch.distributed.rendezvous import rendezvous

from bdl.errors import BdlError, ConfigError, Stopped
from bdl.run.console import one_line_errors

GRACE = 60.0  # seconds for the other processes to finish a step and write a checkpoint after one of them has failed


@dataclass(frozen=True)
class ProcessInfo:
    """Rank among all processes of a run, rank on this machine, and their total number."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    launched: bool = False  # by torchrun, SLURM or `launch`

    @property
    def is_main(self) -> bool:
        return self.rank == 0


SINGLE = ProcessInfo()


def process_info() -> ProcessInfo:
    """The ranks that torchrun, SLURM or `launch` gave this process; SINGLE where none of them did."""
    cluster = _cluster()
    if cluster is not None:
        return ProcessInfo(cluster.global_rank(), cluster.local_rank(), cluster.world_size(), True)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    if not all(name in os.environ for name in names):
        return SINGLE
    rank, local_rank, world_size = (int(os.environ[name]) for name in names)
    return ProcessInfo(rank, local_rank, world_size, True)


def processes_per_machine(trainer: Mapping[str, Any]) -> int:
    """How many processes the trainer's settings ask for on each machine. Raises ConfigError for impossible ones."""
    devices = trainer.get("devices", 1)
    if trainer.get("strategy") in ("ddp", "chains"):
        return count_processes(trainer["accelerator"], devices, trainer.get("concurrent", 1))
    if devices != 1 and not (OmegaConf.is_list(devices) and len(devices) == 1):
        raise ConfigError(
            f"trainer.devices={devices}: trainer=ddp runs one chain on several devices, trainer=chains independent ones"
        )
    return 1


def count_processes(accelerator: str, devices: Any, concurrent: Any = 1) -> int:
    """The number of processes on a machine, `concurrent` on each device; on a CPU, a device is a core.

    Both must be numbers, because they are part of the configuration that identifies a run. Raises ConfigError for
    anything else and for more devices than the machine has.
    """
    if not isinstance(concurrent, int) or concurrent < 1:
        raise ConfigError(f"trainer.concurrent must be a number of processes on each device, got {concurrent}")
    if not isinstance(devices, int) or devices < 1:
        raise ConfigError(
            f"trainer.devices must be a number of devices, got {devices}; CUDA_VISIBLE_DEVICES chooses among them"
        )
    gpus = torch.cuda.device_count()
    on_cpu = accelerator == "cpu" or accelerator == "auto" and gpus == 0
    available, kind = (os.cpu_count() or 1, "CPU cores") if on_cpu else (gpus, "GPUs")
    if devices > available:
        raise ConfigError(f"trainer.devices={devices}, but this machine has {available} {kind}: set at most that many")
    return devices * concurrent


def check_count(process: ProcessInfo, expected: int) -> None:
    """Raise ConfigError if torchrun or SLURM launched another number of processes than the trainer expects."""
    if process.world_size != expected:
        raise ConfigError(
            f"{process.world_size} processes were launched, but the trainer expects {expected}, devices x concurrent x "
            "num_nodes: launch that many"
        )


def launch(count: int, work: Callable[..., None], *arguments: Any) -> None:
    """Run `work(*arguments)` in `count` new processes of this machine, in the environment that torchrun would make.

    Every process receives the signals of this one. When one fails, the others are asked to stop, and killed after GRACE
    seconds; when this process dies, they die. Raises Stopped after a signal, otherwise BdlError with the message of the
    first process that failed.
    """
    context = multiprocessing.get_context("spawn")
    messages: Any = context.SimpleQueue()
    running: list[Any] = []
    port = find_free_network_port()
    with _forward_signals(running) as signals:
        for rank in range(count):
            if not signals:
                with _environment(rank, count, port):
                    process = context.Process(target=_run_worker, args=(messages, work, arguments))
                    process.start()
                running.append(process)
        failed = _wait_for_all(running, lambda: None if signals else _send(signal.SIGTERM, running))
    message = None if messages.empty() else messages.get()
    if signals and (failed or len(running) < count):
        raise Stopped(signals[0], message or f"stopped by signal {signals[0]}; the same command resumes it")
    killed = [(rank, -status) for rank, status in failed if status < 0]
    if killed:
        rank, signum = killed[0]
        raise BdlError(f"process {rank} of {count} was ended by signal {signum}; the same command resumes it")
    if failed:
        raise BdlError(message or f"process {failed[0][0]} of {count} ended with status {failed[0][1]}")


@contextlib.contextmanager
def _forward_signals(processes: list[Any]) -> Iterator[list[int]]:
    """Forward SIGINT and SIGTERM to the processes. Yields the list of the signals received; the third one kills."""
    received: list[int] = []

    def on_signal(signum: int, _: Any) -> None:
        received.append(signum)
        _send(signum if len(received) < 3 else signal.SIGKILL, processes)

    previous = {signum: signal.signal(signum, on_signal) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _send(signum: int, processes: list[Any]) -> None:
    for process in processes:
        if process.exitcode is None:
            os.kill(process.pid, signum)


class StepStore:
    """The number of steps that each process has done, shared through torch's key-value store (TCPStore).

    There is no process group, so nothing slows the independent chains down. The constructor waits until every process
    has called it.
    """

    def __init__(self, process: ProcessInfo):
        cluster = _cluster()
        if cluster is not None:  # reading the addresses writes them into the environment
            _ = cluster.main_address, cluster.main_port
        self.process = process
        self._store: Any = next(iter(rendezvous("env://", process.rank, process.world_size)))[0]

    def set(self, steps: int) -> None:
        """Publish the steps of this process."""
        self._store.set(f"steps/{self.process.rank}", str(steps))

    def wait(self) -> list[int]:
        """The steps of every process, by rank. Waits until each of them has called `set`."""
        keys = [f"steps/{rank}" for rank in range(self.process.world_size)]
        while not self._store.check(keys):
            time.sleep(0.1)
        return [int(self._store.get(key)) for key in keys]


def _cluster() -> ClusterEnvironment | None:
    kinds = (TorchElasticEnvironment, SLURMEnvironment)
    return next((kind() for kind in kinds if kind.detect()), None)


@contextlib.contextmanager
def _environment(rank: int, size: int, port: int) -> Iterator[None]:
    """The variables of a new process. Lightning reads the rank when it is imported, so they are set before."""
    before = dict(os.environ)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run_worker(messages: Any, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setpgrp()  # Ctrl-C then reaches only the parent, which forwards it; a second signal would mean "stop at once"
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with one_line_errors(messages.put):
        work(*arguments)


def _die_with_parent() -> None:
    """End with the parent: an orphan would go on writing into a folder that the next run uses."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_all(processes: list[Any], stop: Callable[[], None]) -> list[tuple[int, int]]:
    """Wait until all have ended; call `stop` at the first failure.

    Returns (rank, status) of the processes that failed first.
    """
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
