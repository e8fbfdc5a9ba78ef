"""Steps inside a block leave what one step per batch leaves, byte for byte; and blocks are made where they may be."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
import toys
from lightning.pytorch.callbacks import Callback
from repeats import slow_where
from torch import nn

import bdl
from bdl.data import TensorSlices
from bdl.models import MLP
from bdl.posterior.store import SampleStore
from bdl.schedules import Cosine, EveryStep

STEPS = 90  # an epoch of the toy data, 40 items in batches of one, has 40


class Seen(bdl.callbacks.StepCallback):
    """Notes the steps after which Lightning's loop had the word, and those before which `before_step` was called."""

    def __init__(self, at: int = -1):
        self.at, self.after, self.before = at, [], []

    def must_see(self, step):
        return False

    def before_step(self):
        self.before.append(self.sampler.steps)
        if self.sampler.steps == self.at:
            self.trainer.should_stop = True  # as a signal would, in the middle of a block

    def on_train_start(self, trainer, pl_module):
        self.trainer, self.sampler = trainer, trainer.optimizers[0]

    def on_train_batch_start(self, *_):
        self.before_step()

    def on_train_batch_end(self, trainer, pl_module, *_):
        assert trainer.global_step == pl_module.sampler.steps
        self.after.append(trainer.global_step)
        if trainer.accumulate_grad_batches == 1:
            assert pl_module.sampler.energy is not None


@dataclass(frozen=True)
class Case:
    """The settings in which the runs differ."""

    net: Any = (toys.D, 5, toys.K)
    chains: int = 3
    batch: int = 1
    sampler: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, toys.D)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3)
    )


CASES = {
    "flat": Case(),
    "weighted": Case(sampler={"weighting": bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=120.0, bins=10)}),
    "isokinetic": Case(sampler={"dynamics": bdl.SMILE(adapt_steps=40), "lr": 0.01}),
    "controlled": Case(sampler={"dynamics": bdl.CCHMC(0.5, rank=3, adapt_steps=40)}, batch=10),
    "variational": Case(sampler={"dynamics": bdl.MeanField(), "lr": 0.01}),
    "exchange": Case(sampler={"exchange": bdl.Exchange((1.0, 1.5, 2.0), every=3)}),
    "per example": Case(sampler={"dynamics": bdl.SGFS()}, batch=10),
    "accept/reject": Case(sampler={"dynamics": bdl.HMC(3, adapt_steps=40)}, batch=toys.N),
    "dropout": Case(net=MLP((toys.D, 5, toys.K), dropout=0.3)),
    "autograd": Case(net=conv(), batch=4),
    "bfloat16": Case(trainer={"precision": "bf16-mixed"}),
    "half an epoch": Case(trainer={"limit_train_batches": 0.5}),
    "whole epochs": Case(trainer={"max_steps": -1, "max_epochs": 3}),
}


class Run:
    """One fit: what it left in the folder, and the callback that watched it and has to be called before every step."""

    def __init__(
        self, folder: Path, case: Case, *others: Callback, steps: int = STEPS, resume: Path | None = None, watched=True
    ):
        torch.manual_seed(7 if resume is None else 8)
        net = MLP(case.net) if isinstance(case.net, tuple) else case.net
        self.module = toys.module(net, case.chains, **case.sampler)
        self.seen = Seen()
        keep = EveryStep(50, 20)
        self.monitor = bdl.Monitor(25)
        callbacks = [
            bdl.Schedule(lr=Cosine(case.sampler.get("lr", 0.1), STEPS, final=0.01)),
            bdl.CollectSamples(keep, folder),
            bdl.ModelAverage(keep, TensorSlices(*toys.tensors(seed=2))),
            self.monitor,
            bdl.SaveLast(folder / "checkpoints", every=33),
            *([self.seen] if watched else []),
            *others,
        ]
        self.folder, self.checkpoint = folder, folder / "checkpoints" / "last.ckpt"
        self.trainer = toys.trainer(folder, steps, callbacks, **case.trainer)
        loader = toys.batches(case.chains, case.batch)
        self.trainer.fit(self.module, loader, ckpt_path=resume, weights_only=True)

    def files(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in sorted((self.folder / "samples").iterdir())}

    def state(self) -> dict[str, Any]:
        """Everything in the checkpoint, by path."""
        return dict(leaves(torch.load(self.checkpoint, weights_only=True)))


def leaves(value: Any, path: str = "") -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from leaves(inner, f"{path}/{i}")
    elif isinstance(value, torch.Tensor):
        yield path, (value.dtype, value.nan_to_num(-12345.0).tolist() if value.is_floating_point() else value.tolist())
    else:
        yield path, value


def assert_equal(blocks: Run, stepwise: Run) -> None:
    assert blocks.files() == stepwise.files()
    one, other = blocks.state(), stepwise.state()
    assert {k for k in one.keys() | other.keys() if one.get(k) != other.get(k)} == set()
    for column, values in stepwise.monitor.trace().items():
        assert torch.equal(values.nan_to_num(-1), blocks.monitor.trace()[column].nan_to_num(-1)), column


REPEATS = ("isokinetic", "variational", "bfloat16", "half an epoch")  # the same way through a block as another case


@pytest.mark.filterwarnings("ignore::bdl.BdlWarning")
@pytest.mark.parametrize("name", slow_where(lambda name: name in REPEATS, CASES))
def test_blocks_leave_the_same_files_and_the_same_checkpoint(tmp_path, name):
    every = toys.EveryBatch()
    blocks, stepwise = Run(tmp_path / "a", CASES[name]), Run(tmp_path / "b", CASES[name], every)
    steps = stepwise.trainer.global_step
    assert every.steps == list(range(1, steps + 1)) and stepwise.seen.before == list(range(steps))
    assert blocks.trainer.global_step == steps and blocks.seen.before == list(range(steps))
    assert_equal(blocks, stepwise) if name != "accept/reject" else assert_equal_but_for_zero_grad(blocks, stepwise)
    assert len(blocks.files()) >= 3
    if CASES[name].batch == 1:
        assert len(blocks.seen.after) < steps / 4  # it did save returns to Lightning


def assert_equal_but_for_zero_grad(blocks: Run, stepwise: Run) -> None:
    """A kernel calls the closure several times a step. Lightning counts these calls, and nothing reads the count."""
    one, other = blocks.state(), stepwise.state()
    differ = {k for k in one.keys() | other.keys() if one.get(k) != other.get(k)}
    assert blocks.files() == stepwise.files() and all("/zero_grad/" in k for k in differ)


def test_a_block_ends_where_a_callback_must_see_the_step(device, tmp_path):
    run = Run(tmp_path, CASES["flat"])
    must = {33, 66, STEPS}  # of the checkpoints
    must |= set() if device == "cpu" else {70, 71, 90}  # samples are kept between the recorded steps of a device
    assert must <= set(run.seen.after)
    firsts = {step + 1 for step in [0, *run.seen.after]}  # Lightning makes the first step of a block itself
    assert set(run.seen.after) <= must | firsts
    # the others read inside the blocks
    assert run.monitor.trace()["step"].tolist() == [25, 50, 75]
    assert [record.step for record in SampleStore(run.folder).records()] == [70, 90]


class Epochs(bdl.callbacks.StepCallback):
    """Has nothing to do in a step, and something at the end of an epoch."""

    def __init__(self):
        self.ends: list[tuple[int, int]] = []

    def must_see(self, step):
        return False

    def on_train_epoch_end(self, trainer, *_):
        self.ends.append((trainer.current_epoch, trainer.global_step))


@pytest.mark.parametrize("batch", [1, 10])
def test_a_callback_sees_the_end_of_every_epoch(device, tmp_path, batch):
    epochs, length = Epochs(), toys.N // batch
    trainer = toys.trainer(tmp_path, 3 * length + 1, [epochs])
    trainer.fit(toys.module(), toys.batches(batch=batch))
    assert epochs.ends[:3] == [(e, (e + 1) * length) for e in range(3)]


@pytest.mark.parametrize("batch", [10, toys.N])  # epochs of 4 steps, and of one
def test_blocks_cross_epochs_where_nobody_looks(device, tmp_path, batch):
    seen = Seen()
    toys.trainer(tmp_path, 100, [seen]).fit(toys.module(), toys.batches(batch=batch))
    assert seen.after == [100] and seen.before == list(range(100))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    return Run(tmp_path_factory.mktemp("whole"), CASES["weighted"])


@pytest.mark.parametrize("at", slow_where(lambda at: at in (7, 45), [7, 39, 45, 71]))
def test_run_asked_to_stop_inside_block_stops_there_and_resumes(tmp_path, whole, at):
    """In an epoch, at the end of one, in the next one, and one step after a sample, which then awaits its energy."""
    stop = Seen(at)
    first = Run(tmp_path / "parts", CASES["weighted"], stop)
    assert first.trainer.global_step == at + 1 < STEPS
    second = Run(tmp_path / "parts", CASES["weighted"], resume=first.checkpoint)
    assert second.files() == whole.files()
    one, other = second.state(), whole.state()
    differ = {k for k in one.keys() | other.keys() if one.get(k) != other.get(k)}
    assert all(k.startswith("/loops/fit_loop/epoch_progress") for k in differ)  # Lightning's count of resumed epochs


def test_a_time_limit_ends_a_block(tmp_path, monkeypatch):
    limit = bdl.callbacks.TimeLimit("00:01:00:00")
    limit.sampler = SimpleNamespace(steps=0)
    monkeypatch.setattr(limit, "time_elapsed", lambda *_: 0 if limit.sampler.steps < 17 else 3601)
    monkeypatch.setattr(limit, "setup", lambda *_, **__: None)
    monkeypatch.setattr(limit, "on_train_start", lambda t, m: setattr(limit, "sampler", t.optimizers[0]))
    run = Run(tmp_path, CASES["flat"], limit)
    assert 17 <= run.trainer.global_step <= 18


class Hooked(bdl.BayesianModule):
    calls = 0

    def on_train_batch_end(self, *_):
        type(self).calls += 1


class OwnStep(bdl.BayesianModule):
    calls = 0

    def training_step(self, batch, batch_idx):
        type(self).calls += 1
        return super().training_step(batch, batch_idx)


class OwnLoss(bdl.BayesianModule):
    calls = 0

    def batch_loss(self, outputs, y):
        type(self).calls += 1
        return 2 * super().batch_loss(outputs, y)


@pytest.mark.parametrize("kind", [Hooked, OwnStep, OwnLoss])
def test_a_module_with_hooks_of_its_own_sees_every_step(tmp_path, kind):
    kind.calls, module = 0, toys.module()
    module.__class__ = kind
    toys.trainer(tmp_path, 20).fit(module, toys.batches())
    assert kind.calls == 20 + 5 * (kind is OwnLoss)  # the slope of the first batch's loss is measured


class Transfers(L.LightningDataModule):
    calls = 0

    def train_dataloader(self):
        return toys.batches()

    def on_after_batch_transfer(self, batch, dataloader_idx):
        type(self).calls += 1
        return batch


def test_a_data_module_that_changes_batches_sees_every_batch(tmp_path):
    toys.trainer(tmp_path, 20).fit(toys.module(), datamodule=Transfers())
    assert Transfers.calls == 20


@pytest.mark.parametrize("settings", [{"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}])
@pytest.mark.filterwarnings("ignore::bdl.BdlWarning")
def test_steps_that_lightning_takes_part_in_are_made_one_by_one(tmp_path, settings):
    seen = Seen()
    if "gradient_clip_val" in settings:
        settings = settings | {"gradient_clip_algorithm": "value"}
    seen.before_step = lambda: None
    toys.trainer(tmp_path, 20, [seen], **settings).fit(toys.module(), toys.batches())
    assert sorted(set(seen.after)) in ([*range(1, 21)], [*range(0, 21)])


def test_accumulation_that_begins_later_ends_the_blocks(tmp_path):
    """Two epochs of 4 steps, then 2 batches a step: 10 steps are 12 batches."""
    seen, later = Seen(), L.pytorch.callbacks.GradientAccumulationScheduler({2: 2})
    trainer = toys.trainer(tmp_path, 10, [seen, later])
    trainer.fit(toys.module(), toys.batches())
    assert (trainer.global_step, trainer.fit_loop.epoch_loop.batch_progress.total.completed) == (10, 12)


class Validates(bdl.BayesianModule):
    def validation_step(self, batch, batch_idx):
        type(self).at.append(self.trainer.global_step)


@pytest.mark.parametrize(("interval", "expected"), [(1.0, [40, 80, 120]), (0.25, [*range(10, 130, 10)]), (7, None)])
def test_validation_runs_at_the_same_steps(tmp_path, interval, expected):
    seen = []
    for others in ((), (toys.EveryBatch(),)):
        Validates.at, module = [], toys.module()
        module.__class__ = Validates
        trainer = toys.trainer(tmp_path, 125, others, val_check_interval=interval, num_sanity_val_steps=0)
        trainer.fit(module, toys.batches(batch=1), TensorSlices(*toys.tensors(seed=2)))
        seen.append(Validates.at)
    assert seen[0] == seen[1] and (expected is None or seen[0] == expected)
