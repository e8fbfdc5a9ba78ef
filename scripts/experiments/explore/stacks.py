"""Networks as a stack: its energies and gradients at given states, and chains on it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import bdl
from bdl.engine.choose import choose_gradient
from bdl.samplers.dynamics.base import Transition
from bdl.samplers.potential import BoundGradient

Items = tuple[Tensor, Tensor]


def stack_of(sizes: Sequence[int], items: Items, count: int) -> tuple[bdl.ChainStack, Any, Items]:
    """A stack of tanh networks, the gradient of their mean losses, and the items for each of them."""
    stack = bdl.ChainStack(bdl.models.MLP(list(sizes), activation="tanh"), count, seed=0)
    x, y = items
    each = x.expand(count, *x.shape), y.expand(count, *y.shape)
    return stack, choose_gradient(stack, bdl.CategoricalNLL()), each


class Likelihood:
    """(n, d) states -> the (n,) sums of -log p(y | x) over the items, and their (n, d) gradients."""

    def __init__(self, sizes: Sequence[int], items: Items, count: int):
        stack, self._gradient, self._items = stack_of(sizes, items, count)
        self._params = [p.detach() for p in stack.parameters()]
        self._out = [torch.empty_like(p) for p in self._params]

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        sizes = [p[0].numel() for p in self._params]
        for p, part in zip(self._params, theta.split(sizes, -1), strict=True):
            p.copy_(part.view_as(p))
        n = self._items[1].shape[1]
        losses = self._gradient.write(*self._items, self._out)
        return n * losses, n * torch.cat([g.flatten(1) for g in self._out], 1)


class NetworkChains:
    """Chains of one sampler on a stack of networks, on all the data in every step, as `literature.targets.Chains`.

    lr: in canonical units, θ <- θ - lr ∇U. `theta` is the present (C, d) state, a view.
    """

    def __init__(
        self, sizes: Sequence[int], items: Items, precision: float, dynamics: Transition, start: Tensor, *, lr: float,
        **options: Any,
    ):  # fmt: skip
        n, chains = len(items[1]), len(start)
        stack, gradient, each = stack_of(sizes, items, chains)
        self._stack = stack  # holds the parameters
        self._bound = BoundGradient.of(gradient, *each)
        self.sampler = bdl.Sampler(
            stack.named_parameters(), dynamics, num_data=n, lr=n * lr, prior=bdl.Gaussian(precision), chains=chains,
            **options,
        )  # fmt: skip
        self.theta = self.sampler.chain.theta
        self.theta.copy_(start)

    def step(self) -> None:
        self.sampler.advance(self._bound)
