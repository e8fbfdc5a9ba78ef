"""Faults at chosen calls of the system: a kill, or a disk that is full from then on.

A command runs in a forked child, in which every call that changes files is counted: opens for writing, writes, syncs,
renames, links, removals, and folders. Python's audit events announce all but writes and syncs, whoever makes them.
"""

import builtins
import errno
import io
import os
import re
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composing import SCRIPTS

AUDITED = {
    "os.rename": "rename", "os.link": "link", "os.remove": "remove", "os.mkdir": "mkdir", "os.rmdir": "rmdir",
}  # fmt: skip
GROWS = ("open", "write", "fsync", "rename", "link", "mkdir")  # what a full disk refuses
RANDOM = re.compile(r"\.writing-.*|\d{8}(?=-\d+\.safetensors)|tmp\w{8}")

Act = Callable[[int, str, str], None]  # number of the call, what it is, the path


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit status, or minus the number of the signal that killed it; and what it printed."""

    status: int
    out: str
    err: list[str]


def in_child(work: Callable[[], Any], prepare: Callable[[], Any] = lambda: None, timeout: float = 300) -> Ended:
    """Fork, call `prepare` and `work` in the child, and wait for its end. A hang is an AssertionError."""
    return wait(start_child(work, prepare), timeout)


@dataclass(frozen=True)
class Child:
    pid: int
    streams: tuple[Path, Path]


def start_child(work: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> Child:
    folder = Path(tempfile.mkdtemp())
    streams = (folder / "out", folder / "err")
    sys.stdout.flush(), sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid, streams)
    status = 70
    try:
        for number, path in zip((1, 2), streams, strict=True):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(handle, number)
        sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))
        prepare()
        work()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def wait(child: Child, timeout: float = 300) -> Ended:
    deadline = time.monotonic() + timeout
    while True:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            raise AssertionError(f"the command hangs: {[path.read_text() for path in child.streams]}")
        time.sleep(0.005)
    out, err = (path.read_text() for path in child.streams)
    return Ended(os.waitstatus_to_exitcode(status), out, [line for line in err.splitlines() if line.strip()])


def command(name: str, *overrides: str) -> Callable[[], None]:
    """A script as its command line would run it."""
    path = SCRIPTS / f"{name}.py"

    def run() -> None:
        sys.argv = [str(path), *overrides]
        runpy.run_path(str(path), run_name="__main__")

    return run


def announce(act: Act) -> Callable[[], None]:
    """`prepare` of a child in which `act` is called before every call that changes files."""

    def install() -> None:
        count, busy = 0, False

        def happens(what: str, path: Any) -> None:
            nonlocal count, busy
            name = _name(path)
            if busy or name is None:
                return
            busy = True
            try:
                act(count, what, name)
            finally:
                count, busy = count + 1, False

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open":
                path, _, flags = arguments
                folder = flags & os.O_ACCMODE == os.O_RDONLY and isinstance(path, str | Path) and os.path.isdir(path)
                if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or folder:
                    happens("open", path)
            elif event in AUDITED:
                happens(AUDITED[event], arguments[1] if event == "os.link" else arguments[0])

        fsync, plain_open = os.fsync, io.open

        def announced_fsync(handle: int) -> None:
            happens("fsync", handle)
            fsync(handle)

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:  # type: ignore[override]
                try:
                    happens("write", self.fileno())
                except OSError:
                    part = memoryview(data).cast("B")
                    super().write(part[: len(part) // 2])  # a disk that fills takes a part
                    raise
                return super().write(data)

        def announced_open(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
            if "b" not in mode or not set(mode) & set("wax"):
                return plain_open(file, mode, buffering, *args, **kwargs)
            raw = Raw(file, mode.replace("b", ""))
            return io.BufferedWriter(raw) if buffering else raw

        os.fsync = announced_fsync
        builtins.open = io.open = announced_open
        sys.addaudithook(hook)

    return install


def _name(path: Any) -> str | None:
    """The path of a file or handle; None for a stream, a device and a folder of caches."""
    try:
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.path.abspath(os.fsdecode(path))
    except OSError:
        return None
    other = name.startswith(("/dev/", "/proc/", "pipe:", "socket:")) or "__pycache__" in name or ".cache" in name
    return None if other else name


def recorded(work: Callable[[], Any], folder: Path) -> list[tuple[str, str]]:
    """(what, file) of every call that changes files, in order. Files are named without what is random in them."""
    calls = folder.parent / f"{folder.name}.calls"
    handle = os.open(calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def act(number: int, what: str, path: str) -> None:
        os.write(handle, f"{what}\t{path}\n".encode())

    ended = in_child(work, announce(act))
    os.close(handle)
    assert ended.status == 0, ended
    lines = [line.split("\t") for line in calls.read_text().splitlines()]
    return [(what, RANDOM.sub("*", os.path.relpath(path, folder))) for what, path in lines]


def killed_at(k: int) -> Callable[[], None]:
    """`prepare` of a child that kills itself just before call number k."""

    def act(number: int, what: str, path: str) -> None:
        if number == k:
            os.kill(os.getpid(), signal.SIGKILL)

    return announce(act)


def full_from(k: int, once: bool = False) -> Callable[[], None]:
    """`prepare` of a child whose disk is full from call number k on, or at that call alone."""

    def act(number: int, what: str, path: str) -> None:
        due = number == k if once else number >= k
        if due and what in GROWS and not (what == "open" and os.path.isdir(path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    return announce(act)


def chosen(calls: list[tuple[str, str]], most: int, everything: bool) -> list[int]:
    """Numbers of calls: all, or the last of each kind of call on each kind of file, thinned evenly to `most`."""
    if everything:
        return list(range(len(calls)))
    last = sorted({call: number for number, call in enumerate(calls)}.values())
    return [last[i * len(last) // most] for i in range(most)] if len(last) > most else last
