"""Several processes: one chain on two is the chain on one with twice the batch; failures and signals end all of them.

On CPUs with gloo. What the processes do is in `ddp` and `Recorder`; the same functions make the reference here.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

import bdl
from bdl.errors import BdlError, ReplicaError
from bdl.lightning.access import find_sampler
from bdl.models import MLP
from bdl.models.resnet import FilterResponseNorm
from bdl.run.processes import ALONE, Place, check_count, count_processes, find_place, launch
from bdl.samplers import parallel

STEPS, BATCH = 20, 5
WAIT = timedelta(seconds=60)  # for the other rank, so that a deadlock is a failure and not a hang
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
    """θ and energy after every step; may also do what must not happen, on one rank."""

    def __init__(self, rank: int, drift_at: int | None = None, signal_at: int | None = None):
        self.rank, self.drift_at, self.signal_at = rank, drift_at, signal_at
        self.theta: list[torch.Tensor] = []
        self.energy: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        sampler = find_sampler(trainer)
        if sampler.steps == len(self.theta):
            return
        self.theta.append(sampler._flat.theta.clone())
        self.energy.append(sampler.energy.clone())
        if self.rank == 1 and sampler.steps == self.drift_at:
            sampler._flat.theta[0, 0] = torch.nextafter(sampler._flat.theta[0, 0], torch.tensor(9.0))
        if self.rank == 1 and sampler.steps == self.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)


def sample(folder: Path, place: Place, recorder: Recorder, case: str, *callbacks: Callback, ckpt: Any = None) -> None:
    """`case` by this process: alone with twice the batch, or one of two."""
    settings = dict(CASES[case])
    torch.manual_seed(0)
    more, size = settings.pop("trainer", {}), settings.pop("batch", BATCH)
    module = toys.module(settings.pop("net")(), **settings)
    batches = toys.batches(settings["chains"], size if place.size > 1 else 2 * size)
    if place.size > 1:
        batches.shard(place.rank, place.size)
        more = more | {"strategy": DDPStrategy(timeout=WAIT), "devices": place.size}
    toys.trainer(folder, STEPS, [recorder, *callbacks], **more).fit(module, batches, ckpt_path=ckpt, weights_only=True)


def ddp(folder: Path) -> None:
    """The work of one process."""
    torch.set_num_threads(1)
    place = find_place()
    found: dict[str, Any] = {}
    for case in CASES:
        recorder = Recorder(place.rank)
        sample(folder, place, recorder, case)
        found[case] = {"theta": torch.stack(recorder.theta), "energy": torch.stack(recorder.energy)}
    stopped(folder, place, found)
    found["refused"] = [refused(folder, 1, bdl.SGHMC()), refused(folder, place.size, bdl.SGFS())]
    parallel.COMPARE_EVERY = 4
    try:
        sample(folder, place, Recorder(place.rank, drift_at=9), "stack, weighted")
    except ReplicaError as error:
        found["drift"] = str(error)
    torch.save(found, folder / f"{place.rank}.pt")


def refused(folder: Path, ranks: int, dynamics: Any) -> str:
    batches = toys.batches(batch=BATCH).shard(0, ranks)
    try:
        toys.trainer(folder, STEPS, strategy="ddp", devices=2).fit(toys.module(dynamics=dynamics), batches)
    except bdl.ConfigError as error:
        return str(error)
    return ""


def stopped(folder: Path, place: Place, found: dict[str, Any]) -> None:
    """A signal that reaches one rank only, and the continuation."""
    first, second = Recorder(place.rank, signal_at=3), Recorder(place.rank)
    save = bdl.SaveLast(folder / "checkpoints")
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(0, 5), folder)
    sample(folder, place, first, "stack, weighted", collect, save)
    found["stopped"] = (len(first.theta), save.signum)
    again = bdl.CollectSamples(bdl.schedules.EveryStep(0, 5), folder)
    sample(folder, place, second, "stack, weighted", again, ckpt=save.path)
    found["continued"] = second.theta[-1]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    launch(2, ddp, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)], folder


@pytest.mark.parametrize("case", CASES)
def test_two_processes_sample_what_one_does_with_twice_the_batch(ranks, tmp_path, case):
    recorder = Recorder(0)
    sample(tmp_path, ALONE, recorder, case)
    for one, two in zip(recorder.theta, ranks[0][0][case]["theta"], strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.stack(recorder.energy), ranks[0][0][case]["energy"], rtol=1e-5, atol=0)
    assert (recorder.theta[-1] - recorder.theta[0]).abs().max() > 0.1


@pytest.mark.parametrize("case", CASES)
def test_ranks_are_equal_to_the_bit(ranks, case):
    one, two = (rank[case] for rank in ranks[0])
    assert torch.equal(one["theta"], two["theta"]) and torch.equal(one["energy"], two["energy"])


def test_a_rank_that_drifts_by_one_bit_is_found_out(ranks):
    """Changed after step 9, compared after every 4th: both ranks say so at step 12."""
    assert ranks[0][0]["drift"] == ranks[0][1]["drift"]
    assert "hold different numbers after step 12" in ranks[0][0]["drift"]


def test_a_signal_to_one_rank_stops_both_and_they_go_on_as_if_nothing_were(ranks):
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


def fails(place_of_error: int) -> None:
    if find_place().rank == place_of_error:
        raise bdl.ConfigError("what is wrong")
    time.sleep(600)


def test_an_error_in_one_process_ends_all_in_its_words():
    started = time.monotonic()
    with pytest.raises(BdlError, match="^what is wrong$"):
        launch(2, fails, 1)
    assert time.monotonic() - started < 60


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


@pytest.mark.parametrize(("accelerator", "what"), [("cpu", "CPU cores"), ("gpu", "GPUs")])
def test_more_devices_than_there_are(accelerator, what):
    with pytest.raises(bdl.ConfigError, match=f"trainer.devices=4000, but there are .* {what} here"):
        count_processes(accelerator, 4000)
    assert count_processes("cpu", 1) == 1 and count_processes("cpu", 1, 5) == 5


def test_a_place_is_what_torchrun_says(monkeypatch):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert find_place() == ALONE
    for name, value in zip(names, "314", strict=True):
        monkeypatch.setenv(name, value)
    assert find_place() == Place(rank=3, local_rank=1, size=4, started=True)
    with pytest.raises(bdl.ConfigError, match="4 processes were started from outside, but the trainer wants 2"):
        check_count(find_place(), 2)


@pytest.mark.parametrize("devices", ["auto", 0, -1, [0, 1]])
def test_devices_are_a_number(devices):
    with pytest.raises(bdl.ConfigError, match="must be a number of devices"):
        count_processes("cpu", devices)


@pytest.mark.parametrize("concurrent", [0, 1.5, None])
def test_processes_on_a_device_are_a_number(concurrent):
    with pytest.raises(bdl.ConfigError, match=f"trainer.concurrent must be a number .* got {concurrent}"):
        count_processes("cpu", 1, concurrent)
