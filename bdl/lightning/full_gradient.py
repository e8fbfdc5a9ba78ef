"""The gradient over all the data of a training loader."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bdl.batch import map_tensors
from bdl.data.ordered import size_of
from bdl.devices import widest
from bdl.engine.stack import ChainStack
from bdl.lightning.host import in_order


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
        return None if self._module.device.type == "cpu" else size_of(loader)
