"""Tests of `bdl.lightning.callbacks.promises`.

A run heats and rests as tuning promised, or a line says that it does not; a resumed run decides the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from lightning.pytorch.callbacks import Callback
from repeats import slow_where

import bdl
from bdl.schedules import EveryStep

STEPS, BURN_IN = 700, 100
KEEP = EveryStep(BURN_IN, 60)  # 10 samples


class Halt(bdl.callbacks.StepCallback):
    """Asks the run to stop after one step, as a signal would."""

    def __init__(self, at: int):
        self.at = at

    def must_see(self, step):
        return step == self.at

    def on_train_batch_end(self, trainer, pl_module, *_):
        trainer.should_stop = trainer.should_stop or pl_module.sampler.steps == self.at


class EveryBatch(Callback):
    """Makes every step return to Lightning's loop."""

    def on_train_batch_end(self, *_):
        pass


class Run:
    """A fit of 2 chains. away: how far from the origin all parameters begin. lines: what the promises say."""

    def __init__(
        self, folder: Path, *others: Callback, lr: float = 0.02, away: float = 0.0, resumed: bool = False,
        lowers: bool = True, extends: bool = True,
    ):  # fmt: skip
        module = toys.module(lr=lr)
        with torch.no_grad():
            for p in module.net.parameters():
                p.add_(away)
        self.lines: list[str] = []
        collect, save = bdl.CollectSamples(KEEP, folder), bdl.SaveLast(folder / "checkpoints", every=STEPS)
        self.promises = bdl.callbacks.Promises([collect], lowers, extends, self.lines.append)
        trainer = toys.trainer(folder, STEPS, [self.promises, collect, save, *others])
        trainer.fit(module, toys.batches(batch=4), ckpt_path=save.path if resumed else None, weights_only=True)
        self.sampler, self.folder, self.keep = module.sampler, folder, collect.keep

    def files(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in sorted((self.folder / "samples").iterdir())}

    def records(self) -> list[Any]:
        return bdl.SampleStore(self.folder).records()


HOT: dict[str, Any] = {"lr": 0.3}
FAR: dict[str, Any] = {"lr": 0.3, "away": 10.0}


def test_lr_falls_where_batches_heat_the_chains(tmp_path):
    """At lr 0.3 the noise of a tenth of the items heats them to about 1.3 T. Samples are kept at one lr."""
    run = Run(tmp_path, **HOT)
    assert run.lines[0].startswith("tune: lr ") and "from step 50: noise adds" in run.lines[0]
    assert len({float(record.lr) for record in run.records()}) == 1 and len(run.records()) == 10
    assert run.sampler.param_groups[0]["lr"] < 0.15
    assert float(run.sampler.t_eff.mean()) < 1.15


def test_the_burn_in_grows_while_the_energy_falls(tmp_path):
    run = Run(tmp_path, lr=0.05, away=10.0)
    assert run.lines[0].startswith("tune: burn in 200 instead of 100: the energy still moves by")
    assert run.keep == run.promises.rule and run.keep.burn_in >= 200
    assert len(run.records()) == 10 and min(record.step for record in run.records()) > run.keep.burn_in
    assert max(record.step for record in run.records()) == STEPS


def test_chains_that_are_cool_and_at_rest_are_left_alone(tmp_path):
    run = Run(tmp_path, lr=0.05)
    assert (run.lines, run.keep, run.sampler.param_groups[0]["lr"]) == ([], KEEP, 0.05)


def test_what_the_user_gave_stays_and_a_line_says_what_is_not_kept(tmp_path):
    run = Run(tmp_path, lr=0.02, away=20.0, extends=False)
    assert run.keep == KEEP and len(run.lines) == 1
    assert run.lines[0].startswith(
        "tune: a promise is not kept: samples are not at rest. At step 100 the energy still moves by"
    )
    assert run.lines[0].endswith("raise collect.keep.burn_in, which was given")
    hot = Run(tmp_path / "hot", **HOT, lowers=False)
    assert (hot.lines, hot.sampler.param_groups[0]["lr"]) == ([], HOT["lr"])


def test_a_run_without_rest_says_so_and_keeps_its_last_third(tmp_path):
    run = Run(tmp_path, lr=0.0005, away=20.0)
    grown = [line.removeprefix("tune: ").partition(" instead")[0] for line in run.lines[:-1]]
    assert grown == ["burn in 200", "burn in 400", "burn in 490"]
    assert run.lines[-1].startswith("tune: a promise is not kept: samples are not at rest. At step 490")
    assert len(run.records()) == 10


def test_a_few_energies_of_all_the_data_are_read_where_they_cost_little(tmp_path):
    """A tenth of the items in a batch: an evaluation costs 3.3 steps, so 2 % of 700 steps pay for 4, too few."""
    run = Run(tmp_path)
    assert not run.promises._of_all_data and run.sampler.full_loss is not None
    assert len(run.promises._rows) == BURN_IN


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    """A run that nothing stops."""
    return Run(tmp_path_factory.mktemp("whole"), **FAR)


@pytest.mark.parametrize("at", slow_where(lambda at: at in (30, 150), [30, 75, 150, 450]))
def test_a_resumed_run_decides_the_same(tmp_path, whole, at):
    """Before the first decision, after it, after the second, and while samples are kept."""
    assert len(whole.lines) >= 2
    Run(tmp_path / "parts", Halt(at), **FAR)
    parts = Run(tmp_path / "parts", **FAR, resumed=True)
    assert parts.files() == whole.files()
    assert parts.sampler.param_groups[0]["lr"] == whole.sampler.param_groups[0]["lr"] < FAR["lr"]


def test_blocks_of_steps_decide_as_single_steps_do(tmp_path, whole):
    single = Run(tmp_path, EveryBatch(), **FAR)
    assert whole.files() == single.files() and whole.lines == single.lines
