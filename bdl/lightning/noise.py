"""Draws of the noise of a module's batches, for samplers that control its covariance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from bdl.batch import tensors_in
from bdl.data.loader import WorkerBatches
from bdl.engine.gradient import Losses
from bdl.engine.noise_draws import GROUPS, draws_of
from bdl.engine.stack import ChainStack


class NoiseDraws:
    """Returns (r, d) or (C, r, d) draws with the covariance that batches give to the gradient: `Host.noise_draws`.

    They come from the current batch of a BayesianModule, in the mode of the steps; buffers stay as they are. A layer
    that reads the whole batch is noisier the smaller its part is, so BatchNorm gets halves, which make one draw.

    A batch of a shuffled epoch has n of N different items, and 1 - n/N times the noise of n independent ones.
    """

    def __init__(self, module: Any, losses: Losses, current: SimpleNamespace):
        """losses: of a batch. current: its `batch` is that of the step, inputs and targets."""
        self._module, self._losses, self._current = module, losses, current

    def __call__(self) -> Tensor:
        module, (inputs, y) = self._module, self._current.batch
        net, sampler, context = module.net, module.sampler, module.trainer.precision_plugin.train_step_context
        axis = 1 if isinstance(net, ChainStack) and not net.shared else 0
        groups = 2 if any(isinstance(m, _BatchNorm) and m.training for m in net.modules()) else GROUPS
        buffers = list(net.buffers())
        before = [b.clone() for b in buffers]
        draws = draws_of(self._losses, sampler.sampled, inputs, y, module.chains, axis, groups, context)
        with torch.no_grad():
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(old)
        items = next(tensors_in(inputs)).shape[axis]
        return draws * (1 if self._independent() else max(0.0, 1 - items / sampler.num_data)) ** 0.5

    def _independent(self) -> bool:
        """Whether items are drawn independently, with replacement."""
        loader = self._module.trainer.train_dataloader
        return bool(getattr(loader.batches if isinstance(loader, WorkerBatches) else loader, "replacement", False))
