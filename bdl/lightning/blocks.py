"""Blocks: many steps of the sampler inside one batch of Lightning's loop.

Lightning's hooks, counters and data fetching take about a millisecond a batch, longer than a step of a small network. A
block makes further steps inside `optimizer_step`, on the loader's next batches, until a callback has work to do. All
counters then stand where one step per batch would have left them, so checkpoints, resumed runs and `global_step` are
the same to the bit.
"""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy

from bdl.data.loader import TensorBatches
from bdl.samplers.sampler import Sampler

CALLBACK_HOOKS = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
MODULE_HOOKS = (
    *CALLBACK_HOOKS,
    "training_step",
    "backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "lr_scheduler_step",
    "configure_gradient_clipping",
)
TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class StepCallback(Callback):
    """A callback that knows which steps it must see, so that the steps in between need not return to Lightning."""

    def must_see(self, step: int) -> bool:
        """Whether `on_train_batch_end` has work to do after the sampler's step number `step`."""
        return True

    def before_step(self) -> None:
        """Called before every step, also inside a block."""


class Blocks:
    """Makes the further steps of a block. `active` is False where every step must return to Lightning.

    That is so under a callback, a module or a data module with hooks of its own, on several devices, under gradient
    accumulation or Lightning's clipping, and for loaders other than TensorBatches.

    Args:
        module: a BayesianModule; its `step_on(batch, measure)` makes one step of the sampler.
        plain: the class whose hooks a block knows; a subclass that overrides one of them makes one step per batch.
    """

    def __init__(self, trainer: L.Trainer, module: Any, plain: type, sampler: Sampler):
        self.trainer: Any = trainer
        self.module, self.sampler = module, sampler
        self.loader: Any = trainer.train_dataloader
        self.callbacks = [c for c in self.trainer.callbacks if isinstance(c, StepCallback)]
        self.active = (
            isinstance(self.loader, TensorBatches)
            and isinstance(trainer.strategy, SingleDeviceStrategy)
            and trainer.accumulate_grad_batches == 1
            and not trainer.gradient_clip_val
            and not self.trainer.lr_scheduler_configs
            and self.trainer.val_check_batch is not None
            and all(getattr(type(module), name) is getattr(plain, name) for name in MODULE_HOOKS)
            and not any(_overrides(c, CALLBACK_HOOKS) for c in self.trainer.callbacks if c not in self.callbacks)
            and not _overrides_transfer(module, L.LightningModule)
            and not _overrides_transfer(self.trainer.datamodule, L.LightningDataModule)
        )

    def run(self) -> None:
        """Make steps until a callback must see one, the epoch or the run ends, or the trainer is asked to stop.

        Lightning has just made one step and not counted it yet. The last step of a block measures the energy.
        """
        if not self.active or self._due(self.sampler.steps):
            return
        room, made, loader = self._room(), 0, self.loader
        ends = room == 0
        while not ends:
            for callback in self.callbacks:
                callback.before_step()
            batch = loader.at(loader.epoch, loader.index)
            loader.advance()
            made += 1
            ends = made == room or self._due(self.sampler.steps + 1)
            self.module.step_on(batch, measure=ends)
        self._count(made)

    def _due(self, step: int) -> bool:
        return self.trainer.should_stop or any(callback.must_see(step) for callback in self.callbacks)

    def _room(self) -> int:
        """How many further steps fit before Lightning itself has something to do."""
        trainer, loop = self.trainer, self.trainer.fit_loop.epoch_loop
        batches, steps = loop.batch_progress.current.ready, trainer.global_step + 1
        limits = [trainer.num_training_batches - batches]
        if trainer.max_steps != -1:
            limits.append(trainer.max_steps - steps)
        if trainer.enable_validation:
            limits.append(-batches % trainer.val_check_batch)
        return max(0, int(min(limits)))

    def _count(self, steps: int) -> None:
        """Move Lightning's counters on as if it had made these steps itself."""
        loop, fetcher = self.trainer.fit_loop.epoch_loop, self.trainer.fit_loop._data_fetcher
        optimizer = loop.automatic_optimization.optim_progress.optimizer
        fetcher.fetched += steps
        fetcher.done = fetcher.fetched >= fetcher.length
        loop.batch_progress.increment_by(steps, is_last_batch=fetcher.done)
        optimizer.step.increment_by(steps)
        optimizer.zero_grad.increment_by(steps)
        loop._batches_that_stepped += steps


def _overrides(callback: Callback, hooks: tuple[str, ...]) -> bool:
    return any(getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name) for name in hooks)


def _overrides_transfer(part: Any, base: type) -> bool:
    return part is not None and any(getattr(type(part), name) is not getattr(base, name) for name in TRANSFER_HOOKS)
