"""The counters of Lightning's training loop: all that bdl reads and moves of Lightning's private parts."""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L

from bdl.errors import BdlWarning

CHECKED = "2.6"  # the version whose loop was read; its `fit` takes `weights_only`. pyproject.toml allows these


class Counters:
    """Where Lightning's loop is in its epoch, and how it is moved on by steps that it has not made itself.

    Raises AttributeError or TypeError for a Lightning that counts otherwise.
    """

    def __init__(self, trainer: L.Trainer):
        self.trainer = trainer
        self._fit: Any = trainer.fit_loop
        self._loop: Any = self._fit.epoch_loop
        optimizer = self._loop.automatic_optimization.optim_progress.optimizer
        self._progress = (self._loop.batch_progress, optimizer.step, optimizer.zero_grad)
        for progress in (*self._progress, self._fit.epoch_progress):
            progress.total.increment_by(0)
            progress.current.increment_by(0)
        fetcher, last = self._fit._data_fetcher, self._loop.batch_progress.is_last_batch
        whole = (self._loop._batches_that_stepped, fetcher.fetched, fetcher.done, last)
        if not all(isinstance(value, int) for value in whole):
            raise TypeError("a counter is no number")
        if optimizer.step.total.completed != trainer.global_step:
            raise TypeError("global_step counts something else")

    @property
    def batches(self) -> int:
        """Batches of the present epoch, the one that is being trained on included."""
        return self._loop.batch_progress.current.ready

    def move_on(self, steps: int) -> None:
        """Count steps, each on one batch, as if Lightning had made them itself."""
        length, fetcher = int(self.trainer.num_training_batches), self._fit._data_fetcher
        batches = self.batches + steps
        epochs = (batches - 1) // length  # an epoch whose last batch ends the block is left for Lightning to end
        if epochs:
            self._fit.epoch_progress.increment_by(epochs)
            iter(fetcher)  # an iterator of the present epoch
        for progress in self._progress:
            progress.total.increment_by(steps)
            progress.current.increment_by(steps - epochs * length)
        fetcher.fetched = batches - epochs * length
        fetcher.done = self._loop.batch_progress.is_last_batch = fetcher.fetched >= length
        self._loop._batches_that_stepped += steps


def counters_of(trainer: L.Trainer) -> Counters | None:
    """The counters; None, with a BdlWarning, for a Lightning whose loop counts otherwise than bdl expects."""
    try:
        return Counters(trainer)
    except (AttributeError, TypeError) as error:
        warnings.warn(
            f"Lightning {L.__version__} counts its steps otherwise than the versions that bdl knows, {CHECKED} "
            f"({error}): every step returns to Lightning's loop, which is slower; install lightning>=2.6,<2.7",
            BdlWarning,
            stacklevel=2,
        )
        return None
