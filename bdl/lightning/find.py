"""Finds the Sampler of a Trainer, and the network whose tensors are the sample."""

from __future__ import annotations

import lightning as L
from torch import nn

from bdl.batch import Reader
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError
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


def plain_net(net: nn.Module) -> nn.Module:
    """The network itself, or the one whose parameters a stack has stacked: its names are those of one copy."""
    return net.net if isinstance(net, ChainStack) else net


def refuse_shared_freeze(net: nn.Module, sampler: Sampler) -> None:
    """Raise ConfigError for a part that the sampler alone has frozen, in a stack with a copy of it for each chain."""
    live = {id(p) for p in sampler.sampled}
    if sampler.only is not None and isinstance(net, ChainStack) and not net.frozen_names:
        if any(id(p) not in live for p in net.parameters()):
            raise ConfigError(
                f"the Sampler samples only={sampler.only!r} of a stack whose chains share nothing: "
                "ChainStack(net, C, only=...) keeps one frozen part, with the values of the network"
            )


def reader_of(module: nn.Module) -> Reader:
    """Reads the batches of a module: by its own methods, or else by those of its network, also in a stack."""
    return Reader(module, plain_net(sampled_net(module, None)))
