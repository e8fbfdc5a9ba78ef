"""C code of bdl, built with the system's compiler, cached in the user's cache folder and loaded by ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bdl.cpu import cpu
from bdl.disk.temporary import own_folder
from bdl.errors import ConfigError

SECONDS = 60  # a compiler that takes longer counts as broken
_FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-fno-math-errno")
_NATIVE = ("-march=native", "-mcpu=native")  # the second where a compiler for ARM refuses the first
_outcome: dict[Path, ctypes.CDLL | str] = {}  # the library of a source, or why there is none


def load(source: Path, required: bool = False) -> ctypes.CDLL | None:
    """The library of a C file, built at the first call; None where that is not possible."""
    if source not in _outcome:
        compiler = _compiler()
        _outcome[source] = "there is none on PATH" if compiler is None else _build(source, compiler)
    library = _outcome[source]
    if not isinstance(library, str):
        return library
    if required:
        raise ConfigError(
            f"compile=true needs a working C compiler: {library}; install gcc or clang, name one in the variable CC, "
            "or set compile=auto"
        )
    return None


def typed(library: ctypes.CDLL, prefix: str, functions: Sequence[tuple[str, Any, list[Any]]]) -> Any:
    """The library, whose functions know their types. functions: name after the prefix, result, arguments."""
    for name, result, arguments in functions:
        function = getattr(library, prefix + name)
        function.restype, function.argtypes = result, arguments
    return library


@functools.cache
def _compiler() -> str | None:
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    found = [path for name in names if name and (path := shutil.which(name))]
    return found[0] if found and os.name == "posix" else None


def _build(source: Path, compiler: str) -> ctypes.CDLL | str:
    """The library from the cache or from the compiler, or why there is none."""
    try:
        try:
            folder = _cache_folder()
            name = f"{source.stem}-{_key(source, compiler)}"
            return _cached(folder, name) or _compile(source, compiler, folder, name)
        except (OSError, RuntimeError):  # no home, a folder that is not private, or from which nothing may run
            with own_folder() as folder:
                return _compile(source, compiler, folder, source.stem)
    except (OSError, subprocess.SubprocessError) as error:
        return _first_line(error)


def _cache_folder() -> Path:
    """The first private folder for libraries. Raises OSError or RuntimeError where there is none.

    What lies in it is loaded as code, so it must be this user's, and nobody else may write to it: XDG_CACHE_HOME may be
    a place that several users share.
    """
    for home in filter(None, (os.environ.get("XDG_CACHE_HOME"), "~/.cache")):
        folder = Path(home).expanduser() / "bdl"
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stat.S_ISDIR(folder.stat().st_mode) and _is_private(folder.stat()):
                return folder
    raise PermissionError("no cache folder that only this user may write to")


def _is_private(status: os.stat_result) -> bool:
    """Whether it belongs to this user, and nobody else may write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _key(source: Path, compiler: str) -> str:
    """A hash of all that decides the machine code: the source with its headers, the flags, the compiler and the CPU."""
    file, known = os.stat(compiler), [cpu().get(name) for name in ("model name", "flags", "Features", "CPU part")]
    machine = repr(known if any(known) else platform.uname())
    rest = repr((_FLAGS, _NATIVE, compiler, file.st_size, file.st_mtime_ns, machine))
    code = b"".join(path.read_bytes() for path in [source, *sorted(source.parent.glob("*.h"))])
    return hashlib.sha256(code + rest.encode()).hexdigest()[:20]


def _cached(folder: Path, name: str) -> ctypes.CDLL | None:
    """The library of this name. A file's name ends with the hash of its content; damaged files are removed.

    Only a private regular file counts: a link leads elsewhere, and to read a pipe would wait for ever.
    """
    for path in sorted(folder.glob(f"{name}-*.so")):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and _is_private(status) and _digest(path) == path.stem.rpartition("-")[2]:
            return ctypes.CDLL(str(path))
        path.unlink(missing_ok=True)
    return None


def _compile(source: Path, compiler: str, folder: Path, name: str) -> ctypes.CDLL | str:
    error = ""
    with own_folder(folder) as work:
        made = work / "made.so"
        for native in _NATIVE:
            command = [compiler, *_FLAGS, native, str(source), "-o", str(made), "-lm"]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
            if ran.returncode == 0:
                path = folder / f"{name}-{_digest(made)}.so"
                made.chmod(0o700)  # whatever the umask: `_cached` takes no file that others may write to
                os.replace(made, path)  # atomic, so that two processes may build at once
                return ctypes.CDLL(str(path))
            error = error or ran.stderr  # the first form is right on most machines
    return _first_line(error or f"{compiler} failed")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


def _first_line(what: Any) -> str:
    return next(iter(str(what).strip().splitlines()), type(what).__name__)
