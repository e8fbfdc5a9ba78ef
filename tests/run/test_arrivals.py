"""Tests of `bdl.run.arrivals`: one chain over both and a stack on each, on simulated ones; and which process has hung.

The processes are joined by gloo. What a real device adds is in tests/test_gpu.py.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
import torch.distributed as dist
import toys
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.strategies import DDPStrategy
from repeats import slow_where
from simulated import Device

import bdl
from bdl.errors import BdlError
from bdl.models import MLP
from bdl.run.arrivals import ENDED, LOOK, Arrivals, Watch
from bdl.run.launch import launch
from bdl.run.processes import process_info

C, ROWS, STEPS, SAVED, LOST = 3, 20, 30, 12, 17  # chains, rows of a step, steps, the one that is saved, a kill


class Chain:
    """A stack of chains on a simulated device, of a group of them or of one; each step takes ROWS rows in all."""

    def __init__(self, rank: int, group: Any = None):
        self.rank, self.ranks, self.group = rank, 1 if group is None else dist.get_world_size(group), group
        self.stack = bdl.ChainStack(MLP((toys.D, 5, toys.K)), C, seed=1).to("cuda")
        weighting = bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=120.0, bins=10)
        self.sampler = bdl.Sampler(
            self.stack.named_parameters(), bdl.SGHMC(0.5), num_data=toys.N, lr=0.05, chains=C, weighting=weighting,
            group=group, seed=4,
        )  # fmt: skip
        self.x, self.y = (t.to("cuda") for t in toys.tensors())

    def go(self, steps: int) -> Chain:
        while self.sampler.steps < steps:
            each = ROWS // self.ranks
            start = ROWS * (self.sampler.steps % (toys.N // ROWS)) + each * self.rank
            self.sampler.step(functools.partial(self.losses, slice(start, start + each)))
        return self

    def losses(self, rows: slice) -> torch.Tensor:
        self.sampler.zero_grad()
        each = bdl.CategoricalNLL()(self.stack.broadcast(self.x[rows]), self.y[rows].expand(C, -1)).mean(-1)
        each.sum().backward()
        if self.group is not None:
            for p in self.stack.parameters():
                dist.all_reduce(p.grad, group=self.group)
                p.grad.div_(self.ranks)
        return each

    def left(self) -> dict[str, torch.Tensor]:
        return {"theta": self.sampler.chain.theta.cpu().clone(), "energy": self.sampler.energy.cpu()}

    def save(self, path: Path) -> None:
        torch.save({"net": self.stack.state_dict(), "sampler": self.sampler.state_dict()}, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        self.stack.load_state_dict(saved["net"])
        self.sampler.load_state_dict(saved["sampler"])


def launched(folder: Path, *arguments: Any, patience: float | None = None) -> str:
    """The line with which two processes of `arguments` end, or none. They fork from a process that has no threads of
    autograd yet, because those of other tests do not survive a fork."""
    line = folder / "line"
    begun = forked.process(launch_and_note, line, arguments, patience)
    begun.join()
    assert begun.exitcode == 0
    return line.read_text()


def launch_and_note(line: Path, arguments: tuple[Any, ...], patience: float | None) -> None:
    try:
        launch(2, *arguments, start="fork", patience=patience)
        line.write_text("")
    except BdlError as error:
        line.write_text(str(error))


def joined(folder: Path) -> tuple[int, Any]:
    torch.set_num_threads(1)
    rank = process_info().rank
    dist.init_process_group("gloo", rank=rank, world_size=2)
    return rank, dist.group.WORLD


def over_both(folder: Path, lost: bool) -> None:
    """One chain on two devices, which goes on from a file where there is one; the second process may be lost."""
    rank, group = joined(folder)
    with Device("cuda"):
        chain, file = Chain(rank, group), folder / "state"
        if file.exists():
            chain.load(file)
        else:
            chain.go(SAVED)
            if rank == 0:
                chain.save(file)
            dist.barrier()
        if lost:
            chain.go(LOST)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        torch.save(chain.go(STEPS).left(), folder / f"{rank}.pt")


def left_by(folder: Path) -> list[dict[str, torch.Tensor]]:
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_one_chain_on_two_devices_is_that_of_one_and_survives_a_kill(tmp_path):
    """Ranks are equal to the bit, also after one was killed; to one device they agree to rounding."""
    for name in ("whole", "lost"):
        (tmp_path / name).mkdir()
    assert launched(tmp_path, over_both, tmp_path / "whole", False) == ""
    line = launched(tmp_path, over_both, tmp_path / "lost", True)
    assert line == "process 1 of 2 was ended by SIGKILL; the same command resumes it"
    assert not list((tmp_path / "lost").glob("*.pt"))
    assert launched(tmp_path, over_both, tmp_path / "lost", False) == ""
    with Device("cuda"):
        alone = Chain(0).go(STEPS).left()
    whole, again = left_by(tmp_path / "whole"), left_by(tmp_path / "lost")
    for name, value in alone.items():
        assert all(torch.equal(whole[0][name], other[name]) for other in (whole[1], *again))
        torch.testing.assert_close(whole[0][name], value, rtol=1e-4, atol=1e-5)


def on_each(folder: Path, lost: bool) -> None:
    """A stack on each device, and their samples in one folder; the second process may be lost."""
    torch.set_num_threads(1)
    rank = process_info().rank
    sampled_on_a_device(folder, rank, LOST if lost and rank == 1 else None)


def sampled_on_a_device(folder: Path, stack: int, killed_after: int | None = None) -> dict[str, bytes]:
    """The sample files of a stack, which goes on from its checkpoint where there is one."""

    def kill(trainer: Any, *_: Any) -> None:
        if trainer.global_step == killed_after:
            os.kill(os.getpid(), signal.SIGKILL)

    with Device("cuda"):
        module = toys.module(bdl.ChainStack(MLP((toys.D, 5, toys.K)), 2, seed=0, stack=stack), stack=stack)
        checkpoint = folder / "checkpoints" / f"last-{stack}.ckpt"
        save = bdl.SaveLast(checkpoint.parent, every=SAVED, name=checkpoint.stem)
        keep = bdl.CollectSamples(bdl.schedules.EveryStep(0, 10), folder)
        trainer = toys.trainer(folder, STEPS, [keep, save, LambdaCallback(on_train_batch_end=kill)])
        ckpt = checkpoint if checkpoint.exists() else None
        trainer.fit(module, toys.batches(2, seed=stack), ckpt_path=ckpt, weights_only=True)
    return {p.name: p.read_bytes() for p in (folder / "samples").glob(f"0*-{stack}.safetensors")}


def test_a_stack_on_each_of_two_devices_draws_what_it_draws_alone_and_survives_a_kill(tmp_path):
    line = launched(tmp_path, on_each, tmp_path / "both", True)
    assert line == "process 1 of 2 was ended by SIGKILL; the same command resumes it"
    assert len(list((tmp_path / "both" / "samples").glob("0*-1.safetensors"))) == 1
    assert launched(tmp_path, on_each, tmp_path / "both", False) == ""
    for stack in range(2):
        alone = sampled_on_a_device(tmp_path / "alone", stack)
        assert len(alone) == 3
        assert all((tmp_path / "both" / "samples" / name).read_bytes() == alone[name] for name in alone)
    assert len(list((tmp_path / "both" / "samples").glob("0*"))) == 6


def hangs(folder: Path, hook: str) -> None:
    """The second process stands still in its fourth step."""
    torch.set_num_threads(1)
    process = process_info()

    def stand(trainer: Any, *_: Any) -> None:
        if process.rank == 1 and trainer.global_step == 3:
            time.sleep(600)

    still = LambdaCallback(**{hook: stand})
    callbacks = [still, Arrivals(process.rank)]
    batches = toys.batches(2, 5).shard(process.rank, 2)
    trainer = toys.trainer(folder, 20, callbacks, strategy=DDPStrategy(), devices=2)
    trainer.fit(toys.module(), batches)


@pytest.mark.parametrize(
    "hook", slow_where("on_before_backward".__eq__, ["on_train_batch_start", "on_before_backward"])
)
def test_a_process_that_hangs_is_named(tmp_path, hook):
    line = launched(tmp_path, hangs, tmp_path, hook, patience=1.0)
    assert line.startswith("process 1 of 2 made no progress for 1 s while step 4 was to be made; the same command")


@pytest.mark.parametrize(
    ("places", "hung"),
    [
        ([9, 8], [1]),  # the second one still computes its loss
        ([8, 9, 9], [0]),
        ([9, 9], [0, 1]),  # nobody is behind
        ([9, 0], [1]),  # it has not begun
        ([0, 0], []),  # nobody has begun: there is no step to wait for
        ([ENDED, 9], [1]),
        ([ENDED, ENDED], []),  # the first one writes its report
    ],
)
def test_who_has_hung(places, hung, monkeypatch):
    seconds = itertools.count(0, 1.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    watch = Watch(places, patience=20.0)
    looks = [watch.hung() for _ in range(30)]
    assert looks[:18] == [[]] * 18 and looks[-1] == hung
    if hung:
        named = f"process{'es' if len(hung) > 1 else ''} {', '.join(map(str, hung))} of {len(places)} made"
        assert named in watch.words(hung)


def test_who_moves_has_not_hung_nor_who_was_asleep_with_its_parent(monkeypatch):
    """A laptop that is closed, and Ctrl-Z."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    places = [2, 3]
    watch = Watch(places, patience=5.0)
    for _ in range(30):
        now[0] += 1
        places[0] += 1
        assert watch.hung() == []
    now[0] += 3600
    assert watch.hung() == [] and now[0] > LOOK
