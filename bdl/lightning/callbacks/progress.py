"""Progress: one bar over all the sampler's steps, whatever the length of an epoch."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bdl.lightning.access import find_sampler


class StepProgress(ProgressBar):
    """A rich bar with the step, the time left, and the mean energy, refreshed every `every` steps."""

    def __init__(self, every: int = 100):
        super().__init__()
        self.every, self._bar, self._enabled = every, None, True

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._sampler = find_sampler(trainer)
        if not self._enabled:
            return
        self._bar = Progress(
            TextColumn("sampling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"), refresh_per_second=2,
        )  # fmt: skip
        total = int(trainer.estimated_stepping_batches)
        self._task = self._bar.add_task("steps", total=total, completed=self._sampler.steps, state="")
        self._bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._bar is not None and self._sampler.steps % self.every == 0:
            energy = self._sampler.energy
            state = "" if energy is None else f"U/N {float(energy.mean()) / self._sampler.num_data:.3f}"
            self._bar.update(self._task, completed=self._sampler.steps, state=state)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._sampler.steps)
            self._bar.stop()
            self._bar = None
