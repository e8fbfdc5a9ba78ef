"""ChainStack: C independent copies of a network, run as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from bdl.batch import Inputs, count_items, inputs_of_call, map_tensors, structure
from bdl.engine import mlp_kernel
from bdl.engine.functional import call, replace_tensors
from bdl.engine.layers import differ_in_one_linear, hooked, mlp_layers
from bdl.engine.mlp_gradient import MLPGradient, supports
from bdl.engine.mlp_kernel import MLPKernel
from bdl.engine.starts import refuse_equal_starts, restore, started_copy, tensors_of
from bdl.errors import ConfigError
from bdl.frozen import FrozenMode, Only, freeze, frozen_tensors, hold_in_eval
from bdl.seeding import derive_seed

Method = Literal["auto", "bmm", "vmap", "loop"]


class ChainStack(nn.Module):
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
        only: patterns of names, such as "head.*": the chains differ in these parameters, and share the frozen rest,
            which keeps the values of the network. None for all parameters.
        start: "fresh" initialises every copy, "given" starts all chains at the values of the network. None means
            "fresh", and "given" under `only`.
        frozen: "eval" holds the modules of the frozen part in eval mode, so that its BatchNorm statistics stay and it
            drops nothing out. In "train" they follow the stack's mode, and their buffers belong to each chain.
        seed, stack: these and the chain's number decide its starting point. The global random stream of the CPU is
            restored afterwards; the streams of GPUs stay seeded with the last chain's seed.
        shared: True sends one batch to all chains, False one to each. None means False, until a `BayesianModule` trains
            the stack on a DataLoader, which has one batch for all.
        method: "bmm" multiplies batched matrices, for networks made of Linear and elementwise layers. "vmap" and "loop"
            run any network, and call hooks once per chain, with the tensors of that chain. "auto" takes bmm where it
            is possible. Otherwise it loops for one chain or on a CPU, which `scripts/bench.py chains` measured as the
            fastest, and uses vmap on an accelerator, where it was not measured. Timing at run time never decides,
            because then two runs would differ.

    Raises ConfigError for chains < 1, for a pattern that matches nothing, for "bmm" on a network with other layers or
    hooks, for x without the axis of chains, and for a network with random parameters that `reset_parameters` does not
    draw anew: its chains would start equal.
    """

    def __init__(
        self,
        net: nn.Module | Callable[[], nn.Module],
        chains: int,
        *,
        only: Only = None,
        start: Literal["fresh", "given"] | None = None,
        frozen: FrozenMode = "eval",
        seed: int = 0,
        stack: int = 0,
        shared: bool | None = None,
        method: Method = "auto",
    ):
        super().__init__()
        if chains < 1:
            raise ConfigError(f"chains must be at least 1, got {chains}")
        fresh = start == "fresh" or start is None and only is None
        copies = (started_copy(net, derive_seed("start", seed, stack, c), fresh) for c in range(chains))
        self.net, self.chains, self.shared = next(copies), chains, bool(shared)
        self._sampled_paths = freeze(dict(self.net.named_parameters()), only)
        self._frozen_mode: FrozenMode = frozen
        if frozen == "eval":
            hold_in_eval(self.net, self._sampled())
        self.frozen_names = frozenset(frozen_tensors(self.net, self._sampled()))
        each = [tensors_of(one, self.frozen_names) for one in (self.net, *copies)]
        if isinstance(net, nn.Module):
            if fresh:
                refuse_equal_starts(each, {name for name, p in self.net.named_parameters() if p.requires_grad})
            restore(self.net, net, self.frozen_names)
        self.follows_loader = shared is None
        self._layers = mlp_layers(self.net)
        if method == "bmm" and self._layers is None:
            raise ConfigError(
                f"bmm needs a Sequential of Linear and elementwise layers, and {type(self.net).__name__} has others "
                'or hooks: use method="auto"'
            )
        self.method: Method = method
        self._may_be_hooked = list(self.net.modules())
        stacked = {name: torch.stack([tensors[name] for tensors in each]) for name in each[0]}
        replace_tensors(self.net, stacked)  # tied parameters stay tied

    def train(self, mode: bool = True) -> ChainStack:
        """As torch's, but a frozen part that is held in eval mode stays in it."""
        super().train(mode)
        if self._frozen_mode == "eval":
            hold_in_eval(self.net, self._sampled())
        return self

    def _sampled(self) -> set[int]:
        return {id(p) for name, p in self.net.named_parameters() if name in self._sampled_paths}

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
                "shared=True, on the command line shared_batches=true, sends one batch to all"
            )

    def gradient(self, compiled: bool | Literal["auto"] = False) -> MLPGradient | MLPKernel | None:
        """The loss gradient by the written-out chain rule; None for networks that need autograd.

        These are networks with other layers than `MLPGradient` knows, with hooks, or compiled by torch.

        compiled: True or "auto" gives `MLPKernel` for the layers that it knows, True raises ConfigError where it cannot
        be built.
        """
        plain = not any(_watched(m) for m in self.modules()) and self._compiled_call_impl is None
        plain = plain and not self.frozen_names
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
        head = bool(self.frozen_names) and differ_in_one_linear(self.net, self.frozen_names)
        looped = self.chains == 1 or device.type == "cpu" and not head
        return "loop" if looped else "vmap"

    def _bmm(self, x: Tensor) -> Tensor:
        layers = list(self._layers or [])
        if self.shared:
            while layers and _same_for_all(layers[0]):  # once for all chains
                x = layers.pop(0)(x)
            x = x.expand(self.chains, *x.shape)
        for layer in layers:
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

        # Under channels_last, BatchNorm on a GPU asks for a layout that vmap does not know
        inputs = map_tensors(torch.Tensor.contiguous, inputs)
        axes = {name: None if name in self.frozen_names else 0 for name in tensors}
        return vmap(one, in_dims=(axes, None if self.shared else 0), randomness="different")(tensors, inputs)

    def _loop(self, tensors: dict[str, Tensor], inputs: Inputs) -> Tensor:
        # `unbind` has one backward kernel for all chains, squeeze none; v[c] would have two for each chain
        own = {k: v for k, v in tensors.items() if k not in self.frozen_names}
        common = {k: v for k, v in tensors.items() if k in self.frozen_names}
        each = {k: (v.squeeze(0),) if self.chains == 1 else v.unbind(0) for k, v in own.items()}
        outputs = [
            call(self.net, common | {k: v[c] for k, v in each.items()}, inputs if self.shared else _of_chain(inputs, c))
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
    bias = layer.bias if layer.bias is None or layer.bias.ndim == 1 else layer.bias.unsqueeze(1)
    if layer.weight.ndim == 2:  # frozen
        outputs = F.linear(x, layer.weight)
        return outputs if bias is None else outputs + bias
    weight = layer.weight.transpose(1, 2)
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)


def _same_for_all(layer: nn.Module) -> bool:
    """Whether a layer does the same in all chains: one that is frozen or has no parameters, and drops nothing out."""
    if isinstance(layer, nn.Linear):
        return layer.weight.ndim == 2 and (layer.bias is None or layer.bias.ndim == 1)
    return not list(layer.parameters()) and not (isinstance(layer, nn.Dropout) and layer.training)
