"""SaveLast: keeps one checkpoint, replaced atomically. A resumed run draws bitwise the same samples.

Streamed: how it is written. TimeLimit: ends a run after a given time, with its checkpoint saved.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Checkpoint, Timer
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import Strategy

from bdl.disk.files import disk_errors, move_into_place
from bdl.errors import ConfigError, check_whole
from bdl.lightning.blocks import StepCallback
from bdl.posterior.samples import brief, first_difference

Run = str | Mapping[str, Any] | None

ASK_EVERY = 10  # steps between two agreements of the ranks of one chain on whether to stop
ECHO = 2.0  # seconds in which a signal may arrive twice: a scheduler sends it to all processes, `launch` forwards it


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a run to stop: SIGINT, SIGTERM, and SIGUSR2 where somebody has a handler for it.

    Schedulers warn a job by SIGUSR2 before they take its machine away, and submitit's handler then requeues it.
    Without a handler SIGUSR2 ends a process at once, as it always does.
    """
    warning = [signal.SIGUSR2] if hasattr(signal, "SIGUSR2") and callable(signal.getsignal(signal.SIGUSR2)) else []
    return (signal.SIGINT, signal.SIGTERM, *warning)


class SaveLast(StepCallback, Checkpoint):
    """Writes `<dirpath>/<name>.ckpt` every `every` steps, at the end, and when a signal asks for a stop.

    After a signal of `ending_signals` the step finishes, the checkpoint is written and `fit` returns; `signum` is then
    the signal, and None otherwise. Another one, ECHO seconds later or more, interrupts at once. The ranks of one
    data-parallel chain stop together, at the next multiple of ASK_EVERY. Lightning runs Checkpoint callbacks after all
    others, so the checkpoint holds the state after the step.

    Args:
        dirpath: folder of the checkpoint.
        every: steps between two checkpoints.
        name: name of the file, without `.ckpt`.
        run: what identifies the run, a text or plain values by name; None accepts the checkpoint of any run.

    Raises ConfigError for every < 1 and when `fit` resumes from a checkpoint of another run, and StoreError when the
    disk is full.
    """

    def __init__(self, dirpath: str | Path, every: int = 1000, name: str = "last", run: Run = None):
        check_whole("every of SaveLast", every)
        self.path, self.every, self.run = Path(dirpath) / f"{name}.ckpt", every, run
        self.signum: int | None = None
        self._asked = 0.0  # time of the first signal
        self._previous: dict[int, Any] = {}  # signal handlers from before the run

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._saved = trainer.global_step
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        if threading.current_thread() is threading.main_thread():
            for signum in ending_signals():
                self._previous[signum] = signal.signal(signum, lambda n, _: self._stop(trainer, n))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if trainer.world_size > 1 and step % ASK_EVERY == 0:
            self._agree(trainer)
        last = trainer.should_stop or step == trainer.max_steps
        if step > self._saved and (last or step % self.every == 0):
            self._save(trainer)

    def must_see(self, step: int) -> bool:
        return step % self.every == 0

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step > self._saved:
            self._save(trainer)
        self._restore()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._restore()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.run is None else {"run": self.run}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("run")
        if self.run is None or saved == self.run:
            return
        if not (isinstance(saved, Mapping) and isinstance(self.run, Mapping)):
            raise ConfigError(
                f"the checkpoint belongs to another run ({saved}; this is {self.run}): put this run's checkpoint at "
                f"{self.path}, or remove that file to start from step 0"
            )
        if (difference := first_difference(saved, self.run)) is not None:
            key, there, here = difference
            raise ConfigError(
                f"{self.path} belongs to another run: {key} is {brief(there)} in it, and {brief(here)} here; choose "
                "another folder for this run"
            )

    def _save(self, trainer: L.Trainer) -> None:
        temporary = self.path.with_suffix(".writing")
        try:
            with disk_errors(self.path):
                if not self.path.parent.is_dir():  # Lightning would make it anew, without the rest of the run
                    raise FileNotFoundError(self.path.parent)
                with streaming(trainer.strategy):
                    trainer.save_checkpoint(temporary)
                if trainer.is_global_zero:
                    with open(temporary, "rb+") as f:
                        os.fsync(f.fileno())
                    move_into_place(temporary, self.path)
        finally:
            if trainer.is_global_zero:
                temporary.unlink(missing_ok=True)  # a full disk leaves a part of it
        self._saved = trainer.global_step

    def _stop(self, trainer: L.Trainer, signum: int) -> None:
        if self.signum is not None:
            if time.monotonic() > self._asked + ECHO:  # the user does not want to wait for the step
                raise KeyboardInterrupt
            return
        self.signum, self._asked = signum, time.monotonic()
        if trainer.world_size == 1:
            trainer.should_stop = True

    def _agree(self, trainer: L.Trainer) -> None:
        """Stop if any rank was asked to stop. If one stopped alone, the others would wait for its gradient for ever."""
        asked = torch.tensor(self.signum or 0, device=trainer.strategy.root_device)
        asked = int(trainer.strategy.reduce(asked, reduce_op="max"))
        if asked:
            self.signum, trainer.should_stop = asked, True

    def _restore(self) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous = {}


class Streamed(TorchCheckpointIO):
    """Writes a checkpoint of Lightning straight into its file.

    Lightning's own way puts it together in memory, twice: beside chains of adapters that are two more large bodies.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        with open(path, "wb") as f:
            sink = Sink(f)
            try:
                torch.save(checkpoint, sink)  # type: ignore[arg-type]  # it needs no more than `write` and `flush`
            except RuntimeError as error:  # torch's answer where a write fails
                raise sink.error or error from error


class Sink:
    """A file that torch writes to, and the error that it got, which torch does not pass on."""

    def __init__(self, file: BinaryIO):
        self.flush, self.error = file.flush, None
        self._file = file

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error: OSError | None = error
            raise


@contextmanager
def streaming(strategy: Strategy) -> Iterator[None]:
    """In the block, checkpoints are `Streamed`, unless somebody has chosen how they are written."""
    usual = strategy.checkpoint_io
    if type(usual) is TorchCheckpointIO:
        strategy.checkpoint_io = Streamed()
    try:
        yield
    finally:
        strategy.checkpoint_io = usual


class TimeLimit(StepCallback, Timer):
    """Ends `fit` after `duration`.

    Every call of `fit` has the whole duration, so a run with a short limit can be resumed again and again. Lightning's
    `Trainer(max_time=...)` also counts the time of earlier calls, and would end every later one at once.

    Args:
        duration: "DD:HH:MM:SS", a timedelta, or a dict of seconds, minutes, ...; None means no limit.

    Raises ConfigError for a duration that is none of these, or not more than 0.
    """

    def __init__(self, duration: str | timedelta | dict[str, int] | None = None):
        try:
            super().__init__(duration)
            remaining = self.time_remaining()  # seconds; None without a limit
            if remaining is not None and remaining <= 0:
                raise ValueError
        except (AttributeError, MisconfigurationException, TypeError, ValueError) as error:
            raise ConfigError(
                f"a time limit (trainer.max_time) must be DD:HH:MM:SS, more than 0, or null, got {duration!r}"
            ) from error

    on_train_epoch_end = L.Callback.on_train_epoch_end  # Timer's own does nothing where it checks every step

    def must_see(self, step: int) -> bool:
        remaining = self.time_remaining()
        return remaining is not None and remaining <= 0

    def reads_energy(self, step: int) -> bool:
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass
