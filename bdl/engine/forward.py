"""Forward: the outputs of many networks of one architecture for the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

from bdl.batch import Inputs, count_items, feed, map_tensors, part_of, tensors_in
from bdl.engine.functional import call_with, evaluating, tensors_of_modules
from bdl.engine.layers import differ_in_one_linear, mlp_layers, tanh
from bdl.likelihoods.heads import ConstantOutputs

Method = Literal["auto", "bmm", "vmap", "loop"]
Tensors = Mapping[str, Tensor]  # parameters and buffers by name, with a leading axis of networks

# Numbers in the largest activation of the networks that run together.
LARGEST_CPU = 2**20  # 4 MiB: with more the caches miss, with less Python takes a larger share
LARGEST_GPU = 2**26  # 256 MiB

_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.Tanh: lambda h: tanh(h, h),
    nn.ReLU: torch.relu_,
    nn.Sigmoid: torch.sigmoid_,
}


class Forward:
    """Maps the tensors (k, ...) of k networks and inputs (n, ...) to outputs (k, n, ...), in eval mode.

    The choice is that of `ChainStack`: batched matrix products for Linear and elementwise layers; otherwise a loop on a
    CPU, and vmap on an accelerator. Batched products sum in another order than one network alone, and how many
    networks run together depends on their size and on the number of items: the last bits of float32 differ between the
    ways, and do not differ between two runs of the same way.

    Args:
        net: the architecture. Its values are neither used nor changed.
        method: "auto", or one of "bmm", "vmap" and "loop".
        fixed: tensors (...) by name that all networks share, in the place of those of `net`. Where the networks differ
            in one Linear layer alone, vmap runs what comes before it once for all.
    """

    def __init__(self, net: nn.Module, method: Method = "auto", fixed: Mapping[str, Tensor] | None = None):
        self.net, self.fixed = net, fixed or {}
        originals = tensors_of_modules(net)
        name_of = {id(t): name for name, t in [*net.named_parameters(), *net.named_buffers()]}
        self._name_of = name_of  # tied tensors have one name
        self._paths = {path: name_of[id(t)] for path, t in originals.items() if id(t) in name_of}
        self.device = next((t.device for t in originals.values()), torch.device("cpu"))
        self._head = bool(self.fixed) and differ_in_one_linear(net, self.fixed)
        layers = mlp_layers(net)
        self._layers: Sequence[nn.Module] = [] if layers is None else layers
        if method == "auto":
            looped = self.device.type == "cpu" and not self._head
            method = "bmm" if layers is not None else "loop" if looped else "vmap"
        self.method: Method = method

    def __call__(self, tensors: Tensors, inputs: Inputs) -> Tensor:
        if self.method == "bmm" and isinstance(inputs, Tensor) and (x := self._rows(inputs)).ndim == 2:
            return self._bmm(tensors, x)
        with evaluating(self.net):
            return self._vmap(tensors, inputs) if self.method == "vmap" else self._loop(tensors, inputs)

    def together(self, inputs: Inputs, items: int) -> int:
        """How many networks may run together on batches like these inputs (b, ...) of `items` items; at least 1."""
        one = map_tensors(lambda t: t.to(self.device), part_of(inputs, slice(0, 1)))
        largest, outputs = self._numbers(one)
        limit = LARGEST_CPU if self.device.type == "cpu" else LARGEST_GPU
        return max(1, limit // max(1, count_items(inputs) * largest, items * outputs))

    def _numbers(self, one: Inputs) -> tuple[int, int]:
        """Numbers in the largest activation and in the outputs for the inputs (1, ...) of one item."""
        sizes = [sum(t.numel() for t in tensors_in(one))]

        def measure(module: nn.Module, inputs: object, outputs: object) -> None:
            if isinstance(outputs, Tensor):
                sizes.append(outputs.numel())

        handles = [module.register_forward_hook(measure) for module in self.net.modules()]
        try:
            with evaluating(self.net):
                feed(self.net, one)
        finally:
            for handle in handles:
                handle.remove()
        return sizes[-1] if self._head else max(sizes), sizes[-1]

    def _rows(self, x: Tensor) -> Tensor:
        return x.flatten(1) if self._layers and isinstance(self._layers[0], nn.Flatten) else x

    def _bmm(self, tensors: Tensors, x: Tensor) -> Tensor:
        """Activations are (k, features, n): softmax over the few classes of many items is ten times as fast there."""
        in_place = {} if torch.compiler.is_compiling() else _IN_PLACE  # an exported tanh may not look at its input
        networks, shared = len(next(iter(tensors.values()))), True  # until the first Linear, all networks share x
        h = x.mT
        for layer in self._layers:
            if isinstance(layer, nn.Linear):
                weight = self._value(tensors, layer.weight)  # (k, out, in), or (out, in) for all networks
                bias = None if layer.bias is None else self._value(tensors, layer.bias).unsqueeze(-1)
                if weight.ndim == 2:
                    h = weight @ h if bias is None else weight @ h + bias
                    shared = shared and h.ndim == 2
                    continue
                bias = None if bias is None else bias.expand(networks, -1, 1)
                if shared:  # one product for all networks
                    flat = weight.flatten(0, 1)
                    h, shared = (flat @ h).view(networks, -1, x.shape[0]), False
                else:
                    h = torch.bmm(weight, h)
                if bias is not None:
                    h.add_(bias)  # torch.baddbmm would first copy the bias to every item, which takes longer
            elif isinstance(layer, ConstantOutputs):
                value = self._value(tensors, layer.value).unsqueeze(-1)  # (k, count, 1), or (count, 1)
                h = h.expand(networks, *h.shape) if shared else h
                h, shared = torch.cat([h, value.expand(networks, -1, h.shape[-1])], 1), False
            elif not isinstance(layer, nn.Dropout | nn.Identity | nn.Flatten):
                # x stays as it is, also where a layer works in place
                h = layer(h.clone()) if shared else in_place.get(type(layer), layer)(h)
        return (h.expand(networks, *h.shape) if shared else h).mT

    def _value(self, tensors: Tensors, parameter: Tensor) -> Tensor:
        """The tensor that stands for a parameter of the network."""
        name = self._name_of[id(parameter)]
        return tensors[name] if name in tensors else self.fixed.get(name, parameter)

    def _vmap(self, tensors: Tensors, inputs: Inputs) -> Tensor:
        # Under channels_last, BatchNorm on a GPU asks for a layout that vmap does not know
        inputs = map_tensors(torch.Tensor.contiguous, inputs)
        return vmap(lambda t: self._one(t, inputs))(dict(tensors))

    def _loop(self, tensors: Tensors, inputs: Inputs) -> Tensor:
        names, values = list(tensors), [v.unbind(0) for v in tensors.values()]
        each = zip(*values, strict=True)
        return torch.stack([self._one(dict(zip(names, one, strict=True)), inputs) for one in each])

    def _one(self, tensors: Tensors, inputs: Inputs) -> Tensor:
        """The outputs of one network. `bdl.engine.functional.call` would look the ties up again every time."""
        given = {**self.fixed, **tensors}
        full = {path: given[name] for path, name in self._paths.items() if name in given}
        return call_with(self.net, full, inputs)
