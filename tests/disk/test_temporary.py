"""Tests of `bdl.disk.temporary`: what killed processes left in the temporary folder, and what must stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from bdl.disk import temporary
from bdl.disk.temporary import own_folder, sweep_temporary

DEAD = 2**22 - 5  # no process has this number


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_of_a_killed_process_is_removed_at_the_next_start(place):
    code = (
        "import os, signal; from bdl.disk.temporary import own_folder\n"
        "with own_folder() as f: (f / 'rows').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(place)})
    (left,) = place.iterdir()
    assert (left / "rows").exists()
    with own_folder() as folder:
        assert not left.exists() and [*place.iterdir()] == [folder]
    assert not folder.exists()


def test_only_own_folders_that_nobody_uses_are_removed(place, monkeypatch):
    ours = temporary._of_this_host()
    stays = [
        place / f"{ours}{os.getpid()}-abcdefgh",  # lives
        place / f"bdl-elsewhere-4026531836-{DEAD}-abcdefgh",  # another machine's
        place / "bdl-notes",  # a user's
        place / "pymp-now_used",  # made after the oldest Python began
    ]
    goes = [
        place / f"{ours}{DEAD}-abcdefgh",
        place / "pymp-old_1234",
        place / "bdl-old_1234",
        place / "bdl-law-old_1234",
    ]
    for path in (*stays, *goes):
        path.mkdir()
    linked = place / f"{ours}{DEAD}-linked__"
    linked.symlink_to(stays[2])
    for path in goes:
        os.utime(path, (1e9, 1e9))
    sweep_temporary()
    assert [path for path in goes if path.exists()] == []
    assert all(path.exists() for path in (*stays, linked))
    others = place / f"{ours}{DEAD}-another_"
    others.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    sweep_temporary()
    assert others.exists()


def test_without_proc_a_folder_that_names_no_process_stays(place, monkeypatch):
    (old := place / "pymp-old_1234").mkdir()
    os.utime(old, (1e9, 1e9))
    monkeypatch.setattr(temporary, "oldest_python", lambda: None)
    sweep_temporary()
    assert old.exists()


def test_the_oldest_python_is_not_younger_than_this_one():
    since = temporary.oldest_python()
    assert since is not None and 0 < since <= time.time()
