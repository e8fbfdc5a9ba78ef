"""The part of a network that is sampled, named by patterns, and the rest, which is frozen.

>>> names = ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]
>>> sorted(matching(names, "head.*"))
['head.bias', 'head.weight']
>>> as_patterns(names)
'body.*, head.*'
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

from bdl.errors import ConfigError
from bdl.torch_private import lies_in_parts

Only = str | Sequence[str] | None  # patterns of names, `*` for any characters; None for all parameters
FrozenMode = Literal["eval", "train"]

LISTED = 12  # patterns in a message
WHOLE = "run it on one device, or on several with strategy=ddp; of a large network sample a part, with only=..."


def check_parameters(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise ConfigError, by name, for a parameter without values, and for one that is no dense tensor."""
    for name, p in named:
        if nn.parameter.is_lazy(p) or p.device.type == "meta":
            kind = "is on the device meta" if p.device.type == "meta" else "belongs to a lazy layer"
            raise ConfigError(f"{name} {kind} and has no values yet: call the network on one batch, or build it whole")
        if p.layout != torch.strided:
            raise ConfigError(f"{name} is a sparse tensor: use a dense parameter")


def refuse_parallel(net: nn.Module) -> None:
    """Raise ConfigError for torch's wrappers of a network, which split its batches or parameters over devices."""
    if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ConfigError(f"{type(net).__name__} wraps the network: give its .module, and let the Trainer spread it")
    refuse_parts(net.named_parameters())


def refuse_parts(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise ConfigError, by name, for a parameter that is divided among devices."""
    for name, p in named:
        if lies_in_parts(p):
            raise ConfigError(
                f"{name} is a {type(p).__name__}, which lies in parts on several devices (FSDP, tensor parallelism), "
                f"and a chain lies whole on each: leave the network whole, and {WHOLE}"
            )


def matching(names: Collection[str], only: Only, key: str = "only") -> set[str]:
    """The names that match one of the patterns; all of them for None.

    Raises ConfigError for no pattern, and for one that matches nothing; it lists what there is.
    """
    if only is None:
        return set(names)
    patterns = [only] if isinstance(only, str) else list(only)
    if not patterns:
        raise ConfigError(f"{key} holds no pattern: name what to sample ({as_patterns(names)}), or leave it null")
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            raise ConfigError(f"{key}={pattern!r} matches no parameter: there are {as_patterns(names)}")
        chosen |= found
    return chosen


def freeze(parameters: Mapping[str, Tensor], only: Only) -> set[str]:
    """The names of the sampled parameters. Under `only` these, and no others, require a gradient from now on.

    Raises ConfigError as `matching` does.
    """
    chosen = matching(parameters.keys(), only)
    if only is not None:
        for name, p in parameters.items():
            if p.is_floating_point():
                p.requires_grad_(name in chosen)
    return chosen


def as_patterns(names: Iterable[str]) -> str:
    """The names in a few patterns, such as `layer4.*, fc.*`."""
    parts, depth = [name.split(".") for name in names], 1
    while len({tuple(p[:depth]) for p in parts}) == 1 and any(len(p) > depth for p in parts):
        depth += 1
    groups = list(dict.fromkeys(".".join(p[:depth]) + (".*" if len(p) > depth else "") for p in parts))
    return ", ".join(groups[:LISTED]) + (f", and {len(groups) - LISTED} more" if len(groups) > LISTED else "")


def frozen_modules(net: nn.Module, sampled: Collection[int], holder_lives: bool = True) -> list[nn.Module]:
    """The modules of the frozen part: those of whose parameters some are not sampled.

    Args:
        sampled: ids of the parameters that are sampled.
        holder_lives: whether all is sampled of the module that holds the network. A module without parameters, such as
            a dropout, goes with its holder.
    """
    each = [id(p) in sampled for p in net.parameters()]
    lives = all(each) if each else holder_lives
    below = [module for child in net.children() for module in frozen_modules(child, sampled, lives)]
    return below if lives else [net, *below]


def hold_in_eval(net: nn.Module, sampled: Collection[int]) -> None:
    """Put the frozen modules into eval mode; the others keep theirs."""
    for module in frozen_modules(net, sampled):
        module.training = False


def frozen_tensors(net: nn.Module, sampled: Collection[int]) -> dict[str, Tensor]:
    """Parameters and buffers that do not change: what is not sampled, and the buffers of frozen modules in eval mode.

    Empty where all parameters are sampled.
    """
    parameters = {name: p.detach() for name, p in net.named_parameters() if id(p) not in sampled}
    if not parameters:
        return {}
    still = {id(m) for m in frozen_modules(net, sampled) if not m.training}
    buffers = {n: b for n, b in net.named_buffers() if id(net.get_submodule(n.rpartition(".")[0])) in still}
    return {**parameters, **buffers}
