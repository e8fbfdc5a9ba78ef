"""Tests of `bdl.run.processes`, `.launch` and `bdl.samplers.parallel`.

One chain on two processes is the chain on one process with twice the batch; failures and signals end all processes.

The tests run on CPUs with gloo. `ddp` and `Recorder` are the work of each process, and they also make the reference.
"""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

import bdl
from bdl.errors import BdlError, ReplicaError
from bdl.models import MLP
from bdl.models.resnet import FilterResponseNorm
from bdl.run.launch import _wait_for_all, launch
from bdl.run.processes import SINGLE, ProcessInfo, StepStore, check_count, count_processes, process_info
from bdl.samplers import parallel
from bdl.samplers.potential import Potential

STEPS, BATCH = 20, 5
FORK = "fork" if sys.platform.startswith("linux") else "spawn"  # spawning costs 6 s for each process
WAIT = timedelta(minutes=5)  # for the other rank, so that a deadlock is a failure and not a hang
ADAPTIVE = bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=120.0, bins=10)


def mlp() -> nn.Module:
    return MLP((3, 5, 3))


def normed() -> nn.Module:
    """A convolution under filter response norm, for features that stand for images."""
    norm = FilterResponseNorm(2)
    return nn.Sequential(
        nn.Linear(3, 32), nn.Unflatten(1, (2, 4, 4)), nn.Conv2d(2, 2, 3), norm, nn.Flatten(), nn.Linear(8, 3)
    )


CASES: dict[str, dict[str, Any]] = {
    "stack, weighted": {"net": mlp, "chains": 2, "weighting": ADAPTIVE},
    "filter response norm": {"net": normed, "chains": 1},
    "all the data": {"net": mlp, "chains": 2, "dynamics": bdl.HMC(3, adapt_steps=5), "batch": toys.N // 2},
    "accumulated": {"net": mlp, "chains": 2, "trainer": {"accumulate_grad_batches": 2}},
}


class Recorder(Callback):
    """Records θ and energy after every step; on rank 1 it may change last bits of θ or send a signal."""

    def __init__(self, rank: int, drift_at: int | None = None, signal_at: int | None = None):
        self.rank, self.drift_at, self.signal_at = rank, drift_at, signal_at
        self.theta: list[torch.Tensor] = []
        self.energy: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        sampler = pl_module.sampler
        parameters = sampler.param_groups[0]["params"]
        if sampler.steps == len(self.theta):
            return
        self.theta.append(torch.cat([p.detach().flatten(1) for p in parameters], 1))
        self.energy.append(sampler.energy.clone())
        if self.rank == 1 and sampler.steps == self.drift_at:
            first = parameters[0].detach()[0].view(-1)  # the first chain
            first.copy_(torch.nextafter(first, torch.tensor(9.0)))
        if self.rank == 1 and sampler.steps == self.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)


def sample(
    folder: Path, process: ProcessInfo, recorder: Recorder, case: str, *callbacks: Callback, ckpt: Any = None
) -> None:
    """Sample `case` in this process: a single one with twice the batch, or one of two."""
    settings = dict(CASES[case])
    torch.manual_seed(0)
    more, size = settings.pop("trainer", {}), settings.pop("batch", BATCH)
    module = toys.module(settings.pop("net")(), **settings)
    batches = toys.batches(settings["chains"], size if process.world_size > 1 else 2 * size)
    if process.world_size > 1:
        batches.shard(process.rank, process.world_size)
        more = more | {"strategy": DDPStrategy(timeout=WAIT), "devices": process.world_size}
    toys.trainer(folder, STEPS, [recorder, *callbacks], **more).fit(module, batches, ckpt_path=ckpt, weights_only=True)


def ddp(folder: Path) -> None:
    torch.set_num_threads(1)
    process = process_info()
    record: dict[str, Any] = {}
    for case in CASES:
        recorder = Recorder(process.rank)
        sample(folder, process, recorder, case)
        record[case] = {"theta": torch.stack(recorder.theta), "energy": torch.stack(recorder.energy)}
    stopped(folder, process, record)
    record["reduced"] = reduced(folder, process)
    record["refused"] = [refused(folder, 1, bdl.SGHMC()), refused(folder, process.world_size, bdl.SGFS())]
    parallel.COMPARE_EVERY = 4
    try:
        sample(folder, process, Recorder(process.rank, drift_at=9), "stack, weighted")
    except ReplicaError as error:
        record["drift"] = str(error)
    torch.save(record, folder / f"{process.rank}.pt")


class Reads(bdl.callbacks.StepCallback):
    """Records whether the energy is known after each step; it reads those of every sixth."""

    def __init__(self):
        self.known: list[int] = []

    def must_see(self, step: int) -> bool:
        return step % 6 == 0

    def on_train_batch_end(self, trainer, pl_module, *_):
        if pl_module.sampler.energy is not None:
            self.known.append(pl_module.sampler.steps)


def reduced(folder: Path, process: ProcessInfo) -> dict[str, list[int]]:
    """The steps whose energy is known, and those in which the ranks averaged one, on one process of two."""
    steps: dict[str, list[int]] = {}
    for weighting in (bdl.Flat(), ADAPTIVE):
        reads, averaged, original = Reads(), [], Potential.energy_of

        def counted(potential, loss, averaged=averaged, original=original):
            averaged.append(potential.chain.steps + 1)
            return original(potential, loss)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Potential, "energy_of", counted)
            batches = toys.batches(2, BATCH).shard(process.rank, process.world_size)
            strategy = DDPStrategy(timeout=WAIT)
            limit = bdl.callbacks.TimeLimit("00:01:00:00")
            fit = toys.trainer(folder, STEPS, [reads, limit], strategy=strategy, devices=2).fit
            fit(toys.module(mlp(), 2, weighting=weighting), batches)
        steps |= {f"{type(weighting).__name__} known": reads.known, f"{type(weighting).__name__} averaged": averaged}
    return steps


def refused(folder: Path, ranks: int, dynamics: Any) -> str:
    batches = toys.batches(batch=BATCH).shard(0, ranks)
    try:
        toys.trainer(folder, STEPS, strategy="ddp", devices=2).fit(toys.module(dynamics=dynamics), batches)
    except bdl.ConfigError as error:
        return str(error)
    return ""


def stopped(folder: Path, process: ProcessInfo, record: dict[str, Any]) -> None:
    """Stop by a signal that reaches only one rank, and resume."""
    first, second = Recorder(process.rank, signal_at=3), Recorder(process.rank)
    save = bdl.SaveLast(folder / "checkpoints")
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(0, 5), folder)
    sample(folder, process, first, "stack, weighted", collect, save)
    record["stopped"] = (len(first.theta), save.signum)
    again = bdl.CollectSamples(bdl.schedules.EveryStep(0, 5), folder)
    sample(folder, process, second, "stack, weighted", again, ckpt=save.path)
    record["continued"] = second.theta[-1]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    launch(2, ddp, folder, start=FORK)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)], folder


@pytest.mark.parametrize("case", CASES)
def test_two_processes_sample_what_one_does_with_twice_the_batch(ranks, tmp_path, case):
    recorder = Recorder(0)
    sample(tmp_path, SINGLE, recorder, case)
    for one, two in zip(recorder.theta, ranks[0][0][case]["theta"], strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.stack(recorder.energy), ranks[0][0][case]["energy"], rtol=1e-5, atol=0)
    assert (recorder.theta[-1] - recorder.theta[0]).abs().max() > 0.1


@pytest.mark.parametrize("case", CASES)
def test_ranks_are_equal_to_the_bit(ranks, case):
    one, two = (rank[case] for rank in ranks[0])
    assert torch.equal(one["theta"], two["theta"]) and torch.equal(one["energy"], two["energy"])


def test_a_rank_that_differs_in_last_bits_is_reported(ranks):
    """They change after step 9, every fourth step compares: both ranks report it at step 12.

    It is the last bit of some numbers, because the rounding of later steps may take back that of one.
    """
    assert ranks[0][0]["drift"] == ranks[0][1]["drift"]
    assert "hold different numbers after step 12" in ranks[0][0]["drift"]


def test_ranks_average_only_energies_that_somebody_reads(ranks):
    """A callback reads every sixth step, an epoch ends every fourth step; a weighting reads all."""
    for rank in ranks[0]:
        for kind in ("known", "averaged"):
            assert rank["reduced"][f"Flat {kind}"] == [4, 6, 8, 12, 16, 18, 20]
            assert rank["reduced"][f"AdaptiveWeight {kind}"] == list(range(1, STEPS + 1))


def test_a_signal_to_one_rank_stops_both_and_they_resume_chain(ranks):
    for rank in ranks[0]:
        assert rank["stopped"] == (10, signal.SIGTERM)
        assert torch.equal(rank["continued"], rank["stack, weighted"]["theta"][-1])


def test_what_would_go_wrong_silently_is_refused(ranks):
    for rank in ranks[0]:
        unsharded, per_example = rank["refused"]
        assert "each of 2 devices would see the same batches: loader.shard" in unsharded
        assert "SGFS needs the per-example gradients of the whole batch" in per_example


def test_one_rank_writes(ranks):
    records = bdl.SampleStore(ranks[1]).records()
    assert [r.step for r in records] == [5, 10, 15, 20]
    last = bdl.SampleStore(ranks[1]).read(records[-1])
    theta = torch.cat([last[name].flatten(1) for name, _ in mlp().named_parameters()], 1)
    assert torch.equal(theta, ranks[0][0]["continued"])


def fails(folder: Path, failing_rank: int) -> None:
    """One process waits until the other is asked to stop, or for ten minutes."""
    waiting, asked = folder / "waiting", folder / "asked to stop"
    if process_info().rank == failing_rank:
        while not waiting.exists():
            time.sleep(0.01)
        raise bdl.ConfigError("the number is wrong")
    signal.signal(signal.SIGTERM, lambda *_: (asked.touch(), os._exit(0)))
    waiting.touch()
    time.sleep(600)


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_an_error_in_one_process_ends_all_with_its_message(tmp_path, failing_rank):
    with pytest.raises(BdlError, match="^the number is wrong$"):
        launch(2, fails, tmp_path, failing_rank, start=FORK)
    assert (tmp_path / "asked to stop").exists()  # so it did not end by itself


class Ending:
    """A process that has closed its sentinel, and that has its exit status from the third read on."""

    def __init__(self, status: int):
        self.status, self.reads = status, 0
        self.sentinel, writer = os.pipe()
        os.close(writer)

    @property
    def exitcode(self) -> int | None:
        self.reads += 1
        return self.status if self.reads > 2 else None


def test_a_failure_between_two_looks_at_a_process_is_seen():
    """The kernel closes the files of a process before it has a status. Missed, a stopped run ended with status 0."""
    stops: list[int] = []
    assert _wait_for_all([Ending(143), Ending(0)], lambda: stops.append(1))[0] == [(0, 143)] and stops == [1]
    assert _wait_for_all([Ending(0), Ending(0)], lambda: stops.append(1))[0] == [] and stops == [1]


ELASTIC = """
import os, signal, sys, time
from pathlib import Path
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

def work(folder):
    signal.signal(signal.SIGINT, lambda *_: Path(folder, "heard").touch())  # as a run that finishes its step
    Path(folder, "writing").write_text(str(os.getpid()))
    os.rename(Path(folder, "writing"), Path(folder, "pid"))
    while True:
        time.sleep(0.05)

start_processes("bdl", work, {0: (sys.argv[1],)}, {0: {}}, DefaultLogsSpecs(), start_method="fork").wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only")
def test_torchs_elastic_launcher_leaves_an_orphan(tmp_path):
    """Why `launch` is not torch's: a process outlives its killed parent, which only asks it to stop. If this test
    fails, torch has changed, and `launch` may be replaced."""
    parent = subprocess.Popen([sys.executable, "-c", ELASTIC, str(tmp_path)], stderr=subprocess.DEVNULL)
    while not (tmp_path / "pid").exists():
        assert parent.poll() is None
        time.sleep(0.05)
    pid = int((tmp_path / "pid").read_text())
    try:
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 100
        while not (tmp_path / "heard").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "heard").exists()
        os.kill(pid, 0)  # it is alive
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("launched", [False, True])
def test_in_allocation_of_slurm_only_what_srun_started_has_rank(monkeypatch, launched):
    variables = {
        "NTASKS": "2",
        "NTASKS_PER_NODE": "2",
        "JOB_NAME": "a",
        "JOB_ID": "7",
        "NODELIST": "here",
        "LOCALID": "1",
        "NODEID": "0",
    }
    for name, value in (variables | ({"PROCID": "1"} if launched else {})).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.delenv("SLURM_PROCID", raising=False) if not launched else None
    assert process_info() == (ProcessInfo(1, 1, 2, True) if launched else SINGLE)


def test_fingerprints_see_one_bit_anywhere():
    tensors = [torch.randn(5, 7), torch.randn(3, dtype=torch.float64), torch.tensor([True, False])]
    whole = int(parallel.fingerprint(tensors))
    seen = {whole}
    for tensor in tensors:
        for i in range(tensor.numel()):
            flat, old = tensor.view(-1), tensor.view(-1)[i].clone()
            flat[i] = ~old if tensor.dtype == torch.bool else torch.nextafter(old, old + 1)
            seen.add(int(parallel.fingerprint(tensors)))
            flat[i] = old
    assert int(parallel.fingerprint(tensors)) == whole and len(seen) == 1 + 35 + 3 + 2
    assert int(parallel.fingerprint([tensors[0].flip(0)])) != int(parallel.fingerprint([tensors[0]]))


@pytest.mark.parametrize(("accelerator", "kind"), [("cpu", "CPU cores"), ("gpu", "GPUs")])
def test_more_devices_than_the_machine_has(accelerator, kind):
    with pytest.raises(bdl.ConfigError, match=f"trainer.devices=4000, but this machine has .* {kind}:"):
        count_processes(accelerator, 4000)
    assert count_processes("cpu", 1) == 1 and count_processes("cpu", 1, 5) == 5


def test_the_ranks_are_those_that_torchrun_gives(monkeypatch):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert process_info() == SINGLE
    for name, value in zip(names, "314", strict=True):
        monkeypatch.setenv(name, value)
    assert process_info() == ProcessInfo(rank=3, local_rank=1, world_size=4, launched=True)
    with pytest.raises(bdl.ConfigError, match="4 processes were launched, but the trainer expects 2"):
        check_count(process_info(), 2)


@pytest.mark.parametrize("devices", ["auto", 0, -1, [0, 1]])
def test_devices_are_a_number(devices):
    with pytest.raises(bdl.ConfigError, match="must be a number of devices"):
        count_processes("cpu", devices)


@pytest.mark.parametrize("concurrent", [0, 1.5, None])
def test_processes_on_a_device_are_a_number(concurrent):
    with pytest.raises(bdl.ConfigError, match=f"trainer.concurrent must be a number .* got {concurrent}"):
        count_processes("cpu", 1, concurrent)


THREADS = """
import threading
import torch
import bdl.run.train
from bdl.run.launch import launch, start_by

def multiply(size):
    import numpy as np
    torch.set_num_threads(1)
    a = np.random.default_rng(0).normal(size=(size, size))
    assert np.isfinite(np.linalg.inv(a)).all()  # OpenBLAS starts its threads again
    (torch.randn(size, size, requires_grad=True) @ torch.randn(size, size)).sum().backward()

print(start_by("cpu"), start_by("gpu"), start_by("auto"))
multiply(400)  # the parent's OpenBLAS is at work before the fork, too
launch(2, multiply, 400, start="fork")
waiting = threading.Event()
thread = threading.Thread(target=waiting.wait)
thread.start()
print(start_by("cpu"))
waiting.set()
thread.join()
print(start_by("cpu"))
torch.set_num_threads(4)
torch.randn(2000, 2000).sum()
print(start_by("cpu"))
"""


@pytest.mark.slow  # a new interpreter, and OpenBLAS with all its threads
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only")
def test_process_forks_while_it_has_only_threads_of_its_imports():
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}  # OpenBLAS has its threads
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, env=environment)
    assert done.stdout.split("\n") == ["fork spawn spawn", "spawn", "fork", "spawn", ""], done.stderr


def write_rank(folder: Path, then_fail: bool) -> None:
    process = process_info()
    store = StepStore(process)
    store.set(10 * process.rank)
    steps = store.wait() if process.is_main else []
    (folder / str(process.rank)).write_text(f"{process.world_size} {rank_zero_only.rank} {steps}")
    if then_fail:
        fails(folder, failing_rank=1)


CLUSTER = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_JOB_NAME": "job", "SLURM_LOCALID": "0"}


def test_launched_processes_know_ranks_and_tell_their_steps(tmp_path, monkeypatch):
    """Also within a job of a cluster, whose variables name one process."""
    for name, value in CLUSTER.items():
        monkeypatch.setenv(name, value)
    assert process_info() == ProcessInfo(0, 0, 1, True)
    launch(3, write_rank, tmp_path, False, start=FORK)
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["3 0 [0, 10, 20]", "3 1 []", "3 2 []"]
    assert process_info() == ProcessInfo(0, 0, 1, True)


@pytest.mark.slow  # two new interpreters
def test_spawned_processes_do_so_too_and_their_errors_arrive(tmp_path, monkeypatch):
    """One launch for all that could differ in new interpreters, which are slow to start."""
    for name, value in CLUSTER.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BdlError, match="^the number is wrong$"):
        launch(2, write_rank, tmp_path, True, start="spawn")
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["2 0 [0, 10]", "2 1 []"]
    assert (tmp_path / "asked to stop").exists()
    assert process_info() == ProcessInfo(0, 0, 1, True)
