"""Training loops and data in which gradients with control variates would have another mean."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from bdl.batch import tensors_in
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.engine.functional import DROPOUT
from bdl.errors import ConfigError

REMEDY = "or set sampler.gradient=null"


def check_control(trainer: L.Trainer) -> None:
    """Raise ConfigError where batches and all the data have other expected gradients, or a batch is seen in parts."""
    if trainer.accumulate_grad_batches > 1 or trainer.gradient_clip_val:
        raise ConfigError(
            "gradient=control takes two whole gradients of each batch: remove accumulate_grad_batches and "
            f"gradient_clip_val (clip=bdl.ClipNorm(c) clips their difference), {REMEDY}"
        )
    for name, module in trainer.lightning_module.named_modules():
        if module.training and (isinstance(module, DROPOUT) and module.p > 0 or isinstance(module, _BatchNorm)):
            kind, what = type(module).__name__, "is random" if isinstance(module, DROPOUT) else "reads the whole batch"
            raise ConfigError(
                f"gradient=control needs a loss that is a mean over items, and {kind} {what}: remove {name}, {REMEDY}"
            )
    _check_items(trainer.train_dataloader)


def _check_items(loader: Any) -> None:
    """Raise ConfigError for items that change from one reading to the next."""
    batches = loader.batches if isinstance(loader, WorkerBatches) else loader
    changes = isinstance(batches, TensorBatches) and batches.augment is not None
    if isinstance(loader, DataLoader) and hasattr(loader.dataset, "__getitem__"):
        one, other = (list(tensors_in(loader.dataset[0])) for _ in range(2))
        changes = len(one) != len(other) or not all(map(torch.equal, one, other))
    if changes:
        raise ConfigError(
            f"gradient=control needs the same items in every pass over the data, and they are augmented: remove the "
            f"augmentation, {REMEDY}"
        )
