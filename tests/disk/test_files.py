"""Tests of `bdl.disk.files` and `bdl.errors`.

Atomic writes: an error leaves the old file and no temporary one.
"""

import errno
import os
import platform
import subprocess
import sys

import pytest

from bdl.disk.files import SMALL_FILE, parse_json, read_file, write_atomically
from bdl.disk.owner import sweep_leftovers
from bdl.errors import StoreError


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, function):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, function, full_disk)
    with pytest.raises(StoreError, match=f"cannot write {path}: No space left on device; free space"):
        write_atomically(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_bytes() == b"old"


def test_an_interrupt_while_writing_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_of_dead_writers_are_swept(tmp_path):
    """Those of a process that is alive stay, and so does everything else."""
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    names = {pid: f".writing-{platform.node()}-{pid}-x" for pid in (int(dead.stdout), os.getpid())}
    for name in (*names.values(), "kept.txt", ".writing-another-host-1-x"):
        (tmp_path / name).write_text("")
    sweep_leftovers(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {names[os.getpid()], "kept.txt", ".writing-another-host-1-x"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_writer_that_has_ended_unasked_counts_as_dead(tmp_path):
    """A killed worker of a killed run keeps its number where no process asks about orphans."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and still nobody has asked
    (tmp_path / f".writing-{platform.node()}-{child}-x").write_text("")
    sweep_leftovers(tmp_path)
    os.waitpid(child, 0)
    assert list(tmp_path.iterdir()) == []


def test_json_that_is_nested_too_deep_is_damaged_json():
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json("[" * 100_000)


def test_a_file_that_should_be_small_is_refused_unread(tmp_path):
    path = tmp_path / "config.yaml"
    with path.open("wb") as f:
        f.truncate(2**40)  # takes no space on the disk, and all memory
    with pytest.raises(OSError, match="it has more than 67,108,864 bytes"):
        read_file(path, SMALL_FILE)


def test_no_file_takes_the_place_of_a_pipe(tmp_path):
    """Root would have replaced /dev/null, and a reader of the pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(StoreError, match=f"cannot write .*{name}: it is no regular file; name another place"):
            write_atomically(tmp_path / name, b"text")
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
