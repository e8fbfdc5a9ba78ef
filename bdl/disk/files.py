"""Atomic writes: a file exists complete or not at all. And reads that do not wait for a pipe."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bdl.errors import ConfigError, StoreError

OF_TRANSFORMERS = ("model.safetensors", "pytorch_model.bin")  # files of a folder that `save_pretrained` wrote
OF_THE_KERNEL = ("/proc/", "/sys/")  # what lies there is made while it is read; /proc/kmsg waits for messages
SMALL_FILE = 2**26  # bytes; files that describe a run have fewer
LACKS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # what a file system answers that cannot do it
WRITING = ".writing-"  # temporary names begin with it, then follow host and process


def write_atomically(path: Path, *parts: bytes | memoryview, make_folder: bool = True) -> None:
    """Write to a temporary name, sync, rename. Raises StoreError if the disk is full or not writable.

    It raises StoreError also where a device, a pipe or a socket lies, in whose place a file would be: a user who may do
    everything would lose /dev/null.

    parts: the content, one after the other, so that a large one need not be put together in memory.
    make_folder: False where the folder has been there, so that a folder which was moved meanwhile is not made again.
    """
    with disk_errors(path):
        if path.exists() and not path.is_file():
            raise StoreError(f"cannot write {path}: it is no regular file; name another place")
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(path.parent, *parts) as written:
            move_into_place(written, path)


def is_on_disk(path: Path) -> bool:
    """Whether this is a file that ends: no folder, and no pipe, device or file of /proc, where a reader may wait.

    >>> is_on_disk(Path(__file__)), is_on_disk(Path("/dev/zero")), is_on_disk(Path("/proc/version"))
    (True, False, False)
    """
    return path.is_file() and not os.path.realpath(path).startswith(OF_THE_KERNEL)


def read_file(path: Path, most: int | None = None) -> bytes:
    """The bytes of a file. Raises OSError for a pipe or a device too, which may never end.

    most: bytes beyond which a file is refused, where one of that kind is small.
    """
    with open_regular(path) as f:
        if most is not None and os.fstat(f.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return f.read()


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """A file to read from. Raises OSError for a pipe, a device or a file of the kernel too."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as f:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not (status.st_size or is_on_disk(path)):  # /proc tells no sizes
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield f


def weights_of(path: str | Path) -> Path:
    """The file of a network's weights: the path itself, or in a folder that `save_pretrained` wrote the file in it."""
    place = Path(path).expanduser()
    return next((place / name for name in OF_TRANSFORMERS if (place / name).exists()), place)


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text. Raises ValueError for text that is not JSON, and for JSON nested too deep."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def append_line(path: Path, line: bytes) -> None:
    """Append a whole line and sync it, or leave the file as it was. Raises StoreError.

    Half a line that a killed writer left is cut first.
    """
    refuse_links(path)
    with disk_errors(path), open(path, "ab", buffering=0) as f:  # what a buffer holds after an error, it writes later
        end = f.tell()
        with open(path, "rb") as before:
            before.seek(-1 if end else 0, os.SEEK_END)
            if before.read(1) not in (b"", b"\n"):
                end = read_file(path).rfind(b"\n") + 1
                f.truncate(end)
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[f.write(rest) :]
            os.fsync(f.fileno())
        except OSError:
            f.truncate(end)
            raise


@contextlib.contextmanager
def temporary_file(folder: Path, *parts: bytes | memoryview) -> Iterator[Path]:
    """A complete, synced file of a temporary name. It is removed in the end, unless it was renamed."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=f"{WRITING}{platform.node()}-{os.getpid()}-")
    try:
        with os.fdopen(handle, "wb") as f:
            for part in parts:
                f.write(part)
            f.flush()
            os.fsync(f.fileno())
        with contextlib.suppress(OSError):  # a file system without modes
            os.chmod(name, 0o644)
        yield Path(name)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def move_into_place(temporary: Path, path: Path) -> None:
    """Rename a complete, synced file to `path`, and sync the folder."""
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in LACKS:  # a file system whose folders are never synced, or always
            raise
    finally:
        os.close(folder)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the disk into a StoreError that names `path`."""
    try:
        yield
    except StoreError:
        raise
    except FileNotFoundError as error:
        raise StoreError(f"cannot write {path}: its folder was moved or removed while a process wrote to it") from error
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; {_remedy(error.errno)}") from error


def _remedy(number: int | None) -> str:
    """What helps against an error of the disk: only a full one needs space."""
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free space or choose another hydra.run.dir"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a hydra.run.dir that you may write to"
    if number in LACKS:
        return "the file system lacks what a safe write needs: choose a hydra.run.dir on another one"
    return "see that the disk is well, or choose another hydra.run.dir"


def refuse_links(*paths: Path) -> None:
    """Raise ConfigError for the first of these that is a link, through which a file elsewhere would be written."""
    if links := [path for path in paths if path.is_symlink()]:
        raise ConfigError(f"{links[0]} is a link, and a run writes only into its own folder: move it away")
