"""The gradient over all the data of a training loader, for control variates, and where it would be another one."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from bdl.batch import map_tensors, tensors_in
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.devices import widest
from bdl.engine.functional import DROPOUT
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError
from bdl.lightning.host import batch_size_of, in_order
from bdl.samplers.sampler import Sampler

REMEDY = "or set sampler.gradient=null"


class FullGradient:
    """Back-propagates the mean loss of a BayesianModule over all training data, and returns it: `Host.full_gradient`.

    The network stays in the mode of the steps. The processes that share a chain divide the batches among them; the
    mean over processes of what each returns, and of its gradients, is that over all the data.
    """

    def __init__(self, module: Any):
        self._module = module

    def __call__(self) -> Tensor:
        module = self._module
        params, group = module.sampler.sampled, module.sampler.host.group
        rank, ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        total, count = torch.zeros((), dtype=widest(module.device), device=module.device), 0
        sums = [torch.zeros_like(p) for p in params]
        for i, batch in enumerate(in_order(module.trainer.train_dataloader, self._most())):
            inputs, y = module.converted(map_tensors(lambda t: t.to(module.device), batch))
            count += len(y)
            if i % ranks == rank:
                out = [torch.zeros_like(p) for p in params]
                losses = module.gradient_for(inputs).write(*self._for_chains(inputs, y), out)
                total = total + losses.to(total.dtype) * len(y)
                for mine, new in zip(sums, out, strict=True):
                    mine.add_(new, alpha=len(y))
        for p, gradient in zip(params, sums, strict=True):
            p.grad = gradient.mul_(ranks / count)
        return total * (ranks / count)

    def _for_chains(self, inputs: Any, y: Tensor) -> tuple[Any, Tensor]:
        """The batch as the gradient takes it: once for every chain, where chains have batches of their own."""
        net = self._module.net
        if not isinstance(net, ChainStack) or net.shared:
            return inputs, y
        return map_tensors(lambda t: t.expand(net.chains, *t.shape), inputs), y.expand(net.chains, *y.shape)

    def _most(self) -> int | None:
        """Items of a batch: on an accelerator as many as a step has, which fit; on a CPU as many as suit."""
        loader = self._module.trainer.train_dataloader
        return None if self._module.device.type == "cpu" else batch_size_of(loader)


def check_control(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError where batches and all the data have other expected gradients, or a batch is seen in parts."""
    if sampler.control is None:
        return
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
