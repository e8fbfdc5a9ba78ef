"""Temporary folders that name their process, so that those which a killed process left are known and removed."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bdl.disk.owner import is_alive, pid_namespace

OURS = "bdl-"
UNNAMED = re.compile(r"pymp-\w+|bdl-(law-)?\w{8}")  # of `multiprocessing`, and of bdl before 0.4: no process is named


@contextlib.contextmanager
def own_folder(inside: Path | None = None) -> Iterator[Path]:
    """A new folder of this process in the system's temporary folder, or in this one; it is removed at the end.

    What earlier processes of this user have left there, because they were killed, is removed first.
    """
    parent = Path(tempfile.gettempdir()) if inside is None else inside
    sweep_temporary(parent)
    with tempfile.TemporaryDirectory(prefix=f"{_of_this_host()}{os.getpid()}-", dir=parent) as folder:
        yield Path(folder)


def sweep_temporary(parent: Path | None = None) -> None:
    """Remove the temporary folders of this user's dead processes on this machine. Nothing else is touched."""
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    found = [*parent.glob(f"{OURS}*"), *parent.glob("pymp-*")]
    mine = [path for path in found if _is_own_folder(path)]
    since = oldest_python() if any(UNNAMED.fullmatch(path.name) for path in mine) else None
    for path in mine:
        if _is_left(path, since):
            shutil.rmtree(path, ignore_errors=True)


def _is_left(path: Path, since: float | None) -> bool:
    """Is the process that made the folder gone for sure?

    since: when the oldest Python of this user began. It cannot have made a folder that nobody has changed since before.
    """
    if path.name.startswith(here := _of_this_host()):
        pid = path.name.removeprefix(here).partition("-")[0]
        return pid.isdecimal() and not is_alive(int(pid))
    with contextlib.suppress(OSError):
        return since is not None and bool(UNNAMED.fullmatch(path.name)) and path.lstat().st_mtime < since
    return False


def _is_own_folder(path: Path) -> bool:
    with contextlib.suppress(OSError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False


def _of_this_host() -> str:
    """How the names of folders begin whose process would be seen from here."""
    return f"{OURS}{platform.node()}-{''.join(filter(str.isdecimal, pid_namespace()))}-"


def oldest_python() -> float | None:
    """When this user's oldest process of Python began, in seconds since 1970; None where that is not known."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        began = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if process.stat().st_uid == os.getuid() and b"python" in _words(process):
                    ticks = int((process / "stat").read_text().rpartition(")")[2].split()[19])
                    began.append(boot + ticks / os.sysconf("SC_CLK_TCK"))
        return min(began, default=None)
    except (OSError, StopIteration):
        return None


def _words(process: Path) -> bytes:
    """The command of a process and the file that it runs."""
    return (process / "cmdline").read_bytes() + os.readlink(process / "exe").encode()
