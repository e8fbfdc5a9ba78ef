"""A run that can be stopped and resumed. test_resume.py uses it in its own process and in another one.

python again.py <name> <folder> <steps>
"""

import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import toys
from torch import nn
from toys import MLP

import bdl
from bdl.data import TensorSlices
from bdl.schedules import Cycle, CyclicalCosine, EveryStep, PerCycle, WhileSampling

WHOLE = 30  # steps of an uninterrupted run; an epoch has 4 steps, and every third state is kept
CYCLE = Cycle(40, 4, 0.5)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.3), nn.BatchNorm1d(5), nn.Linear(5, 3))


class Scheduled(bdl.BayesianModule):
    def configure_optimizers(self) -> Any:
        sampler = super().configure_optimizers()
        return [sampler], [{"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(sampler, 50), "interval": "step"}]


@dataclass(frozen=True)
class Kind:
    """The settings in which the runs differ. To stop and resume must leave no trace in any of them."""

    dropout: float = 0.0
    normed: bool = False
    scheduler: bool = False
    schedule: bdl.Schedule | None = None
    keep: Any = EveryStep(0, 3)
    sampler: dict[str, Any] = field(default_factory=dict)
    collect: dict[str, Any] = field(default_factory=dict)
    batch: int = toys.BATCH


KINDS = {
    "plain": Kind(),
    "schedule": Kind(
        schedule=bdl.Schedule(CyclicalCosine(0.2, CYCLE), WhileSampling(1.0, CYCLE)), keep=PerCycle(CYCLE, 2)
    ),
    "scheduler": Kind(scheduler=True),
    "adaptive": Kind(
        dropout=0.3, sampler={"weighting": bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=120.0, bins=10)}
    ),
    "refresh": Kind(normed=True, collect={"batchnorm": "refresh"}),
}  # fmt: skip
SAMPLERS = {
    "isokinetic": Kind(sampler={"dynamics": bdl.SMILE(adapt_steps=6), "lr": 0.01}, keep=EveryStep(6, 3)),
    "exchange": Kind(sampler={"exchange": bdl.Exchange((1.0, 1.5), every=3)}),
    "hmc": Kind(sampler={"dynamics": bdl.HMC(3, adapt_steps=6)}, keep=EveryStep(6, 3), batch=toys.N),
}


@dataclass
class Run:
    """One call of `fit`: its callbacks and its Trainer."""

    name: str
    folder: Path

    def go(self, steps: int, checkpoint: Path | None = None) -> None:
        kind = (KINDS | SAMPLERS)[self.name]
        module = toys.module(normed() if kind.normed else MLP((3, 5, 3), dropout=kind.dropout), **kind.sampler)
        if kind.scheduler:
            module.__class__ = Scheduled
        self.monitor = bdl.Monitor(2)
        self.average = bdl.ModelAverage(kind.keep, held_out())
        self.collect = bdl.CollectSamples(kind.keep, self.folder, **kind.collect)
        callbacks = [*([kind.schedule] if kind.schedule else []), self.collect, self.average, self.monitor]
        self.save = bdl.SaveLast(self.folder / "checkpoints", every=5)
        torch.manual_seed(
            7 if checkpoint is None else 8
        )  # dropout reads this stream; a resumed run must not depend on it
        self.trainer = toys.trainer(self.folder, steps, [*callbacks, self.save])
        self.trainer.fit(module, toys.batches(batch=kind.batch), ckpt_path=checkpoint, weights_only=True)
        self.sampler = module.sampler

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoints" / "last.ckpt"


def held_out() -> Any:
    return TensorSlices(*toys.tensors(seed=2))


if __name__ == "__main__":
    name, folder, steps = sys.argv[1:4]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    run = Run(name, Path(folder))
    run.go(int(steps), run.checkpoint if run.checkpoint.exists() else None)
