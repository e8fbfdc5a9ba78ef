"""MCDropout: draws of networks whose weights a dropout mask has thinned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bdl.batch import Inputs
from bdl.contrib.baselines.base import Baseline, Material, Tensors, check_outputs
from bdl.engine.functional import call, evaluating, tensors_of_modules, watching
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.seeding import generator

OF_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # drop whole channels
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Link:
    """A dropout, and the layers that read its output."""

    dropout: str
    p: float
    features: int  # numbers of the mask: features of the layers' input
    readers: tuple[str, ...]

    def mask(self, random: torch.Generator) -> Tensor:
        """(features,) 0 with probability p, otherwise 1 / (1 - p)."""
        return (torch.rand(self.features, generator=random) >= self.p).float() / (1 - self.p)


@dataclass(frozen=True)
class MCDropout(Baseline):
    """Monte Carlo dropout (Gal & Ghahramani 2016): each draw is the trained network under one mask for all items.

        W_draw = W diag(z),        z_j = Bernoulli(1 - p) / (1 - p)

    W is the layer that reads what dropout leaves. It is the variational law over weights of the paper, section 2: a
    draw is one function, whose predictions for different items belong together. The mean over draws is that of dropout
    left on at test time.

    A mask becomes weights where `nn.Dropout` stands directly before a Linear layer, on (n, features), or `nn.Dropout2d`
    (1d, 3d) before a convolution. This is compared with the masks themselves on a batch; other networks are refused.

    Args:
        draws: networks per chain.

    Raises ConfigError for a network without dropout, and for one whose masks cannot be written as weights.
    """

    draws: int = 30

    def check(self, net: nn.Module, inputs: Inputs, likelihood: Likelihood | None, val: bool) -> None:
        find_links(net, inputs)

    def networks(self, material: Material) -> Iterator[list[Tensors]]:
        net, inputs, states = material.trained.net, material.first(self), material.last_states()
        links = find_links(net, inputs)
        random = [generator("cpu", "dropout", material.seed, chain) for chain in range(len(states))]
        for number in itertools.count():
            masks = [{link.dropout: link.mask(r) for link in links} for r in random]
            drawn = [masked(net, tensors, links, z) for tensors, z in zip(states, masks, strict=True)]
            if number == 0:
                _compare(net, states[0], drawn[0], masks[0], inputs)
            yield drawn


def find_links(net: nn.Module, inputs: Inputs) -> list[Link]:
    """Every dropout with p > 0, and the layers that read its output, as seen on one batch."""
    dropouts = {n: m for n, m in net.named_modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0}
    if not dropouts:
        raise ConfigError("MCDropout needs a network that was trained with dropout: set model.dropout=0.1")
    left: list[Any] = []  # (name, output) of every dropout
    read: list[Any] = []  # (name, input) of every layer
    layers = {n: m for n, m in net.named_modules() if isinstance(m, (nn.Linear, *CONVOLUTIONS))}
    with (
        watching(dropouts, lambda name, _, out: left.append((name, out))),
        watching(layers, lambda name, given, _: read.append((name, given[0]))),
        torch.no_grad(),
        evaluating(net),
        torch.random.fork_rng(),
    ):
        for module in dropouts.values():
            module.train()  # eval mode would hand on the tensor that it was given
        call(net, tensors_of_modules(net), inputs)
    if repeated := [n for n, _ in left if [m for m, _ in left].count(n) > 1]:
        raise _refusal(repeated[0])
    return [_link(net, name, dropouts[name], out, [n for n, x in read if x is out]) for name, out in left]


def _link(net: nn.Module, name: str, dropout: Any, out: Tensor, readers: list[str]) -> Link:
    layers = [net.get_submodule(reader) for reader in readers]
    of_channels = isinstance(dropout, OF_CHANNELS)
    fits = (
        all(isinstance(layer, CONVOLUTIONS) and layer.groups == 1 for layer in layers)
        if of_channels
        else type(dropout) is nn.Dropout and out.ndim == 2 and all(isinstance(layer, nn.Linear) for layer in layers)
    )
    if not layers or not fits:
        raise _refusal(name)
    return Link(name, dropout.p, out.shape[1], tuple(readers))


def masked(net: nn.Module, tensors: Tensors, links: list[Link], masks: dict[str, Tensor]) -> Tensors:
    """The tensors with the columns of every layer behind a dropout multiplied by its mask."""
    name_of = {id(p): name for name, p in net.named_parameters()}
    drawn = dict(tensors)
    for link in links:
        for reader in link.readers:
            weight: Any = net.get_submodule(reader).weight
            name = name_of[id(weight)]
            z = masks[link.dropout].to(drawn[name])
            drawn[name] = drawn[name] * z.view(1, -1, *[1] * (weight.ndim - 2))
    return drawn


def _compare(net: nn.Module, tensors: Tensors, drawn: Tensors, masks: dict[str, Tensor], inputs: Inputs) -> None:
    """Raise ConfigError unless the thinned weights do what the masks do."""

    def multiply(name: str, _: Any, out: Tensor) -> Tensor:
        return out * masks[name].to(out).view(1, -1, *[1] * (out.ndim - 2))

    with watching({name: net.get_submodule(name) for name in masks}, multiply), torch.no_grad(), evaluating(net):
        wanted = call(net, tensors, inputs)
    check_outputs(net, drawn, inputs, wanted, str(_refusal(next(iter(masks)))))


def _refusal(dropout: str) -> ConfigError:
    return ConfigError(
        f"the masks of {dropout or 'this dropout'} cannot be written as weights: MCDropout needs nn.Dropout directly "
        "before a Linear layer, or nn.Dropout2d before a convolution; use another method"
    )
