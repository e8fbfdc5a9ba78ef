"""Small data, networks and runs that several tests share."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import accelerated
import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.loggers import Logger
from simulated import Device
from torch import Tensor, nn

import bdl
from bdl.data import TensorBatches
from bdl.models import MLP

N, D, K, BATCH = 40, 3, 3, 10  # items, features, classes, items per batch: 4 batches an epoch


def tensors(n: int = N, seed: int = 1) -> tuple[Tensor, Tensor]:
    """x (n, D) and labels y (n,)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, D, generator=generator)
    return x, (x + torch.randn(n, D, generator=generator)).argmax(1)


def batches(chains: int | None = 2, batch: int = BATCH, **arguments: Any) -> TensorBatches:
    """A loader over the toy data."""
    return TensorBatches(*tensors(), batch, chains=chains, **arguments)


def module(net: nn.Module | None = None, chains: int | None = 2, loss: Any = None, **sampler: Any):
    """A BayesianModule over the toy data; SGHMC at T = 1 by default."""
    settings = dict(dynamics=bdl.SGHMC(0.5), num_data=N, lr=0.1, seed=0) | sampler
    net = MLP((D, 5, K)) if net is None else net
    if chains is not None and not isinstance(net, bdl.ChainStack):
        net = bdl.ChainStack(net, chains, seed=settings["seed"])
    return bdl.BayesianModule(net, functools.partial(bdl.Sampler, **settings), loss)


def trainer(run_dir: str | Path, steps: int, callbacks: Sequence[Callback] = (), **arguments: Any) -> L.Trainer:
    """A silent Trainer on the CPU, or on the simulated accelerator where there is one."""
    settings: dict[str, Any] = dict(
        accelerator="cpu", devices=1, max_steps=steps, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=any(isinstance(c, Checkpoint) for c in callbacks),
        default_root_dir=run_dir, callbacks=list(callbacks),
    )  # fmt: skip
    there = accelerated.settings() if Device.is_present() else {}
    return L.Trainer(**(settings | arguments | there))


def sample(
    run_dir: str | Path, steps: int = 8, keep: Any = None, net: nn.Module | None = None, chains: int | None = 2,
    callbacks: Sequence[Callback] = (), collect: dict[str, Any] | None = None, **sampler: Any,
) -> bdl.BayesianModule:  # fmt: skip
    made = module(net, chains, **sampler)
    collector = bdl.CollectSamples(keep or bdl.schedules.EveryStep(0, 2), run_dir, **(collect or {}))
    loader = batches(chains, seed=sampler.get("seed", 0))
    trainer(run_dir, steps, [*callbacks, collector]).fit(made, loader)
    return made


class Memory(Logger):
    """Remembers all logged rows (step, metrics)."""

    name = version = "memory"

    def __init__(self):
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *args, **kwargs):
        pass

    def steps(self, name: str) -> list[int | None]:
        return [step for step, metrics in self.rows if name in metrics]


def plain(net: nn.Module | None = None) -> nn.Module:
    """The network whose samples `sample` writes."""
    return MLP((D, 5, K)) if net is None else net


class Stops(bdl.callbacks.StepCallback):
    """Asks the run to stop once somebody asks about a step after `at`."""

    def __init__(self, at: int):
        self.at = at

    def on_train_start(self, trainer, pl_module):
        self.trainer = trainer

    def must_see(self, step):
        self.trainer.should_stop = self.trainer.should_stop or step > self.at
        return False


class EveryBatch(Callback):
    """A callback of somebody else: it must see every batch, and so every step returns to Lightning's loop."""

    def __init__(self):
        self.steps: list[int] = []

    def on_train_batch_end(self, trainer, *_):
        self.steps.append(trainer.global_step)
