"""Atomic writes: a file exists complete or not at all."""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bdl.errors import StoreError


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name, sync, rename. Raises StoreError if the disk is full or not writable."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_prefix(os.getpid()))
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            os.chmod(temporary, 0o644)
            publish(Path(temporary), path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def sweep_leftovers(folder: Path) -> None:
    """Remove temporary files that writers of this machine left behind when they were killed."""
    for path in folder.glob(_prefix("*") + "*"):
        pid = path.name.removeprefix(f".writing-{platform.node()}-").partition("-")[0]
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, ValueError):
            path.unlink(missing_ok=True)
        except PermissionError:  # the writer is alive, and another user's
            continue


def _prefix(pid: int | str) -> str:
    return f".writing-{platform.node()}-{pid}-"


def publish(temporary: Path, path: Path) -> None:
    """Rename a complete, synced file to `path`, and sync the folder."""
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the disk into a StoreError that names `path`."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}; free space or choose another hydra.run.dir"
        ) from error
