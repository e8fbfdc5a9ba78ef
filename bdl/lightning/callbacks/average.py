"""ModelAverage: metrics of the predictive average over the samples so far, during training."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.functional import evaluating
from bdl.lightning.blocks import StepCallback
from bdl.lightning.find import find_sampler
from bdl.posterior.predict import Batches
from bdl.schedules import Keep


class ModelAverage(StepCallback):
    """Averages the class probabilities of all kept states on a loader, and logs metrics of the mean.

    The callback averages probabilities, never logits. It holds one (n, K) tensor, however many samples there are. The
    mean is part of the checkpoint.

    Args:
        keep: the rule that chooses the steps.
        loader: (x, y) batches in a fixed order; None means the datamodule's validation loader. A loader that shuffles
            is read once and its batches are kept in memory.
        name: metrics are logged as `<name>/bma/accuracy`, `<name>/bma/nll`, ...

    Raises ConfigError without a loader, and if the module returned no Sampler.
    """

    def __init__(self, keep: Keep, loader: Any = None, name: str = "val"):
        self.keep, self.loader, self.name = keep, loader, name
        self.count = 0
        self.total: Tensor | None = None  # (n, K) sum of probabilities over samples and chains
        self.metrics: dict[str, float] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._sampler = find_sampler(trainer)
        self._seen = self._sampler.steps
        if self.loader is None and trainer.datamodule is not None:  # type: ignore[attr-defined]
            self.loader = trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
        if not self.loader:
            raise ConfigError(
                "ModelAverage has no data: pass loader=, (x, y) batches in a fixed order, or a datamodule that holds "
                "validation data"
            )
        self._batches = Batches(self.loader, pl_module.device)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = self._sampler.steps
        if step == self._seen or not self.keep(step):
            return
        self._seen = step
        self._add(pl_module)
        for logger in trainer.loggers:
            logger.log_metrics({f"{self.name}/bma/{k}": v for k, v in self.metrics.items()}, step)

    def must_see(self, step: int) -> bool:
        return self.keep(step)

    @torch.no_grad()
    def _add(self, pl_module: L.LightningModule) -> None:
        from bdl.posterior.metrics import classification_metrics  # torchmetrics is slow to import

        probs, labels = [], []
        with evaluating(pl_module):
            for x, y in self._batches:
                x = pl_module.trainer.precision_plugin.convert_input(x.to(pl_module.device))
                probs.append(pl_module(x).float().softmax(-1).cpu())
                labels.append(y)
        each = torch.cat(probs, -2).reshape(self._sampler.chains or 1, -1, probs[0].shape[-1])  # (C, n, K)
        each = each[self._sampler.target_chains]
        self.total = each.sum(0) if self.total is None else self.total + each.sum(0)
        self.count += len(each)
        self.metrics = classification_metrics(self.total / self.count, torch.cat(labels).cpu())

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "total": self.total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count, self.total = state_dict["count"], state_dict["total"]
