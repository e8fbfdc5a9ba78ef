"""Temporary folders that name their process, so that those which a killed process left are known and removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bdl.disk.owner import is_alive, seen_from_here


@contextlib.contextmanager
def own_folder(inside: Path | None = None) -> Iterator[Path]:
    """A new folder of this process in the system's temporary folder, or in this one; it is removed at the end.

    What earlier processes of this user have left there, because they were killed, is removed first.
    """
    parent = Path(tempfile.gettempdir()) if inside is None else inside
    sweep_temporary(parent)
    with tempfile.TemporaryDirectory(prefix=f"{_prefix()}{os.getpid()}-", dir=parent) as folder:
        yield Path(folder)


def sweep_temporary(parent: Path | None = None) -> None:
    """Remove the folders that `own_folder` has made for processes of this user which are dead. Nothing else is touched.

    Processes of another machine or container, which are not seen from here, count as alive.
    """
    parent, prefix = Path(tempfile.gettempdir()) if parent is None else parent, _prefix()
    for path in parent.glob(f"{prefix}*"):
        pid = path.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not is_alive(int(pid)) and _is_own_folder(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_own_folder(path: Path) -> bool:
    with contextlib.suppress(OSError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False


def _prefix() -> str:
    """How the names of folders begin whose process would be seen from here."""
    return f"bdl-{seen_from_here()}-"
