"""MicroBatches: the batches whose gradients Lightning accumulates for one step of a BayesianModule."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from bdl.lightning.visits import Visits
from bdl.samplers.sampler import Sampler


class MicroBatches:
    """Weighs micro-batches by their sizes, so that a step has the mean loss over its items, and that gradient."""

    def __init__(self, trainer: L.Trainer, module: L.LightningModule, sampler: Sampler):
        self._visits, self._sampler = Visits(trainer, module, sampler, weighs_parts=True), sampler
        self._trainer = trainer
        self._parts: list[tuple[Tensor, int]] = []  # losses and sizes
        self._items: int | None = None

    def add(self, loss: Tensor, batch: Any, batch_idx: int) -> Tensor:
        """The () or (C,) loss of a micro-batch, times its size over that of the first one, to be back-propagated."""
        size = self._visits.see(batch, batch_idx) or 1
        self._parts.append((loss.detach(), size))
        first = self._parts[0][1]
        return loss if size == first else loss * (size / first)

    def count(self) -> int | None:
        """How many items the last step had; None where that is not known, or does not matter."""
        return self._items

    def mean(self) -> Tensor:
        """The () or (C,) mean loss over the items of the step, whose gradient the parameters then have.

        Lightning has divided each loss by the number of micro-batches that a step usually has; the last one of an epoch
        may have fewer.
        """
        losses, sizes = zip(*self._parts, strict=True)
        self._parts, total = [], sum(sizes)
        self._items = None if self._visits.items is None else total
        usual = self._trainer.accumulate_grad_batches * sizes[0]
        if total != usual:
            for p in self._sampler.sampled:
                if p.grad is not None:
                    p.grad.mul_(usual / total)
        if len(losses) == 1:
            return losses[0]
        alike = len(set(sizes)) == 1
        shares = losses if alike else [m * n * len(sizes) / total for m, n in zip(losses, sizes, strict=True)]
        return torch.stack(shares).mean(0)
