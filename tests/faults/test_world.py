"""What the world does around a run: a second writer, a clock that steps, a slow disk, no permission, a lost rank."""

import ctypes
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from fault_runs import TINY, files, goes_on, messages, refused, steady, training
from injection import announce, command, in_child, killed_at, recorded, start_child, wait

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert in_child(training(folder)).status == 0
    return files(folder)


def until(condition, child) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline and os.waitpid(child.pid, os.WNOHANG) == (0, 0), "it ended too early"
        time.sleep(0.002)


def slow(seconds: float):
    """`prepare` of a child whose disk takes its time over every call."""
    return announce(lambda number, what, path: time.sleep(seconds))


def test_a_second_writer_is_refused_and_first_is_not_disturbed(whole, tmp_path):
    folder = tmp_path / "run"
    first = start_child(training(folder), slow(0.02))
    until((folder / "samples" / "index-0.jsonl").exists, first)
    assert f"belongs to process {first.pid} on" in refused(in_child(training(folder)))
    ended = wait(first)
    assert ended.status == 0 and messages(ended) == [], ended
    assert files(folder) == whole


def test_of_two_that_start_at_once_one_does_the_work(whole, tmp_path):
    folder = tmp_path / "run"
    children = [start_child(training(folder)) for _ in range(2)]
    each = sorted((wait(child) for child in children), key=lambda ended: ended.status)
    assert each[0].status == 0 and messages(each[0]) == [], each
    if each[1].status:  # else it began when the other one had ended
        assert "belongs to process" in refused(each[1])
    else:
        assert "already holds this run, complete" in each[0].out + each[1].out
    assert files(folder) == whole


def stepping_clock() -> None:
    """The clock on the wall steps by a day, forward and back in turn, whenever somebody reads it."""
    day, reads, wall, wall_ns = 86400, [0], time.time, time.time_ns

    def step() -> int:
        reads[0] += 1
        return day if reads[0] % 2 else -day

    time.time, time.time_ns = lambda: wall() + step(), lambda: wall_ns() + step() * 10**9


def test_a_clock_that_steps_changes_nothing(whole, tmp_path):
    """Neither the samples, nor a time limit, which counts seconds that have passed, nor a resumed run's files."""
    folder, limit = tmp_path / "run", "trainer.max_time=00:01:00:00"
    calls = recorded(training(tmp_path / "calls"), tmp_path / "calls")
    at = max(k for k, call in enumerate(calls) if call == ("open", "checkpoints/last.writing"))

    def prepare() -> None:
        stepping_clock()
        killed_at(at)()

    assert in_child(training(folder, limit), prepare).status == -signal.SIGKILL
    for path in folder.rglob("*"):
        os.utime(path, (2**31, 2**31))  # of the future
    ended = in_child(training(folder, limit), stepping_clock)
    assert ended.status == 0 and messages(ended) == [], ended
    assert files(folder) == whole | {"job.json": steady({"overrides": [*TINY, limit]})}


def test_a_signal_on_a_slow_disk_stops_in_good_order(whole, tmp_path):
    folder = tmp_path / "run"
    child = start_child(training(folder), slow(0.03))
    until((folder / "samples" / "index-0.jsonl").exists, child)
    os.kill(child.pid, signal.SIGTERM)
    ended = wait(child)
    assert ended.status == 143 and "the same command resumes from" in messages(ended)[0], ended
    assert goes_on(folder) == whole


def without_privileges() -> None:
    """`prepare` of a child that permissions hold for, root's too."""
    if os.geteuid() == 0:
        header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # the version that has 64 of them
        assert ctypes.CDLL(None, use_errno=True).capset(header, none) == 0, os.strerror(ctypes.get_errno())


@pytest.fixture
def locked(tmp_path):
    """A folder in which nobody may write while it is locked."""
    yield tmp_path
    allow(tmp_path)


def allow(folder: Path, write: bool = True) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200 if write else path.stat().st_mode & ~0o222)


def test_a_place_without_permission_is_one_line(locked):
    folder = locked
    allow(folder, write=False)
    assert "Permission denied" in refused(in_child(training(folder / "run"), without_privileges))
    assert list(folder.iterdir()) == []


def test_stopped_run_without_permission_is_one_line_and_goes_on(whole, locked):
    folder = locked
    run = folder / "run"
    calls = recorded(training(run), run)
    shutil.rmtree(run)
    at = max(k for k, call in enumerate(calls) if call == ("open", "checkpoints/last.writing"))
    assert in_child(training(run), killed_at(at)).status == -signal.SIGKILL
    allow(folder, write=False)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "Permission denied" in refused(in_child(training(run), without_privileges))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    allow(folder)
    ended = in_child(training(run), without_privileges)
    assert ended.status == 0, ended
    assert files(run) == whole


def test_an_ended_run_without_permission_can_be_read(whole, locked, tmp_path_factory):
    folder = locked
    run, out = folder / "run", tmp_path_factory.mktemp("out")
    assert in_child(training(run)).status == 0
    allow(folder, write=False)
    ended = in_child(training(run), without_privileges)
    assert ended.status == 0 and "already holds this run, complete" in ended.out, ended
    assert in_child(command("verify", f"run={run}"), without_privileges).status == 0
    assert "Permission denied" in refused(
        in_child(command("evaluate", f"runs=[{run}]", "train_items=200"), without_privileges)
    )
    ended = in_child(command("evaluate", f"runs=[{run}]", "train_items=200", f"out={out}"), without_privileges)
    assert ended.status == 0, ended
    metrics = [json.loads((path / "metrics.json").read_text()) for path in (run, out)]
    names = [name for name in metrics[0] if name.startswith("test/")]
    assert len(names) > 20 and all(metrics[0][name] == metrics[1][name] for name in names)
    assert files(run) == whole


@pytest.mark.parametrize("kind", ["ddp", "chains"])
def test_lost_rank_ends_run_in_one_line_and_same_command_goes_on(tmp_path, kind):
    """The first rank kills the second one in the middle of its own writing."""
    options, lost = (
        (f"trainer={kind}", "trainer.accelerator=cpu", "trainer.devices=2", "sampler=sghmc"),
        tmp_path / "lost",
    )
    ended = in_child(training(lost, *options), announce(lose_the_other_rank))
    assert "process 1 of 2 was ended by SIGKILL; the same command resumes it" in refused(ended)
    assert any(lost.glob("samples/*.safetensors")) and not (lost / "metrics.json").exists()
    assert goes_on(lost, *options) == goes_on(tmp_path / "whole", *options)


def lose_the_other_rank(number: int, what: str, path: str) -> None:
    if os.environ.get("RANK") == "1" and (what, Path(path).name) == ("open", "index-1.jsonl"):
        time.sleep(60)  # it would end before the first rank writes where that one is late; the kill comes first
    if os.environ.get("RANK") == "0" and (what, Path(path).name) == ("open", "index-0.jsonl"):
        parent = os.getppid()
        ranks = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if len(ranks) == 2:
            os.kill(int(ranks[1]), signal.SIGKILL)
            time.sleep(0.2)
