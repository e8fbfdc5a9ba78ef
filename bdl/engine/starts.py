"""Where the chains of a stack start: copies of a network, fresh or as given, and what of them is frozen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor, nn

from bdl.errors import ConfigError


def started_copy(net: nn.Module | Callable[[], nn.Module], seed: int, fresh: bool) -> nn.Module:
    """One copy of the network, if `fresh` initialised under the seed. The CPU's global random stream is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not isinstance(net, nn.Module):
            return net()
        one = copy.deepcopy(net)
        if fresh:
            initialise(one)
        return one


def initialise(module: nn.Module) -> None:
    reset: Any = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
        return
    for child in module.children():
        initialise(child)
    if isinstance(module, nn.MultiheadAttention):
        module._reset_parameters()  # torch's name of what other layers call reset_parameters


def tensors_of(net: nn.Module, left_out: Container[str]) -> dict[str, Tensor]:
    each = [*net.named_parameters(), *net.named_buffers()]
    return {name: t.detach() for name, t in each if name not in left_out}


@torch.no_grad()
def restore(net: nn.Module, given: nn.Module, names: Container[str]) -> None:
    """Give a copy the values of the given network in these tensors."""
    values = tensors_of(given, ())
    for name, tensor in tensors_of(net, ()).items():
        if name in names:
            tensor.copy_(values[name])


def refuse_equal_starts(each: list[dict[str, Tensor]], sampled: Container[str]) -> None:
    """Raise ConfigError for a sampled parameter of random values, not of one constant, that all copies share."""
    if len(each) == 1:
        return
    for name, values in each[0].items():
        if name in sampled and torch.equal(values, each[1][name]) and bool((values != values.flatten()[:1]).any()):
            raise ConfigError(
                f"{name} would start equal in all chains, because its module has no reset_parameters that draws it: "
                "give ChainStack a function that builds the network in place of the network"
            )
