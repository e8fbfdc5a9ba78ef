"""Launching the processes of a run on this machine: by fork or by spawn, with signals, failures and orphans seen to."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.fabric.utilities.rank_zero import rank_zero_only

from bdl.disk.temporary import own_folder
from bdl.errors import BdlError, Stopped
from bdl.interrupts import signal_in_words
from bdl.lightning.callbacks.checkpoint import ending_signals
from bdl.run.arrivals import Watch, share
from bdl.run.console import one_line_errors
from bdl.run.processes import STORE

Start = Literal["spawn", "fork"]
WARNING = signal.SIGUSR2  # a scheduler's, see `ending_signals`
ENDING = {signal.SIGINT, signal.SIGTERM, WARNING}
GRACE = 60.0  # seconds for the other processes to finish a step and write a checkpoint after one of them has failed


def launch(
    count: int,
    work: Callable[..., None],
    *arguments: object,
    start: Start = "spawn",
    patience: float | None = None,
) -> None:
    """Run `work(*arguments)` in `count` new processes of this machine, in the environment that torchrun would make.

    Every process receives the signals of this one. When one fails, the others are asked to stop, and killed after GRACE
    seconds; when this process dies, they die. Raises Stopped after a signal, otherwise BdlError with the message of the
    first process that failed, or the name of those that have hung, which are killed.

    This is not torch's elastic launcher (`torch.distributed.elastic`, the one of torchrun), because that (2.14)
    - sends the processes SIGINT when their parent is killed. A run answers by finishing a step and writing: an orphan
      would write into a folder that the next run may own. A slow test shows that it lives on;
    - kills the processes 30 s after a signal, whatever they are writing, and reports a failure by a traceback;
    - hands on neither a second Ctrl-C, on which it leaves its processes running, nor Ctrl-Z.

    start: "spawn" starts new interpreters, which import everything again; "fork" copies this process, see `start_by`.
    patience: seconds for which processes that wait for each other may all stand still, see `Watch`; None: for ever.
    """
    context = multiprocessing.get_context("fork") if start == "fork" else multiprocessing.get_context("spawn")
    messages: SimpleQueue[str] = context.SimpleQueue()
    running: list[BaseProcess] = []
    places: Any = context.RawArray("q", count)
    watch = None if patience is None else Watch(places, patience)
    port = find_free_network_port()
    with own_folder() as folder, _forward_signals(running) as signals:
        for rank in range(count):
            if not signals:
                process = context.Process(target=_run_worker, args=(messages, places, rank, work, arguments))
                with _environment(rank, count, port, folder / "store"), _signals_blocked():
                    process.start()
                    running.append(process)
        failed, hung = _wait_for_all(running, lambda: None if signals else _send(signal.SIGTERM, running), watch)
    if hung is not None:
        raise BdlError(hung)
    message = None if messages.empty() else messages.get()
    if signals and (failed or len(running) < count):
        raise Stopped(signals[0], message or f"stopped by {signal_in_words(signals[0])}; the same command resumes it")
    killed = [(rank, -status) for rank, status in failed if status < 0]
    if killed:
        rank, signum = killed[0]
        raise BdlError(f"process {rank} of {count} was ended by {signal_in_words(signum)}; the same command resumes it")
    if failed:
        raise BdlError(message or f"process {failed[0][0]} of {count} ended with status {failed[0][1]}")


def start_by(accelerator: str) -> Start:
    """How `launch` may start its processes: "fork", which is nearly free, or "spawn", 4 s of CPU time for each.

    A copy has only the thread that copies. What other threads held stays locked for ever in it, and a team of OpenMP
    threads stays lost, so a process forks only while its threads are those that were there after the imports: those of
    OpenBLAS, which end before a fork and start again after it. No device but a CPU survives a fork.
    """
    alone = threading.active_count() == 1 and len(_native_threads()) <= len(_THREADS_OF_IMPORTS)
    return "fork" if accelerator == "cpu" and sys.platform.startswith("linux") and alone else "spawn"


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Give a job that its scheduler has stopped back to the scheduler, once its checkpoint is written.

    The handler of the warning from before the run does so: submitit's requeues the job and ends this process. SLURM
    itself requeues a preempted job only if it is still there when its time of grace is over.
    """
    try:
        yield
    except Stopped as stop:
        if WARNING in ending_signals() and (stop.signum == WARNING or preempted()):
            handler = signal.getsignal(WARNING)
            assert callable(handler)
            handler(WARNING, None)
        raise


def preempted() -> bool:
    """Whether SLURM says that it takes this job's machine away. False for a job that the user has cancelled."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or shutil.which("scontrol") is None:
        return False
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True)
    return re.search(r"PreemptTime=(?!None|N/A)\S", shown.stdout) is not None


def _native_threads() -> list[str]:
    """The threads of this process, on Linux."""
    folder = Path("/proc/self/task")
    return [path.name for path in folder.iterdir()] if folder.exists() else []


@contextlib.contextmanager
def _forward_signals(processes: Sequence[BaseProcess]) -> Iterator[list[int]]:
    """Forward signals that ask for a stop to the processes. Yields those that were received; the third one kills.

    Ctrl-Z stops the processes too, and they continue with this one.
    """
    received: list[int] = []

    def on_signal(signum: int, _: object) -> None:
        received.append(signum)
        _send(signum if len(received) < 3 else signal.SIGKILL, processes)

    def on_stop(*_: object) -> None:
        _send(signal.SIGSTOP, processes)
        os.kill(os.getpid(), signal.SIGSTOP)  # returns when this process continues
        _send(signal.SIGCONT, processes)

    handlers = {**dict.fromkeys(ending_signals(), on_signal), signal.SIGTSTP: on_stop}
    previous = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        yield received
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals inside the context: they arrive after it. Processes that start inside begin with them blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _send(signum: int, processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.exitcode is None and process.pid is not None:
            os.kill(process.pid, signum)


@contextlib.contextmanager
def _environment(rank: int, size: int, port: int, store: Path) -> Iterator[None]:
    """The variables of a new process. Lightning reads the rank when it is imported, so they are set before."""
    before = dict(os.environ)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), STORE: store.as_uri()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run_worker(
    messages: SimpleQueue[str], places: Any, rank: int, work: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    os.setpgrp()  # Ctrl-C then reaches only the parent, which forwards it; a second signal would mean "stop at once"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a forked process has the parent's handlers
    if WARNING in ending_signals():  # what a scheduler's warning does is the parent's affair
        signal.signal(WARNING, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    rank_zero_only.rank = rank  # type: ignore[attr-defined]  # Lightning read it when it was imported, in a forked process before the fork
    share(places)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with one_line_errors(messages.put):
        work(*arguments)


def _die_with_parent() -> None:
    """End with the parent: an orphan would go on writing into a folder that the next run uses."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_all(
    processes: Sequence[BaseProcess], stop: Callable[[], None], watch: Watch | None = None
) -> tuple[list[tuple[int, int]], str | None]:
    """Wait until all have ended; call `stop` at the first failure, and kill all where the watch names some.

    Returns (rank, status) of the processes that failed first, and what the watch says.
    """
    first: list[tuple[int, int]] = []
    words: str | None = None
    deadline = float("inf")
    while True:
        # In this order: a process closes its sentinel before it has a status, and may get it between any two reads
        alive = [p for p in processes if p.exitcode is None]
        failed = [(rank, p.exitcode) for rank, p in enumerate(processes) if p.exitcode]
        if failed and not first:
            first, deadline = failed, time.monotonic() + GRACE
            stop()
        if not alive:
            return first, words
        if watch is not None and not first and (hung := watch.hung()):
            words, deadline = watch.words(hung), 0.0
        if time.monotonic() > deadline:
            for process in alive:
                process.kill()
        wait([p.sentinel for p in alive], timeout=1.0)


_THREADS_OF_IMPORTS = _native_threads()
