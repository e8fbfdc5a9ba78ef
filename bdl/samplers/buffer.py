"""Parameters as views of one contiguous buffer: an update is then a few kernels, whatever the number of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from bdl.errors import ConfigError
from bdl.frozen import Only, check_parameters, freeze, refuse_parts

# The buffer that holds a parameter, by the parameter's id, which is its own while the buffer is there
_OWNERS: WeakValueDictionary[int, ParameterBuffer] = WeakValueDictionary()


class ParameterBuffer:
    """A buffer `theta`, (d,), or (C, d) for parameters with a leading axis C. The parameters are views of it."""

    def __init__(self, params: Sequence[Tensor], names: Sequence[str], chains: int | None):
        self.params, self.names, self.chains = list(params), list(names), chains
        refuse_tensors(params, names, chains)
        self.lead = () if chains is None else (chains,)
        self.sizes = [p.numel() // (chains or 1) for p in params]  # numbers per tensor and chain
        self.shapes = [tuple(p.shape[len(self.lead) :]) for p in params]  # per chain
        self.attach()

    def attach(self) -> None:
        """Move the parameters' present values into a new buffer and make them views of it."""
        first = self.params[0]
        if first.dtype not in (torch.float32, torch.float64):  # others round a step away
            raise ConfigError(
                f"parameters must be float32 or float64, got {first.dtype}: call .float() on the network, and give the "
                "Trainer the precision bf16-mixed or 32-true"
            )
        self.theta = torch.empty(*self.lead, sum(self.sizes), dtype=first.dtype, device=first.device)
        self.views = self.split(self.theta)
        with torch.no_grad():
            for p, view in zip(self.params, self.views, strict=True):
                view.copy_(p)
                p.data = view
        self._pointers = [p.data_ptr() for p in self.params]
        for p in self.params:
            _OWNERS[id(p)] = self

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat (..., d) tensor in the parameters' shapes and memory order."""
        views, offset = [], 0
        for p, n in zip(self.params, self.sizes, strict=True):
            part = flat[..., offset : offset + n]
            dense = not self.lead and not p.is_contiguous() and _is_dense(p)  # channels_last keeps its strides
            views.append(part.as_strided(p.shape, p.stride(), part.storage_offset()) if dense else part.view(p.shape))
            offset += n
        return views

    def moved(self) -> bool:
        """Whether something has replaced the storage of a parameter since `attach`.

        Raises ConfigError where it was another sampler that is still there.
        """
        if [p.data_ptr() for p in self.params] == self._pointers:
            return False
        if any(_OWNERS.get(id(p)) is not self for p in self.params):
            raise ConfigError(
                "another Sampler was built on these parameters and holds them now: one network has one Sampler at a "
                "time; step the new one, or give each a network of its own"
            )
        return True


def refuse_tensors(params: Sequence[Tensor], names: Sequence[str], chains: int | None) -> None:
    """Raise ConfigError for tensors that do not fit into one buffer."""
    refuse_parts(zip(names, params, strict=True))
    for kind in ("device", "dtype"):
        kinds = {str(getattr(p, kind)) for p in params}
        if len(kinds) != 1:
            raise ConfigError(
                f"one Sampler needs parameters of one {kind}, got {sorted(kinds)}: call .to() on the network"
            )
    if chains is not None:
        for name, p in zip(names, params, strict=True):
            if p.ndim == 0 or p.shape[0] != chains:
                raise ConfigError(
                    f"chains={chains} needs a leading axis of {chains}, {name} is {tuple(p.shape)}: see ChainStack"
                )


Named = dict[str, Tensor]


def checked(params: Iterable[Any]) -> list[Any]:
    """The parameters, or (name, parameter) pairs, as a list. Raises ConfigError for what is none, or cannot be sampled.

    Groups of parameters are left to torch.
    """
    if isinstance(params, nn.Module):
        raise ConfigError("a Sampler takes parameters, got a network: give it net.named_parameters()")
    given = list(params)
    if not given:
        raise ConfigError("nothing to sample: the network has no parameters")
    named = [(f"parameter {i}", p) if isinstance(p, Tensor) else p for i, p in enumerate(given)]
    check_parameters(pair for pair in named if isinstance(pair, tuple))
    return given


def sampled(group: dict[str, Any], only: Only = None) -> tuple[Named, Named]:
    """The parameters of the group that require a gradient, and the frozen ones. only: patterns; freezes all others."""
    names = group.get("param_names") or [f"parameter {i}" for i in range(len(group["params"]))]
    if only is not None:
        if "param_names" not in group:
            raise ConfigError("only= needs the names of the parameters: give the Sampler net.named_parameters()")
        freeze(dict(zip(names, group["params"], strict=True)), only)
    named = list(zip(names, group["params"], strict=True))
    live = {name: p for name, p in named if p.requires_grad}
    if not live:
        raise ConfigError("no parameter requires a gradient: nothing to sample")
    return live, {name: p for name, p in named if not p.requires_grad}


def refuse_unfrozen(frozen: Named) -> None:
    """Raise ConfigError if a parameter that was frozen when the Sampler was built requires a gradient now."""
    for name, p in frozen.items():
        if p.requires_grad:
            raise ConfigError(
                f"{name} was frozen when the Sampler was built and requires a gradient now: build a new Sampler, or "
                "freeze it again (requires_grad = False)"
            )


def _is_dense(p: Tensor) -> bool:
    """Whether p has neither holes nor overlap: its strides are those of a permuted contiguous tensor."""
    expected = 1
    for size, stride in sorted(zip(p.shape, p.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
