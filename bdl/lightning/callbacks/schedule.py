"""Schedule: sets lr, temperature and zeta before every step, as functions of the step."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from bdl.lightning.find import find_sampler
from bdl.schedules import Function


class Schedule(Callback):
    """Before step k (k steps done) set `param_groups[0]` to the schedules' values at k; what is None is left alone.

    Has no state: the schedules are functions of the sampler's step, so a resumed run reads the same values.
    """

    def __init__(self, lr: Function | None = None, temperature: Function | None = None, zeta: Function | None = None):
        self.functions = {"lr": lr, "temperature": temperature, "zeta": zeta}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._sampler = find_sampler(trainer)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        group, step = self._sampler.param_groups[0], self._sampler.steps
        for name, function in self.functions.items():
            if function is not None:
                group[name] = function(step)
