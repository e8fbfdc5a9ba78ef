"""Atomic writes: an error leaves the old file and no temporary one."""

from __future__ import annotations

import errno
import os

import pytest

from bdl.errors import StoreError
from bdl.files import write_atomically


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
