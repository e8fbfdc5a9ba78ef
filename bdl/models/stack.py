"""ChainStack: C independent copies of a network, run as one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

from bdl.errors import ConfigError
from bdl.functional import call
from bdl.seeding import derive_seed

Method = Literal["auto", "bmm", "vmap", "loop"]

_ELEMENTWISE = (
    nn.Tanh,
    nn.ReLU,
    nn.SiLU,
    nn.GELU,
    nn.ELU,
    nn.LeakyReLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Identity,
    nn.Dropout,
)


class ChainStack(nn.Module):
    """C copies of a network whose parameters and buffers carry a leading axis C, each with a start of its own.

    `stack(x)` maps x (C, B, ...), a batch per chain, to outputs (C, B, ...); with `shared=True` one batch x (B, ...)
    goes to every chain. Dropout differs between chains.

    Args:
        net: a network, or a function that builds one. A network is copied and its copies are initialised anew, through
            `reset_parameters` of the modules that have it; parameters of modules without it start equal. A function is
            called C times, under a seed per chain.
        chains: C >= 1.
        seed, stack: name the starting points, together with the chain's number; the CPU's global RNG is left as it was,
            that of GPUs is seeded alike.
        method: "bmm" (batched matrix products; networks made of Linear and elementwise layers), "vmap", "loop", or
            "auto": bmm where it is possible, else a loop for one chain or on a CPU, the fastest in `scripts/bench.py
            chains`, and vmap on an accelerator, not measured yet. Never chosen by timing at run time, or two runs would
            differ.

    Raises ConfigError for chains < 1, and for "bmm" on a network that needs more.
    """

    def __init__(
        self,
        net: nn.Module | Callable[[], nn.Module],
        chains: int,
        *,
        seed: int = 0,
        stack: int = 0,
        shared: bool = False,
        method: Method = "auto",
    ):
        super().__init__()
        if chains < 1:
            raise ConfigError(f"chains must be at least 1, got {chains}")
        copies = [_start(net, derive_seed("start", seed, stack, c)) for c in range(chains)]
        self.net, self.chains, self.shared = copies[0], chains, shared
        self._layers = _layers(self.net)
        if method == "bmm" and self._layers is None:
            raise ConfigError(
                f"bmm needs a Sequential of Linear and elementwise layers, {type(self.net).__name__} is more"
            )
        self.method: Method = method
        _stack_into(self.net, copies)

    def forward(self, x: Tensor) -> Tensor:
        if not self.shared and x.shape[0] != self.chains:
            raise ConfigError(
                f"{self.chains} chains need x of shape ({self.chains}, batch, ...), got {tuple(x.shape)}; "
                "shared=True sends one batch to all"
            )
        method = self._resolve(x.device)
        if method == "bmm":
            return self._bmm(x)
        tensors = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        return self._vmap(tensors, x) if method == "vmap" else self._loop(tensors, x)

    def broadcast(self, x: Tensor) -> Tensor:
        """(C, B, ...) outputs for one batch x (B, ...) that all chains see."""
        if self.shared:
            return self(x)
        return self(x.unsqueeze(0).expand(self.chains, *x.shape))

    def _resolve(self, device: torch.device) -> str:
        if self.method != "auto":
            return self.method
        if self._layers is not None:
            return "bmm"
        return "loop" if self.chains == 1 or device.type == "cpu" else "vmap"

    def _bmm(self, x: Tensor) -> Tensor:
        if self.shared:
            x = x.expand(self.chains, *x.shape)
        for layer in self._layers or []:
            if isinstance(layer, nn.Flatten):
                x = x.flatten(2)
            elif not isinstance(layer, nn.Linear):
                x = layer(x)
            else:
                x = _linear(layer, x)
        return x

    def _vmap(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        def one(t: dict[str, Tensor], x: Tensor) -> Tensor:
            return call(self.net, t, x)

        x = x.contiguous()  # from channels_last, BatchNorm on a GPU asks for a layout that vmap does not know
        return vmap(one, in_dims=(0, None if self.shared else 0), randomness="different")(tensors, x)

    def _loop(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        # views whose backward is one kernel for all chains, none for one chain; that of v[c] is two for each
        each = {k: (v.squeeze(0),) if self.chains == 1 else v.unbind(0) for k, v in tensors.items()}
        outputs = [
            call(self.net, {k: v[c] for k, v in each.items()}, x if self.shared else x[c]) for c in range(self.chains)
        ]
        return torch.stack(outputs)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """x (C, B, ..., in) -> (C, B, ..., out), chain c with its own weight (out, in)."""
    if x.ndim > 3:
        return _linear(layer, x.flatten(1, -2)).unflatten(1, x.shape[1:-1])
    weight = layer.weight.transpose(1, 2)
    return torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(layer.bias.unsqueeze(1), x, weight)


def _start(net: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """One copy of the network, initialised under its own seed, the global RNG untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not isinstance(net, nn.Module):
            return net()
        fresh = copy.deepcopy(net)
        _reset(fresh)
        return fresh


def _reset(module: nn.Module) -> None:
    reset: Any = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
        return
    for child in module.children():
        _reset(child)


def _stack_into(net: nn.Module, copies: list[nn.Module]) -> None:
    """Replace the tensors of `net` by the stacked tensors of all copies. Tied parameters stay tied."""
    stacked: dict[int, nn.Parameter] = {}
    for path, module in list(net.named_modules()):
        others = [c.get_submodule(path) for c in copies]
        for name, p in list(module._parameters.items()):
            if p is not None:
                values = torch.stack([o._parameters[name].detach() for o in others])  # type: ignore[union-attr]
                module._parameters[name] = stacked.setdefault(
                    id(p), nn.Parameter(values, requires_grad=p.requires_grad)
                )
        for name, b in list(module._buffers.items()):
            if b is not None:
                module._buffers[name] = torch.stack([o._buffers[name] for o in others])  # type: ignore[misc]


def _layers(net: nn.Module) -> list[nn.Module] | None:
    """The layers in order if batched matrix products can run them, else None."""
    if type(net).forward is nn.Sequential.forward:
        parts = [_layers(child) for child in net._modules.values() if child is not None]  # children() skips repeats
        return None if any(p is None for p in parts) else [layer for p in parts for layer in p or []]
    flatten = isinstance(net, nn.Flatten) and net.start_dim == 1 and net.end_dim == -1
    return [net] if flatten or type(net) is nn.Linear or type(net) in _ELEMENTWISE else None
