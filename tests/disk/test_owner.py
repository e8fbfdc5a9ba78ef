"""Tests of `bdl.disk.owner`.

One owner per folder: a live process is never robbed, a dead one never blocks, and of many only one wins.
"""

import errno
import json
import multiprocessing
import os
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bdl.disk.owner import Owner, owner_of, release, sole_owner, take
from bdl.errors import StoreError


def write(lock: Path, **changes) -> Owner:
    owner = replace(Owner.this_process(), **changes)
    lock.write_text(json.dumps(asdict(owner)))
    return owner


@pytest.fixture
def lock(tmp_path) -> Path:
    return tmp_path / "owner.json"


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    assert process.pid is not None
    return process.pid


def test_a_folder_has_one_owner_and_none_afterwards(lock):
    with sole_owner(lock):
        assert owner_of(lock) == Owner.this_process()
        with pytest.raises(StoreError, match=f"belongs to process {os.getpid()} on .*wait until it has ended"):
            take(lock)
    assert list(lock.parent.iterdir()) == []


def test_an_error_releases_the_folder(lock):
    with pytest.raises(ZeroDivisionError), sole_owner(lock):
        raise ZeroDivisionError
    assert owner_of(lock) is None


@pytest.mark.parametrize("fate", ["gone", "another start", "rebooted", "ended, but not asked about"])
def test_a_dead_owner_does_not_block(lock, dead, fate):
    child = os.fork() if fate.startswith("ended") else None
    if child == 0:
        os._exit(0)
    if child is not None:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    changes = {"gone": {"pid": dead}, "another start": {"started": "x 1"}, "rebooted": {"started": "boot 7"}}
    write(lock, **changes.get(fate, {"pid": child, "started": "x 1"}))
    take(lock)
    assert owner_of(lock) == Owner.this_process()
    if child is not None:
        os.waitpid(child, 0)


@pytest.mark.parametrize("place", [{"host": "elsewhere"}, {"namespace": "pid:[1]"}, {"machine": "a twin of this host"}])
def test_an_owner_that_cannot_be_seen_is_never_robbed(lock, dead, place):
    there = write(lock, pid=dead, **place)
    with pytest.raises(StoreError, match=f"cannot be seen from here, remove {lock}"):
        take(lock)
    assert owner_of(lock) == there


@pytest.mark.parametrize(
    ("job", "restart", "dead"), [("c/7", 1, True), ("c/7", 2, False), ("c/8", 1, False), ("", 0, False)]
)
def test_job_that_slurm_starts_anew_takes_over_from_another_host(lock, monkeypatch, job, restart, dead):
    """SLURM starts job 7 of cluster c for the second time; it has ended what the job ran before."""
    there = write(lock, host="elsewhere", job=job, restart=restart)
    for name, value in {"JOB_ID": "7", "CLUSTER_NAME": "c", "RESTART_COUNT": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    if dead:
        take(lock)
        assert (owner_of(lock).job, owner_of(lock).restart) == ("c/7", 2)
    else:
        with pytest.raises(StoreError, match="cannot be seen from here"):
            take(lock)
        assert owner_of(lock) == there


def test_the_lock_of_an_older_version_can_be_broken(lock, dead):
    fields = asdict(write(lock, pid=dead))
    lock.write_text(json.dumps({name: fields[name] for name in ("host", "namespace", "pid", "started")}))
    take(lock)
    assert owner_of(lock) == Owner.this_process()


def test_another_users_process_is_alive(lock, monkeypatch):
    def forbidden(*_):
        raise PermissionError

    owner = write(lock, pid=1, started="not to be read")
    monkeypatch.setattr(os, "kill", forbidden)
    monkeypatch.setattr("bdl.disk.owner.start_of", lambda _: None)
    assert not owner.is_dead()


def test_a_lock_that_another_process_has_taken_meanwhile_stays(lock):
    take(lock)
    there = write(lock, host="elsewhere")
    release(lock)
    assert owner_of(lock) == there


def test_a_damaged_lock_is_named(lock):
    lock.write_text("")
    with pytest.raises(StoreError, match=f"{lock} is damaged: remove it if no process writes"):
        take(lock)


def test_a_store_without_hard_links(lock, monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refused)
    take(lock)
    with pytest.raises(StoreError, match="belongs to"):
        take(lock)
    release(lock)
    assert list(lock.parent.iterdir()) == []


def test_an_answer_that_nfs_lost_is_no_refusal(lock, monkeypatch):
    link = os.link

    def repeated(*arguments):
        link(*arguments)
        raise FileExistsError

    monkeypatch.setattr(os, "link", repeated)
    take(lock)
    assert owner_of(lock) == Owner.this_process()


def test_a_read_only_folder_is_named(lock, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refused)
    with pytest.raises(StoreError, match=f"cannot write {lock}: Permission denied"):
        take(lock)


def compete(locks: list[Path], ready, won) -> None:
    for lock, winners in zip(locks, won, strict=True):
        ready.wait()
        with suppress(StoreError):
            take(lock)
            winners.release()
    ready.wait()  # a winner keeps its folders until all have tried


@pytest.mark.parametrize("before", ["nobody", "a dead owner"])
def test_of_many_processes_one_wins(lock, dead, before):
    """Where `_break` does not look again at whose lock it opened, two won within ten rounds."""
    context, many = multiprocessing.get_context("fork"), 8
    locks = [lock.with_name(f"owner-{i}.json") for i in range(10)]
    if before == "a dead owner":
        for path in locks:
            write(path, pid=dead)
    ready, won = context.Barrier(many), [context.Semaphore(0) for _ in locks]
    processes = [context.Process(target=compete, args=(locks, ready, won)) for _ in range(many)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [winners.get_value() for winners in won] == [1] * len(locks)
