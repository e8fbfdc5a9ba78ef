"""Tests of `bdl.disk.temporary`: what killed processes left in the temporary folder, and what must stay."""

import os
import subprocess
import sys

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


def test_only_own_folders_whose_process_is_dead_are_removed(place, monkeypatch):
    ours = temporary._prefix()
    stays = [
        place / f"{ours}{os.getpid()}-abcdefgh",  # lives
        place / f"bdl-00000000-{DEAD}-abcdefgh",  # another machine's
        place / "bdl-notes",  # a user's
        place / "pymp-old_1234",  # of any program that uses multiprocessing, which may live in another container
        place / "bdl-old_1234",  # names no process
    ]
    dead = place / f"{ours}{DEAD}-abcdefgh"
    for path in (*stays, dead):
        path.mkdir()
        os.utime(path, (1e9, 1e9))
    linked = place / f"{ours}{DEAD}-linked__"
    linked.symlink_to(stays[2])
    sweep_temporary()
    assert not dead.exists() and all(path.exists() for path in (*stays, linked))
    dead.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    sweep_temporary()
    assert dead.exists()


@pytest.mark.parametrize("what", ["platform.node", "bdl.disk.owner._machine", "bdl.disk.owner._namespace"])
def test_machines_and_containers_that_share_a_folder_sweep_their_own(place, monkeypatch, what):
    (dead := place / f"{temporary._prefix()}{DEAD}-abcdefgh").mkdir()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(what, lambda: "another")
        sweep_temporary()
        assert dead.exists()
    sweep_temporary()
    assert not dead.exists()
