"""ExactPotential: the energy of all training data and its gradient, at any states of a run's networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bdl.batch import Reader, map_tensors
from bdl.data.slices import TensorSlices
from bdl.engine.choose import choose_gradient
from bdl.engine.functional import drops_out, named_tensors
from bdl.engine.stack import ChainStack
from bdl.frozen import Only
from bdl.likelihoods import Loss
from bdl.samplers.priors.base import Prior


class ExactPotential:
    """U = N loss - log prior over all training data, nats, and its gradient, for C networks at once.

    The networks are copies: what is measured moves nothing of the run. They run as in training, with the statistics of
    a batch where there is BatchNorm.

    Args:
        net: one plain network of the run.
        chains: C.
        loss: a negative log-likelihood per item, or any loss that returns its mean over the batch.
        prior: that of the run's sampler, bound to its parameters.
        batches: training batches in a fixed order, without augmentation.
        num_data: N.
        read: splits a batch into inputs and target.
        only: patterns of names, what is sampled; None for all parameters.
    """

    def __init__(
        self,
        net: nn.Module,
        chains: int,
        loss: Loss,
        prior: Prior,
        batches: Iterable[Any],
        num_data: int,
        read: Reader | None = None,
        only: Only = None,
    ):
        self.stack = ChainStack(net, chains, only=only, start="given", shared=True).train()
        self.loss, self.prior, self.batches, self.num_data = loss, prior, batches, num_data
        self.read = read or Reader(net)
        named = {name: p for name, p in self.stack.net.named_parameters() if p.requires_grad}
        self.names, self.params = list(named), list(named.values())
        self.sizes = [p.numel() // chains for p in self.params]
        self._gradient = choose_gradient(self.stack, loss)
        self._out = [torch.zeros_like(p) for p in self.params]

    @property
    def chains(self) -> int:
        return self.stack.chains

    @property
    def is_random(self) -> bool:
        """Whether the loss differs from call to call, as it does with dropout: there is then no one gradient."""
        return drops_out(self.stack)

    @property
    def has_batch_statistics(self) -> bool:
        return any(isinstance(m, _BatchNorm) and m.training for m in self.stack.modules())

    @property
    def takes_rows(self) -> bool:
        """Whether single rows of the data can be had, see `rows`."""
        return isinstance(self.batches, TensorSlices)

    def put(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Give the networks these parameters and buffers (C, ...), by name; returns θ (C, d)."""
        present = named_tensors(self.stack.net)
        with torch.no_grad():
            for name, value in tensors.items():
                present[name].copy_(value)
        return torch.cat([p.detach().reshape(len(p), -1) for p in self.params], 1)

    def tensors(self, theta: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """Copies (C, ...) of the parameters and buffers of these names, of the networks at θ (C, d)."""
        self._place(theta)
        present = named_tensors(self.stack.net)
        return {name: present[name].detach().clone() for name in names}

    def split(self, flat: Tensor) -> list[Tensor]:
        """The parts (..., n) of the tensors of a flat (..., d) one."""
        return list(flat.split(self.sizes, -1))

    def rows(self, rows: Tensor) -> list[Any]:
        """These rows of the training data as one batch."""
        source: Any = self.batches
        x = source.x[rows]
        return [(x if source.transform is None else source.transform(x), source.y[rows])]

    @torch.no_grad()
    def __call__(self, theta: Tensor, batches: Iterable[Any] | None = None) -> tuple[Tensor, Tensor]:
        """U (C,), double, and ∇U (C, d), nats, at θ (C, d).

        batches: those whose mean loss stands for that of all data; None for all data.
        """
        self._place(theta)
        loss = torch.zeros(self.chains, dtype=torch.float64)
        g, count = torch.zeros_like(theta), 0
        for inputs, y in self._read(self.batches if batches is None else batches):
            with torch.enable_grad():
                losses = self._gradient.write(inputs, y, self._out)
            loss += losses.detach().double().cpu() * len(y)
            g.add_(torch.cat([part.reshape(len(part), -1) for part in self._out], 1), alpha=len(y))
            count += len(y)
        g.mul_(self.num_data / count)
        self.prior.add_grad_(g, theta, 1)
        prior = torch.as_tensor(self.prior.energy(theta)).double().cpu()
        return loss * (self.num_data / count) + prior, g

    @torch.no_grad()
    def _place(self, theta: Tensor) -> None:
        for p, part in zip(self.params, self.split(theta), strict=True):
            p.copy_(part.view_as(p))

    def _read(self, batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
        like = self.params[0]
        for batch in batches:
            inputs, y = self.read(batch)
            yield map_tensors(lambda t: t.to(like.device), inputs), y.to(like.device)
