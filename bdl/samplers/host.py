"""Host: what a sampler knows of the loop around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

MeanLoss = Callable[[], Tensor]  # returns a mean negative log-likelihood at the present θ, () or (C,)


@dataclass(frozen=True)
class Host:
    """What a sampler knows of the loop around it. `BayesianModule` and `CollectSamples` say it when training starts."""

    full_loss: MeanLoss | None = None  # the loss over all the data
    full_gradient: MeanLoss | None = None  # the same, once it is back-propagated in the mode of the steps' batches
    batches: int | None = None  # how many steps a pass over the data has
    items: Callable[[], int | None] | None = None  # returns how many the step's batch holds; None where nobody tells
    batch_loss: MeanLoss | None = None  # the loss of the step's own batch, without gradients
    per_example: Callable[[], Tensor] | None = None  # returns the gradients (..., n, d) of the items of the batch
    noise_draws: Callable[[], Tensor] | None = None  # returns (..., r, d) draws with the covariance of batch gradients
    buffers: Callable[[], Iterable[Tensor]] = tuple  # returns tensors (C, ...) as BatchNorm's, which are no parameters
    group: dist.ProcessGroup | None = None  # the ranks that share the chain and average its energy
    noise_share: float = 1.0  # Var(g) over the variance that differences between batches show, `left_by_a_pass`
    sees_all_data: bool = False  # every batch holds all the data, nothing in the network is random: no batch noise
    compiled: bool = True  # whether code in C may make the update, where it can
    fuses: bool = False  # whether `torch.compile` makes few kernels of an update on a GPU, where a graph can hold it
    own_backward: bool = False  # the closure back-propagates, once and whole, what the module's step returns
    changes_gradients: bool = False  # a Trainer clips what is back-propagated, or weighs parts of a batch
    loss_is_whole: bool = True  # False under gradient accumulation, where a loss is a part; energies are then None

    def of_one_batch(self, variance: Tensor) -> Tensor:
        """Var(g), from the variance that differences between batches show."""
        return variance if self.noise_share == 1 else variance * self.noise_share


class OfHost:
    """A function of the `Host` as an attribute of a sampler, which one may set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, sampler: Any, owner: type) -> MeanLoss | None:
        return getattr(sampler.chain.host, self.name)

    def __set__(self, sampler: Any, function: MeanLoss | None) -> None:
        sampler.chain.host = replace(sampler.chain.host, **{self.name: function})
