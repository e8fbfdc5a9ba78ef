"""Blocks: many steps of the sampler inside one batch of Lightning's loop.

Lightning's hooks, counters and data fetching take about a millisecond a batch, longer than a step of a small network. A
block makes further steps inside `optimizer_step`, on the loader's next batches, until a callback has work to do. All
counters then stand where one step per batch would have left them, so checkpoints, resumed runs and `global_step` are
the same to the bit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy

from bdl.data.loader import TensorBatches
from bdl.engine.gradient import Gradient
from bdl.errors import ConfigError
from bdl.lightning.counters import counters_of
from bdl.lightning.host import find_sampler
from bdl.samplers.moves import FEWEST
from bdl.samplers.sampler import Sampler
from bdl.samplers.settings import StepSettings

LONGEST = 1000  # steps of a block, so that a run without an end has a bound too
TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
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
    *TRANSFER_HOOKS,
    "training_step",
    "backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "lr_scheduler_step",
    "configure_gradient_clipping",
)
EPOCH_HOOKS = ("on_train_epoch_start", "on_train_epoch_end")


class StepCallback(Callback):
    """A callback that knows which steps it must see, so that the steps in between need not return to Lightning.

    Attributes:
        ends_block: False where `on_train_batch_end` reads the sampler, and nothing of Lightning's loop such as
            `trainer.global_step`. It is then called inside a block too, and the block goes on.
    """

    ends_block = True

    def must_see(self, step: int) -> bool:
        """Whether `on_train_batch_end` has work to do after the sampler's step number `step`.

        It is asked some steps ahead, up to the next step that somebody must see.
        """
        return True

    def reads_energy(self, step: int) -> bool:
        """Whether `on_train_batch_end` reads the energy of the sampler's step number `step`.

        The energy is averaged over the ranks of one chain, so all of them have to say the same: by the step alone,
        never by a clock.
        """
        return self.must_see(step)

    def before_step(self) -> None:
        """Called before every step, also inside a block."""

    def planned(self, step: int) -> Mapping[str, Any]:
        """What `before_step` sets in `param_groups[0]` after so many steps, by name, where it does nothing else.

        Where a class overrides it, several steps may be made without a call of `before_step`.
        """
        return {}


class SamplerCallback(StepCallback):
    """A callback that reads the Sampler, `sampler`. Raises ConfigError at the start of training if there is none."""

    sampler: Sampler

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.sampler = find_sampler(trainer)
        self._seen = self.sampler.steps

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = self.sampler.steps
        if step != self._seen:  # a micro-batch makes none: its gradient accumulates
            self._seen = step
            if self.must_see(step):
                self.after_step(trainer, pl_module, step)

    def after_step(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int) -> None:
        """Called after the steps that it must see, with the number of steps that the sampler has made."""


class StepBlocks:
    """Makes the further steps of a block. `active` is False where every step must return to Lightning.

    That is so under a Lightning that counts otherwise than expected, under a callback, a module or a data module with
    hooks of its own, on several devices, under gradient accumulation or Lightning's clipping, and for loaders other
    than TensorBatches.

    Args:
        module: a BayesianModule; its `step_on(batch, measure)` makes one step of the sampler, `converted` reads a
            batch, and `gradient_for` gives the form of its gradient.
        plain: the class whose hooks a block knows; a subclass that overrides one of them makes one step per batch.
    """

    def __init__(self, trainer: L.Trainer, module: Any, plain: type, sampler: Sampler):
        self.trainer: Any = trainer
        self.module, self.sampler = module, sampler
        self.loader: Any = trainer.train_dataloader
        self.callbacks = [c for c in self.trainer.callbacks if isinstance(c, StepCallback)]
        self.readers = [c for c in self.callbacks if not c.ends_block]
        self._ending = [c.must_see for c in self.callbacks if c.ends_block]
        self._reading = [c.must_see for c in self.readers]
        self.before_step = [c for c in self.callbacks if type(c).before_step is not StepCallback.before_step]
        self.unseen = self._is_unseen(plain)
        # The step from which compiled code or graphs may make steps, where every `before_step` is planned
        planned = all(type(c).planned is not StepCallback.planned for c in self.before_step)
        self._walks_from: float = 0 if planned else math.inf
        self.counters = counters_of(trainer) if self._may_be_made() else None
        self.active = self.counters is not None
        self.crosses_epochs = self.active and self._may_cross_epochs(plain)

    def _is_unseen(self, plain: type) -> bool:
        """Whether no step is seen but by the callbacks that say which they must see."""
        others = [c for c in self.trainer.callbacks if c not in self.callbacks]
        return (
            self.trainer.val_check_batch is not None
            and not _overrides(self.module, plain, MODULE_HOOKS)
            and not any(_overrides(c, Callback, CALLBACK_HOOKS) for c in others)
        )

    def _may_be_made(self) -> bool:
        """Whether steps outside of Lightning are the same."""
        return (
            self.unseen
            and isinstance(self.loader, TensorBatches)
            and isinstance(self.trainer.strategy, SingleDeviceStrategy)
            and self.sampler.is_plain
            and not self.trainer.gradient_clip_val
            and not self.trainer.lr_scheduler_configs
            and not _overrides(self.trainer.datamodule, L.LightningDataModule, TRANSFER_HOOKS)
        )

    def _may_cross_epochs(self, plain: type) -> bool:
        """Whether nobody has to see the end of an epoch."""
        return (
            self.trainer.max_epochs in (None, -1)
            and self.trainer.num_training_batches == len(self.loader)
            and self.trainer.reload_dataloaders_every_n_epochs == 0
            and not self.trainer.enable_validation
            and not any(_overrides(c, Callback, EPOCH_HOOKS) for c in self.trainer.callbacks)
            and not _overrides(self.module, plain, EPOCH_HOOKS)
        )

    def run(self) -> None:
        """Make steps until a callback that ends blocks must see a step, or the run ends or is asked to stop.

        Lightning has just made one step and not counted it yet. The last step of a block measures the energy. A block
        ends with its epoch, too, where somebody has a hook there; otherwise it may cross several.
        """
        accumulates = self.trainer.accumulate_grad_batches != 1  # a callback may change it between epochs
        if self.counters is None or accumulates or self._due(self.sampler.steps):
            return
        self._let_read()
        room, made, loader = self._room(self.counters.batches), 0, self.loader
        ends = room == 0
        while not ends:
            made += self._walk(room - made - 1)
            for callback in self.before_step:
                callback.before_step()
            batch = loader.at(loader.epoch, loader.index)
            loader.advance()
            made += 1
            ends = made == room or self._due(self.sampler.steps + 1)
            self.module.step_on(batch, measure=ends or self._is_read(self.sampler.steps + 1))
            if not ends:
                self._let_read()
        if made:
            self.counters.move_on(made)

    def reads_energy(self, batches: int) -> bool:
        """Whether somebody may read the energy of the step under way, on the batch of this number in its epoch.

        All ranks of a chain say the same.
        """
        trainer, step = self.trainer, self.sampler.steps + 1
        ends = batches >= trainer.num_training_batches or trainer.global_step + 1 == trainer.max_steps
        validates = trainer.enable_validation and batches % trainer.val_check_batch == 0
        return not self.unseen or ends or validates or any(c.reads_energy(step) for c in self.callbacks)

    def _walk(self, most: int) -> int:
        """Make steps in compiled code, at most so many and up to a step that a callback must see; returns how many."""
        made, loader = 0, self.loader
        while self.sampler.steps >= self._walks_from and (settings := self._plan(most - made)):
            steps, gradient = 0, self._walker(settings)
            whole = loader.is_whole
            # asked last: from then on the loader no longer prepares single batches
            rows = None if whole or gradient is None else loader.rows_ahead(len(settings))
            if gradient is not None and (whole or rows is not None):
                settings = settings if rows is None else settings[: len(rows)]
                steps = self.sampler.walk(gradient.batches(loader.x, loader.y, rows, loader.chains), settings)
            made += steps
            loader.advance(steps)
            if steps == 0:  # asked again later, because lr or T may be in the way for a while
                self._walks_from = self.sampler.steps + LONGEST
            if steps < len(settings):  # the next step is for Python
                break
        return made

    def _walker(self, settings: list[StepSettings]) -> Gradient | None:
        """The gradient that makes such steps in C; None without it, or where the module changes its data."""
        x, y = self.loader.x, self.loader.y
        inputs, targets = self.module.converted((x, y))
        gradient = self.module.gradient_for(inputs)
        same = inputs is x and targets is y
        return gradient if gradient.walks and same and self.sampler.moves.can_walk(settings) else None

    def _plan(self, most: int) -> list[StepSettings]:
        """The settings of the next steps that no callback must see; [] for fewer steps than a walk is worth."""
        first, now = self.sampler.steps, None
        plan: list[StepSettings] = []
        values = {name: self.sampler.param_groups[0][name] for name in ("lr", "temperature", "zeta")}
        before: list[Any] = []
        for step in range(first, first + min(most, self.sampler.moves.longest)):
            if self._due(step + 1) or self._is_read(step + 1) or self.sampler.moves.is_single(step):
                break
            for callback in self.before_step:
                values.update(callback.planned(step))
            if now is None or not all(map(operator.is_, values.values(), before)):
                try:
                    now = StepSettings.of(values, step)
                except ConfigError:  # the step itself refuses the number
                    break
                before = list(values.values())
            plan.append(now)
        return plan if len(plan) >= FEWEST else []

    def _due(self, step: int) -> bool:
        if self.trainer.should_stop:
            return True
        for must_see in self._ending:
            if must_see(step):
                return True
        return False

    def _is_read(self, step: int) -> bool:
        """Whether a callback that does not end blocks must see this step."""
        for must_see in self._reading:
            if must_see(step):
                return True
        return False

    def _let_read(self) -> None:
        """Call the callbacks that must see the present step and do not end a block."""
        for callback in self.readers:
            if callback.must_see(self.sampler.steps):
                callback.on_train_batch_end(self.trainer, self.module, None, None, -1)

    def _room(self, batches: int) -> int:
        """How many further steps fit before Lightning itself has something to do. batches: of the epoch, so far."""
        trainer, steps = self.trainer, self.trainer.global_step + 1
        limits = [math.inf if self.crosses_epochs else trainer.num_training_batches - batches]
        if trainer.max_steps != -1:
            limits.append(trainer.max_steps - steps)
        if trainer.enable_validation:
            limits.append(-batches % trainer.val_check_batch)
        return max(0, int(min(*limits, LONGEST)))


def _overrides(part: Any, base: type, hooks: tuple[str, ...]) -> bool:
    """Whether a part has hooks other than its base, in its class or set on the instance. None has no hooks."""
    return part is not None and any(getattr(getattr(part, h), "__func__", None) is not getattr(base, h) for h in hooks)
