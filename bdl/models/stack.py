"""ChainStack: C independent copies of a network, run as one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

from bdl.batch import Inputs, count_items, inputs_of_call, map_tensors, structure
from bdl.errors import ConfigError
from bdl.functional import Stack, call, hooked, mlp_layers, replace_tensors
from bdl.models import mlp_kernel
from bdl.models.mlp_gradient import MLPGradient, supports
from bdl.models.mlp_kernel import MLPKernel
from bdl.seeding import derive_seed

Method = Literal["auto", "bmm", "vmap", "loop"]


class ChainStack(Stack):
    """C copies of a network whose parameters and buffers carry a leading axis C. Every copy has its own start.

    `stack(x)` maps x (C, B, ...), one batch per chain, to outputs (C, B, ...). With `shared=True` every chain sees the
    same batch x (B, ...). Networks with several inputs take them in order or by name. Dropout differs between chains.

        >>> import torch
        >>> from bdl import ChainStack
        >>> stack = ChainStack(torch.nn.Linear(3, 2), chains=4)
        >>> stack.net.weight.shape
        torch.Size([4, 2, 3])
        >>> stack(torch.zeros(4, 5, 3)).shape
        torch.Size([4, 5, 2])
        >>> stack.broadcast(torch.zeros(5, 3)).shape
        torch.Size([4, 5, 2])

    Args:
        net: a network, or a function that builds one. A network is copied, and `reset_parameters` initialises every
            copy again. A function is called C times, under one seed per chain.
        chains: C >= 1.
        seed, stack: these and the chain's number decide its starting point. The global random stream of the CPU is
            restored afterwards; the streams of GPUs stay seeded with the last chain's seed.
        shared: True sends one batch to all chains, False one to each. None means False, until a `BayesianModule` trains
            the stack on a DataLoader, which has one batch for all.
        method: "bmm" multiplies batched matrices, for networks made of Linear and elementwise layers. "vmap" and "loop"
            run any network, and call hooks once per chain, with the tensors of that chain. "auto" takes bmm where it
            is possible. Otherwise it loops for one chain or on a CPU, which `scripts/bench.py chains` measured as the
            fastest, and uses vmap on an accelerator, where it was not measured. Timing at run time never decides,
            because then two runs would differ.

    Raises ConfigError for chains < 1, for "bmm" on a network with other layers or with hooks, for x without the axis of
    chains, and for a network with random parameters that `reset_parameters` does not draw anew: its chains would start
    equal.
    """

    def __init__(
        self,
        net: nn.Module | Callable[[], nn.Module],
        chains: int,
        *,
        seed: int = 0,
        stack: int = 0,
        shared: bool | None = None,
        method: Method = "auto",
    ):
        super().__init__()
        if chains < 1:
            raise ConfigError(f"chains must be at least 1, got {chains}")
        copies = [_start(net, derive_seed("start", seed, stack, c)) for c in range(chains)]
        if isinstance(net, nn.Module):
            _refuse_equal_starts(copies)
        self.net, self.chains, self.shared = copies[0], chains, bool(shared)
        self.follows_loader = shared is None
        self._layers = mlp_layers(self.net)
        if method == "bmm" and self._layers is None:
            raise ConfigError(
                f"bmm needs a Sequential of Linear and elementwise layers, and {type(self.net).__name__} has others "
                'or hooks: use method="auto"'
            )
        self.method: Method = method
        self._may_be_hooked = list(self.net.modules())
        _stack_into(self.net, copies)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        inputs = inputs_of_call(args, kwargs)
        self.check(inputs)
        method = self._resolve(next(self.net.parameters()).device)
        if method == "bmm" and isinstance(inputs, Tensor):
            return self._bmm(inputs)
        tensors = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        return self._vmap(tensors, inputs) if method == "vmap" else self._loop(tensors, inputs)

    def check(self, inputs: Inputs) -> None:
        """Raise ConfigError for inputs without the axis of chains, unless one batch is for all chains."""
        if not self.shared and count_items(inputs) != self.chains:
            raise ConfigError(
                f"{self.chains} chains need x of shape ({self.chains}, batch, ...), got {_shapes(inputs)}; "
                "shared=True sends one batch to all"
            )

    def gradient(self, compiled: bool | Literal["auto"] = False) -> MLPGradient | MLPKernel | None:
        """The loss gradient by the written-out chain rule; None for networks that need autograd.

        These are networks with other layers than `MLPGradient` knows, with hooks, or compiled by torch.

        compiled: True or "auto" gives `MLPKernel` for the layers that it knows, True raises ConfigError where it cannot
        be built.
        """
        plain = not any(_watched(m) for m in self.modules()) and self._compiled_call_impl is None
        if self._layers is None or self.method not in ("auto", "bmm") or not plain or not supports(self._layers):
            return None
        eager = MLPGradient(self._layers, self.chains)
        return mlp_kernel.compiled(eager, required=compiled is True) if compiled else eager

    def broadcast(self, *args: Any, **kwargs: Any) -> Tensor:
        """(C, B, ...) outputs for one batch x (B, ...) that all chains see."""
        if self.shared:
            return self(*args, **kwargs)
        args, kwargs = map_tensors(lambda t: t.unsqueeze(0).expand(self.chains, *t.shape), (args, kwargs))
        return self(*args, **kwargs)

    def _resolve(self, device: torch.device) -> str:
        batched = self._layers is not None and not any(map(hooked, self._may_be_hooked))
        if self.method == "bmm" and not batched:
            raise ConfigError('bmm would not call the hooks of this network: use method="auto", or remove them')
        if self.method != "auto":
            return self.method
        if batched:
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

    def _vmap(self, tensors: dict[str, Tensor], inputs: Inputs) -> Tensor:
        def one(t: dict[str, Tensor], inputs: Inputs) -> Tensor:
            return call(self.net, t, inputs)

        # under channels_last, BatchNorm on a GPU asks for a layout that vmap does not know
        inputs = map_tensors(torch.Tensor.contiguous, inputs)
        return vmap(one, in_dims=(0, None if self.shared else 0), randomness="different")(tensors, inputs)

    def _loop(self, tensors: dict[str, Tensor], inputs: Inputs) -> Tensor:
        # unbind has one backward kernel for all chains, squeeze none; v[c] would have two for each chain
        each = {k: (v.squeeze(0),) if self.chains == 1 else v.unbind(0) for k, v in tensors.items()}
        outputs = [
            call(self.net, {k: v[c] for k, v in each.items()}, inputs if self.shared else _of_chain(inputs, c))
            for c in range(self.chains)
        ]
        return torch.stack(outputs)


def _of_chain(inputs: Inputs, chain: int) -> Inputs:
    return map_tensors(lambda t: t[chain], inputs)


def _shapes(inputs: Inputs) -> str:
    return str(tuple(inputs.shape)) if isinstance(inputs, Tensor) else structure(inputs)


def _watched(module: nn.Module) -> bool:
    """Whether something watches or changes what goes through a module or its parameters."""
    return hooked(module) or any(p._backward_hooks for p in module.parameters(recurse=False))


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """x (C, B, ..., in) -> (C, B, ..., out); chain c multiplies with row c of the weight (C, out, in)."""
    if x.ndim > 3:
        return _linear(layer, x.flatten(1, -2)).unflatten(1, x.shape[1:-1])
    weight = layer.weight.transpose(1, 2)
    return torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(layer.bias.unsqueeze(1), x, weight)


def _start(net: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """One copy of the network, initialised under the seed. The CPU's global random stream is restored."""
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
    if isinstance(module, nn.MultiheadAttention):
        module._reset_parameters()  # torch's name of what other layers call reset_parameters


def _refuse_equal_starts(copies: list[nn.Module]) -> None:
    """Raise ConfigError for a sampled parameter of random values, not of one constant, that all copies share."""
    if len(copies) == 1:
        return
    second = dict(copies[1].named_parameters())
    for name, first in copies[0].named_parameters():
        values = first.detach()
        if first.requires_grad and torch.equal(values, second[name]) and bool((values != values.flatten()[:1]).any()):
            raise ConfigError(
                f"{name} would start equal in all chains, because its module has no reset_parameters that draws it: "
                "give ChainStack a function that builds the network in place of the network"
            )


def _stack_into(net: nn.Module, copies: list[nn.Module]) -> None:
    """Replace the tensors of `net` by the stacked tensors of all copies. Tied parameters stay tied."""
    each = [{**dict(one.named_parameters()), **dict(one.named_buffers())} for one in copies]
    replace_tensors(net, {name: torch.stack([tensors[name].detach() for tensors in each]) for name in each[0]})
