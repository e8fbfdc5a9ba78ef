"""StepProgress: one progress bar over all the sampler's steps, whatever the length of an epoch; and a file of them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from torch import Tensor

from bdl.disk.files import write_atomically
from bdl.errors import StoreError
from bdl.lightning.blocks import SamplerCallback

LINES = 20  # lines that a whole run prints where there is no terminal
NOTED = 5.0  # seconds between two writings of the file


class StepProgress(SamplerCallback, ProgressBar):
    """Shows the step, the remaining time and the energy: a bar on a terminal, 20 lines per run in a log file.

    "energy per item" is U/N in nats, a mean over the chains: the loss of a batch and the prior's part.

    Args:
        seconds: time between two refreshes of the bar. Each refresh makes the device wait.
        folder: gets `progress-<stack>.json`, which `bdl status` reads: the step, the steps of the run, and how many a
            second this process makes. None writes no file.

    Raises ConfigError if the module returned no Sampler.
    """

    ends_block = False

    def __init__(self, seconds: float = 0.5, folder: str | Path | None = None):
        super().__init__()
        self.seconds, self._enabled, self.folder = seconds, True, folder
        self._bar: Any = None
        self._file: Path | None = None
        self._terminal = False
        self._energy: Tensor | None = None  # the last one that was measured, () or (C,)

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._total, self._first = int(trainer.estimated_stepping_batches), self.sampler.steps
        self._began = self._shown = time.perf_counter()
        if self.folder is not None and trainer.is_global_zero:
            self._file = Path(self.folder) / f"progress-{self.sampler.stack}.json"
            self._note(self._first, make_folder=True)
        if not self._enabled:
            return
        self._bar = _bar()
        self._task = self._bar.add_task("steps", total=self._total, completed=self._first, state="")
        self._lines = LINES * self._first // self._total  # lines that the run printed before it was resumed
        self._terminal = self._bar.console.is_terminal
        if self._terminal:
            self._bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (energy := self.sampler.energy) is not None:
            self._energy = energy
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def after_step(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int) -> None:
        if self._must_note(step):
            self._note(step)
        if not self._must_show(step):
            return
        if self._terminal:
            self._bar.update(self._task, completed=step, state=self._state())
            self._shown = time.perf_counter()
        else:
            self._lines, seconds = LINES * step // self._total, time.perf_counter() - self._began
            remaining = seconds / max(1, step - self._first) * (self._total - step)
            line = f"step {step:,} of {self._total:,}, {seconds:.0f} s, {remaining:.0f} s left  {self._state()}"
            print(line.rstrip(), flush=True)

    def must_see(self, step: int) -> bool:
        return self._must_note(step) or self._must_show(step)

    def _must_show(self, step: int) -> bool:
        if self._bar is None:
            return False
        if self._terminal:
            return time.perf_counter() - self._shown >= self.seconds
        return LINES * step // self._total > self._lines

    def _must_note(self, step: int) -> bool:
        """The last step is noted before its checkpoint, from which a killed run goes on without a further step."""
        return self._file is not None and (step == self._total or time.perf_counter() - self._noted >= NOTED)

    def _note(self, step: int, make_folder: bool = False) -> None:
        self._noted = time.perf_counter()
        speed = (step - self._first) / max(1e-9, self._noted - self._began)
        note = {"step": step, "steps": self._total, "per_second": round(speed, 3)}
        assert self._file is not None
        write_atomically(self._file, json.dumps(note).encode(), make_folder=make_folder)

    def reads_energy(self, step: int) -> bool:
        return False  # one rank shows the bar, by its clock

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._bar is not None:
            if self._terminal:
                self._bar.update(self._task, completed=self.sampler.steps)
                self._bar.stop()
            self._bar = None
        if self._file is not None and self.sampler.steps != self._total:
            self._note(self.sampler.steps)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        with suppress(StoreError):  # a disk that is full may be the exception
            self.on_train_end(trainer, pl_module)

    def _state(self) -> str:
        if self._energy is None:
            return ""
        return f"energy per item {float(self._energy.mean()) / self.sampler.num_data:.3f}"


def _bar() -> Any:
    """rich's progress bar, imported here because rich is slow to import."""
    from rich import progress as rich

    return rich.Progress(
        rich.TextColumn("sampling"), rich.BarColumn(16), rich.MofNCompleteColumn(), rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(), rich.TextColumn("{task.fields[state]}"), refresh_per_second=2,
    )  # fmt: skip
