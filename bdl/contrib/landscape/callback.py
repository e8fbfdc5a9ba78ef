"""LearningCoefficient: the local learning coefficient of a network along its training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightning as L
import torch

from bdl.contrib.landscape.coefficient import learning_coefficient
from bdl.contrib.landscape.estimate import CoefficientEstimate
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError, check_whole
from bdl.lightning.blocks import StepCallback
from bdl.lightning.host import sampled_net
from bdl.likelihoods import Loss


class LearningCoefficient(StepCallback):
    """Measures the network every `every` steps of its optimizer, and logs `llc/value`, `llc/std_error`, `llc/sound`.

    It works in any LightningModule that trains one network by any optimizer. The training is the same to the bit with
    and without it: chains run on copies, by random streams of their own.

    Args:
        every: steps between two measurements.
        loader: labelled batches, read at every measurement; the data of the training, without augmentation.
        loss: None means the module's `loss`. Its value at the network should be near a minimum of this loss.
        net: name of the submodule that is measured. None means `net`, or the whole module where it has no `net`.
        settings: further arguments of `bdl.learning_coefficient`, such as steps, localization and only.

    Attributes:
        estimates: those of this process, by step.
        values: (value, std_error, sound) by step, also of a run that was resumed.

    Raises ConfigError at the start of training for every < 1, without a loss, and for a stack of chains.
    """

    def __init__(
        self, every: int, loader: Iterable[Any], loss: Loss | None = None, net: str | None = None, **settings: Any
    ):
        self.every, self.loader, self.loss, self.net, self.settings = every, loader, loss, net, settings
        self.estimates: dict[int, CoefficientEstimate] = {}
        self.values: dict[int, tuple[float, float, bool]] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        check_whole("every of LearningCoefficient", self.every)
        if self.loss is None and not callable(getattr(pl_module, "loss", None)):
            raise ConfigError("LearningCoefficient needs a loss: pass loss=, a mean over the batch or one of bdl's")
        if isinstance(sampled_net(pl_module, self.net), ChainStack):
            raise ConfigError(
                "LearningCoefficient measures one network, and this is a stack of chains: it follows training; "
                "bdl.learning_coefficient measures a network that was taken from a run"
            )

    def must_see(self, step: int) -> bool:
        return step % self.every == 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if not self.must_see(step) or step in self.values or not trainer.is_global_zero:
            return
        loss: Any = self.loss or pl_module.loss
        with torch.enable_grad():
            found = learning_coefficient(sampled_net(pl_module, self.net), loss, self.loader, **self.settings)
        self.estimates[step], self.values[step] = found, (found.value, found.std_error, found.sound)
        for logger in trainer.loggers:
            logged = {"llc/value": found.value, "llc/std_error": found.std_error, "llc/sound": float(found.sound)}
            logger.log_metrics(logged, step)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values = dict(state_dict["values"])
