"""Arrivals: how far the processes of one chain are, which wait for each other, and which of them has hung."""

from __future__ import annotations

import time
from collections.abc import MutableSequence
from typing import Any

import lightning as L
from torch import Tensor

from bdl.lightning.blocks import StepCallback

PATIENCE = 300.0  # seconds; NCCL ends a process that has waited for 600 s by a signal, which names nobody
ENDED = 2**62  # more than any step
LOOK = 10.0  # seconds between two looks at most; after more, the parent itself has been asleep

_shared: MutableSequence[int] | None = None  # the places of all processes, in memory that they share with their parent


def share(places: MutableSequence[int]) -> None:
    """Let `Arrivals` of this process write into memory that its parent reads."""
    global _shared
    _shared = places


class Arrivals(StepCallback):
    """Notes where a process is: 2 k while it computes the loss of step k, 2 k + 1 when it needs the other processes.

    A process whose number stays below that of the others keeps them waiting.
    """

    def __init__(self, rank: int):
        self.rank = rank

    def must_see(self, step: int) -> bool:
        return False

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._note(2 * trainer.global_step + 2)

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self._note(2 * trainer.global_step + 3)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._note(ENDED)

    def _note(self, place: int) -> None:
        if _shared is not None:
            _shared[self.rank] = place


class Watch:
    """What the parent of the processes sees of their places.

    Args:
        places: one number for each process, see `Arrivals`; 0 before its first step.
        patience: seconds for which nobody may move.
    """

    def __init__(self, places: MutableSequence[int], patience: float):
        self.places, self.patience = places, patience
        self._seen: list[int] = []
        self._since = self._looked = time.monotonic()

    def hung(self) -> list[int]:
        """The processes that have kept the others waiting for too long, all of them where none is behind."""
        now, before = time.monotonic(), self._looked
        self._looked = now
        places = list(self.places)
        if places != self._seen or now - before > LOOK:
            self._seen, self._since = places, now
        under_way = [place for place in places if place != ENDED]
        if not any(places) or not under_way or now - self._since < self.patience:
            return []
        return [rank for rank, place in enumerate(places) if place == min(under_way)]

    def words(self, hung: list[int]) -> str:
        """Says which processes have hung."""
        who = f"process{'es' if len(hung) > 1 else ''} {', '.join(map(str, hung))} of {len(self.places)}"
        step = max(place for place in self._seen if place != ENDED) // 2
        return (
            f"{who} made no progress for {self.patience:g} s while step {step} was to be made; the same command "
            "resumes the run, and trainer.timeout=SECONDS allows more"
        )
