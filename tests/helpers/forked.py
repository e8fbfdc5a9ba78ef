"""Commands in processes of their own, forked from a server that has imported what they need (`preloaded`).

A new interpreter spends 6 s of CPU time on imports. A forked one is as new in what these tests are about: signals, exit
status, both streams, the environment and the folder. One test per matter starts a new interpreter all the same.
"""

import multiprocessing
import os
import runpy
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["preloaded"])


def process(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A process of its own that has begun to call the function."""
    # The server of Python 3.11 looks for `preloaded` on the path of a new interpreter, and goes on without it
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):
        forkserver.ensure_running()
    begun = CONTEXT.Process(target=function, args=arguments)
    begun.start()
    return begun


class Forked:
    """A Python script with its arguments, as `subprocess.Popen` would start it."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None):
        streams = [CONTEXT.Pipe(duplex=False) for _ in range(2)]
        environment = dict(os.environ if env is None else env)
        arguments = (list(command), str(cwd), environment, *(writer for _, writer in streams))
        self.process = process(_run, *arguments)
        for _, writer in streams:
            writer.close()
        self.pid = self.process.pid
        self.streams = [reader for reader, _ in streams]

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, signum: int) -> None:
        os.kill(self.process.pid, signum)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """stdout and stderr, complete when the last process that holds them has ended. Kills it after `timeout` s."""
        texts, deadline = [b"", b""], time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for i, reader in enumerate(self.streams):
                selector.register(reader.fileno(), selectors.EVENT_READ, i)
            while selector.get_map():
                ready = selector.select(deadline - time.monotonic())
                if not ready:  # a hang, not a slow machine
                    self.send_signal(signal.SIGKILL)
                    raise subprocess.TimeoutExpired("the forked command", timeout)
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    texts[key.data] += data
                    if not data:
                        selector.unregister(key.fd)
        self.process.join()
        return texts[0].decode(), texts[1].decode()


def _run(command: list[str], cwd: str, environment: dict[str, str], out: Connection, err: Connection) -> None:
    assert "preloaded" in sys.modules, "the server has imported nothing"
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, writer in ((1, out), (2, err)):
        os.dup2(writer.fileno(), number)
        writer.close()
    sys.argv = command
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(Path(command[0]).parent), *filter(None, paths)]
    runpy.run_path(command[0], run_name="__main__")
