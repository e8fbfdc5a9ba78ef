"""Schedule: sets lr, temperature and zeta before every step, as functions of the step."""

from __future__ import annotations

from typing import Any

import lightning as L

from bdl.lightning.blocks import SamplerCallback
from bdl.schedules import Function


class Schedule(SamplerCallback):
    """Sets lr, temperature and zeta in `param_groups[0]` before every step, from functions of the steps done so far.

    The callback has no state: a resumed run evaluates the same functions at the sampler's step.

    Args:
        lr, temperature, zeta: schedules (`bdl.schedules`); None leaves the value as it is.

    Raises ConfigError if the module returned no Sampler. The sampler itself refuses a negative value at its step.
    """

    def __init__(self, lr: Function | None = None, temperature: Function | None = None, zeta: Function | None = None):
        self.functions = {"lr": lr, "temperature": temperature, "zeta": zeta}

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.before_step()

    def must_see(self, step: int) -> bool:
        return False

    def before_step(self) -> None:
        self.sampler.param_groups[0].update(self.planned(self.sampler.steps))

    def planned(self, step: int) -> dict[str, Any]:
        return {name: function(step) for name, function in self.functions.items() if function is not None}
