"""Finds the Sampler of a Trainer, and the network whose tensors are the sample."""

from __future__ import annotations

from typing import Any

import lightning as L
from torch import Tensor, nn

from bdl.errors import ConfigError
from bdl.models.stack import ChainStack
from bdl.samplers.sampler import Sampler


def find_sampler(trainer: L.Trainer) -> Sampler:
    """The Sampler that the module's `configure_optimizers` returned. Raises ConfigError if there is none."""
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, Sampler):
            return optimizer
    names = [type(o).__name__ for o in trainer.optimizers]
    raise ConfigError(f"configure_optimizers must return a bdl.Sampler, got {names or 'nothing'}")


def sampled_net(module: nn.Module, name: str | None) -> nn.Module:
    """The network whose tensors are the sample: the submodule `name`.

    Without a name it is the submodule `net`, or the module itself where it has no `net`. The name "" means the module.
    """
    if name is not None:
        return module.get_submodule(name)
    net = getattr(module, "net", module)
    return net if isinstance(net, nn.Module) else module


def stacked_tensors(net: nn.Module, chains: int | None) -> dict[str, Tensor]:
    """Views of all parameters and buffers (C, ...), by the names that the plain network gives them; C = 1 for a chain.

    Args:
        chains: C if the tensors carry a leading axis of chains, None if they belong to a single chain.
    """
    inner = net.net if isinstance(net, ChainStack) else net
    tensors: dict[str, Any] = {**dict(inner.named_parameters()), **dict(inner.named_buffers())}
    return {k: v.detach() if chains is not None else v.detach().unsqueeze(0) for k, v in tensors.items()}


def per_chain(value: Any, chains: int | None) -> list[float]:
    """One number per chain, from a float, a () tensor or a (C,) tensor."""
    count = chains or 1
    if not isinstance(value, Tensor):
        return [float(value)] * count
    numbers = value.detach().double().reshape(-1).tolist()
    return numbers * count if len(numbers) == 1 else numbers
