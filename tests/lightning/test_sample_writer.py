"""Tests of `bdl.lightning.callbacks.sample_writer`: on an accelerator a thread writes the samples.

The accelerator is the simulated one, which needs no thread: on it the numbers are those of the CPU.
"""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import forked
import pytest
import toys
from repeats import slow_where
from simulated import Device

import bdl
from bdl.disk.manifest import Manifest
from bdl.errors import DivergedError, StoreError
from bdl.lightning.callbacks import sample_writer
from bdl.posterior.store import SampleStore

STEPS = 12  # every second state is kept


def run(folder: Path, resume: Path | None = None, steps: int = STEPS, save_every: int = 5) -> bdl.BayesianModule:
    module = toys.module(weighting=bdl.AdaptiveWeight(zeta=1.0, low=0.0, high=120.0, bins=10))
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(0, 2), folder)
    save = bdl.SaveLast(folder / "checkpoints", every=save_every)
    toys.trainer(folder, steps, [collect, save]).fit(module, toys.batches(), ckpt_path=resume, weights_only=True)
    return module


def files(folder: Path) -> dict[str, bytes]:
    paths = [*(folder / "samples").iterdir(), folder / "manifest-0.jsonl"]
    return {path.name: path.read_bytes() for path in paths if not path.name.startswith("owner")}


class Writes:
    """Takes the place of `SampleStore.write`. at: what to do before a write, by its number."""

    def __init__(self, **at: Any):
        self.at, self.threads, self.count = at, set(), 0
        original = SampleStore.write

        def write(store: SampleStore, *args: Any, **fields: Any) -> Any:
            self.count += 1
            self.threads.add(threading.current_thread())
            self.at.get(f"n{self.count}", lambda: None)()
            return original(store, *args, **fields)

        self.write = write


@pytest.fixture
def writes(monkeypatch):
    def replace(**at: Any) -> Writes:
        made = Writes(**at)
        monkeypatch.setattr(SampleStore, "write", made.write)
        return made

    return replace


def test_a_thread_writes_what_the_host_would_write_to_the_byte(simulated, tmp_path, writes, monkeypatch):
    by_thread = writes()
    run(tmp_path / "thread")
    assert by_thread.count == 6 and threading.current_thread() not in by_thread.threads
    assert all(thread.is_alive() is False for thread in by_thread.threads)
    monkeypatch.setattr(sample_writer.Background, "run", lambda background, call: call())
    by_host = writes()
    run(tmp_path / "host")
    assert by_host.threads == {threading.current_thread()}
    assert files(tmp_path / "thread") == files(tmp_path / "host")


def test_on_a_cpu_the_host_writes(tmp_path, writes):
    seen = writes()
    run(tmp_path)
    assert seen.threads == {threading.current_thread()}


def test_the_chain_goes_on_during_writing_and_memory_is_bounded(simulated, tmp_path, writes):
    """The first write ends once the third sample waits for room: the chain is at least four steps ahead by then."""
    room, ahead = threading.Event(), []
    original = sample_writer.Background._wait

    def waits(background: Any, left: int) -> None:
        if len(background._pending) == sample_writer.PENDING:
            ahead.append(len(background._pending))
            room.set()
        original(background, left)

    writes(n1=lambda: room.wait(60) or pytest.fail("the chain waits for its samples"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_writer.Background, "_wait", waits)
        run(tmp_path, steps=8)
    assert ahead and len(bdl.SampleStore(tmp_path).records()) == 4


def test_a_checkpoint_lists_the_samples_that_thread_still_writes(simulated, tmp_path, writes, monkeypatch):
    """The second sample, that of step 4, takes its time in step 5, after which the checkpoint is made."""
    writes(n2=lambda: time.sleep(0.3))
    states: list[dict[str, Any]] = []
    original = bdl.CollectSamples.state_dict
    monkeypatch.setattr(
        bdl.CollectSamples, "state_dict", lambda collect: states.append(original(collect)) or states[-1]
    )
    run(tmp_path)
    entries = Manifest(tmp_path, 0).entries()
    second = [entry for entry in entries if entry.kind == "sample"][1]
    assert states[0]["manifest"] == {"kept": second.hash, "written": second.hash}


def full() -> None:
    raise StoreError("cannot write: No space left on device")


@pytest.mark.parametrize("number", [1, 3, 6])
def test_an_error_of_thread_ends_run_and_leaves_samples_before(simulated, tmp_path, writes, number):
    """Also that of the last sample, which is written after the last step."""
    writes(**{f"n{number}": full})
    with pytest.raises(StoreError, match="^cannot write: No space left on device$"):
        run(tmp_path)
    listed = [line for line in (tmp_path / "manifest-0.jsonl").read_text().splitlines() if '"sample"' in line]
    assert len(listed) == number - 1


def test_a_run_that_ends_by_another_error_writes_what_was_kept(simulated, tmp_path, writes, monkeypatch):
    """The second sample is held back until the chain has diverged, and is written all the same. No checkpoint is due
    before, which would wait for the sample."""
    diverged, original = threading.Event(), bdl.Sampler.snapshot

    def snapshot(sampler: bdl.Sampler, *args: Any) -> Any:
        if sampler.steps == 6:
            diverged.set()
            raise DivergedError("the loss is not finite at step 6")
        return original(sampler, *args)

    monkeypatch.setattr(bdl.Sampler, "snapshot", snapshot)
    writes(n2=lambda: diverged.wait(60) or pytest.fail("the chain waits for its samples"))
    with pytest.raises(DivergedError):
        run(tmp_path, save_every=1000)
    assert [r.step for r in bdl.SampleStore(tmp_path).records()] == [2, 4]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path, number: int) -> None:
    """The work of a process that is killed in its write of this number."""
    SampleStore.write = Writes(**{f"n{number}": kill}).write  # type: ignore[method-assign]
    with Device("cuda"):
        run(folder)


@pytest.mark.parametrize("number", slow_where(lambda number: number != 4, [1, 4, 6]))
def test_a_kill_while_the_thread_writes_loses_nothing(tmp_path, number):
    """The run goes on from its last checkpoint, of steps 5 and 10, and leaves what a run leaves that was not killed."""
    child = forked.process(killed, tmp_path / "killed", number)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    checkpoint = tmp_path / "killed" / "checkpoints" / "last.ckpt"
    assert checkpoint.exists() == (number > 1)
    with Device("cuda"):
        run(tmp_path / "whole")
        run(tmp_path / "killed", checkpoint if number > 1 else None)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
