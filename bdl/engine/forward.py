"""Forward: the outputs of many networks of one architecture. Training, averages, predictions and exports all use it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

from bdl.batch import (
    INPUT_ERRORS,
    Inputs,
    count_items,
    feed,
    map_tensors,
    part_of,
    refuse_outputs,
    refuse_unfit,
    tensors_in,
)
from bdl.cpu import cpu
from bdl.engine import mlp_library
from bdl.engine.functional import call_with, evaluating, named_tensors, tensors_of_modules, watching
from bdl.engine.prefix import FrozenPrefix
from bdl.engine.single_norms import single_norms
from bdl.errors import ConfigError
from bdl.likelihoods.heads import ConstantOutputs
from bdl.torch_private import has_hooks

TINY = 1 / 16  # root mean square of x below which 2 sigmoid(2x) - 1 has fewer digits than tanh
ELEMENTWISE = (
    nn.Tanh, nn.ReLU, nn.SiLU, nn.GELU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, nn.Identity, nn.Dropout,
)  # fmt: skip
BATCHED = (*ELEMENTWISE, nn.Linear, ConstantOutputs)
Method = Literal["auto", "bmm", "vmap", "loop", "branches"]
Tensors = Mapping[str, Tensor]  # parameters and buffers by name, with a leading axis of networks

# Numbers in the largest activation of the networks that run together.
LARGEST_CPU = 2**20  # 4 MiB: with more the caches miss, with less Python takes a larger share
LARGEST_GPU = 2**26  # 256 MiB

_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.Tanh: lambda h: tanh(h, h),
    nn.ReLU: torch.relu_,
    nn.Sigmoid: torch.sigmoid_,
}


def hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its class's `forward`, which batched matrix products would leave out.

    That is hooks, and a `forward` of its own, as libraries that move or quantise parts of a network give it.
    """
    return "forward" in vars(module) or has_hooks(module)


def mlp_layers(net: nn.Module) -> list[nn.Module] | None:
    """The layers in order if they are Linear, elementwise, Flatten or ConstantOutputs, without hooks, so that batched
    matrix products can run many such networks together; else None.

    >>> mlp_layers(nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), nn.Linear(3, 1)))
    [Linear(in_features=2, out_features=3, bias=True), Tanh(), Linear(in_features=3, out_features=1, bias=True)]
    """
    if hooked(net):
        return None
    if isinstance(net, nn.Sequential) and type(net).forward is nn.Sequential.forward:
        parts = [mlp_layers(child) for child in net]  # children() would skip a layer's second use
        return None if any(p is None for p in parts) else [layer for p in parts for layer in p or []]
    flatten = isinstance(net, nn.Flatten) and net.start_dim == 1 and net.end_dim == -1
    return [net] if flatten or type(net) in BATCHED else None


def differ_in_one_linear(net: nn.Module, shared: Container[str]) -> bool:
    """Whether the parameters and buffers whose names are not in `shared` are all those of one Linear layer."""
    others = {n.rpartition(".")[0] for n, _ in [*net.named_parameters(), *net.named_buffers()] if n not in shared}
    return len(others) == 1 and type(net.get_submodule(others.pop())) is nn.Linear


def tanh(x: Tensor, out: Tensor) -> Tensor:
    """tanh(x) into `out`, which may be x; x may be overwritten.

    On CPUs that are `slow_at_tanh` it is 2 sigmoid(2x) - 1, half of the time of torch's tanh or less. Its error is
    below 2e-7, beside 6e-8. Values that are small all over keep their digits, because they use torch's tanh.
    """
    flat = x.flatten()
    if not slow_at_tanh(x) or float(flat @ flat) < TINY**2 * len(flat):
        return torch.tanh(x, out=out)
    return torch.sigmoid(x.mul_(2), out=out).mul_(2).sub_(1)


def slow_at_tanh(x: Tensor) -> bool:
    """Whether 2 sigmoid(2x) - 1 is the faster tanh of x: on a CPU that is not Intel's. MKL is fast on these alone."""
    fast = torch.backends.mkl.is_available() and cpu().get("vendor_id") == "GenuineIntel"
    return x.device.type == "cpu" and x.dtype == torch.float32 and not fast


class Forward:
    """Maps the tensors (k, ...) of k networks and inputs to outputs (k, n, ...), in the mode in which `net` is.

    "bmm" multiplies batched matrices, for networks made of Linear and elementwise layers; "vmap" and "loop" run any
    network, and so does "branches", whose outputs are those of a loop: it names a way of training. "auto" takes bmm
    where it is possible. Otherwise it loops for one network or on a CPU, which `scripts/bench.py chains` measured as
    the fastest, and uses vmap on an accelerator, where `bench.py gpu` did.
    Timing at run time never decides, because then two runs would differ. Batched products sum in another order than one
    network alone: the last bits of float32 differ between the ways, and do not differ between two runs of one way.
    `evaluate` without gradients has mlp_kernel.c in place of bmm for small MLPs on a CPU where torch has one thread, in
    half of the time: their values then stay in the cache. It sums in an order of its own, too. `compile=false` forbids
    it.

    Args:
        net: the architecture, and the values of the tensors that a call does not give. It is not changed.
        method: "auto", or one of "bmm", "vmap", "loop" and "branches".
        shared: names of tensors (...) that all networks share; a mapping gives their values too, in place of those of
            `net`. What comes before the first tensors in which the networks differ runs once for all, unless each has a
            batch of its own: in vmap, where it has no axis of networks, and in a loop on a CPU by `FrozenPrefix`.

    Raises ConfigError for "bmm" on a network with other layers or with hooks.
    """

    def __init__(self, net: nn.Module, method: Method = "auto", shared: Collection[str] | Tensors = ()):
        self.net = net
        self.method: Method = method
        self._shared: Tensors = shared if isinstance(shared, Mapping) else {}
        originals = tensors_of_modules(net)
        self._name_of = {id(tensor): name for name, tensor in named_tensors(net).items()}
        self._paths = {path: self._name_of[id(tensor)] for path, tensor in originals.items()}
        self.device = next((t.device for t in originals.values()), torch.device("cpu"))
        self._head = bool(shared) and differ_in_one_linear(net, shared)
        self._layers = mlp_layers(net)
        idle = nn.Flatten | nn.Identity | nn.Dropout  # in eval mode
        self._pairs = mlp_library.pairs([layer for layer in self._layers or [] if not isinstance(layer, idle)])
        self._live = [p for linear, _ in self._pairs for p in (linear.weight, linear.bias) if p is not None]
        self._has_modes = self._layers is None or any(isinstance(layer, nn.Dropout) for layer in self._layers)
        if method == "bmm" and self._layers is None:
            raise ConfigError(
                f"bmm needs a Sequential of Linear and elementwise layers, and {type(net).__name__} has others or "
                'hooks: use method="auto"'
            )

    def way(self, networks: int) -> Method:
        """How so many networks run: "bmm", "vmap" or "loop"."""
        if self.method != "auto":
            return "loop" if self.method == "branches" else self.method
        if self._layers is not None:
            return "bmm"
        return "loop" if networks == 1 or self.device.type == "cpu" and not self._head else "vmap"

    def __call__(self, tensors: Tensors, inputs: Inputs, each: bool = False) -> Tensor:
        """The outputs (k, n, ...). inputs: (n, ...) for all networks, or with `each` (k, n, ...), a batch for each.

        Raises ConfigError for inputs that the network does not take, and for outputs that are no tensor.
        """
        try:
            return self._outputs(tensors, inputs, each)
        except INPUT_ERRORS as error:
            first = {name: t[:1] for name, t in tensors.items()}
            batch = map_tensors(lambda t: t[:1], inputs) if each else inputs
            refuse_unfit(self.net, inputs, error, lambda: self._loop(first, batch, each))
            raise

    def _outputs(self, tensors: Tensors, inputs: Inputs, each: bool) -> Tensor:
        way = self.way(len(next(iter(tensors.values()))))
        if way == "vmap":
            # Under channels_last, BatchNorm on a GPU asks for a layout that vmap does not know
            inputs, axes = map_tensors(torch.Tensor.contiguous, inputs), (0, 0 if each else None)
            with single_norms(self.net, self.device):
                return vmap(self._one, in_dims=axes, randomness="different")(dict(tensors), inputs)
        if way == "bmm" and isinstance(inputs, Tensor) and (x := self._rows(inputs, each)) is not None:
            return self._bmm(tensors, x, each)
        return self._loop(tensors, inputs, each)

    def evaluate(self, tensors: Tensors, inputs: Inputs) -> Tensor:
        """The outputs (k, n, ...) in eval mode, for inputs (n, ...)."""
        if (outputs := self._compiled(tensors, inputs)) is not None:
            return outputs
        with evaluating(self.net) if self._has_modes else nullcontext():  # entering it takes as long as a small MLP
            return self(tensors, inputs)

    def together(self, inputs: Inputs, items: int) -> int:
        """How many networks may run together on batches like these inputs (b, ...) of `items` items; at least 1."""
        one = map_tensors(lambda t: t.to(self.device), part_of(inputs, slice(0, 1)))
        largest, outputs = self._numbers(one)
        limit = LARGEST_CPU if self.device.type == "cpu" else LARGEST_GPU
        return max(1, limit // max(1, count_items(inputs) * largest, items * outputs))

    def items(self, inputs: Inputs, tensors: Tensors | None = None) -> int:
        """How many items like those of the inputs (b, ...) an accelerator may run at once; at least 1.

        tensors: (k, ...) of networks that are to run together; None for one network, the architecture's own.
        """
        one, together = map_tensors(lambda t: t.to(self.device), part_of(inputs, slice(0, 1))), 1
        if tensors is not None:
            networks = len(next(iter(tensors.values())))
            together = 1 if self.way(networks) == "loop" else networks
            tensors = {name: t[:1] for name, t in tensors.items()}
        return max(1, LARGEST_GPU // max(1, together * self._numbers(one, tensors)[0]))

    def _numbers(self, one: Inputs, tensors: Tensors | None = None) -> tuple[int, int]:
        """Numbers in the largest activation and in the outputs for the inputs (1, ...) of one item."""
        sizes = [sum(t.numel() for t in tensors_in(one))]

        def measure(name: str, given: object, outputs: object) -> None:
            if isinstance(outputs, Tensor):
                sizes.append(outputs.numel())

        with watching(dict(self.net.named_modules()), measure), evaluating(self.net):
            run = (lambda: feed(self.net, one)) if tensors is None else (lambda: self._loop(tensors, one, each=False))
            try:
                run()
            except INPUT_ERRORS as error:
                refuse_unfit(self.net, one, error, run)
                raise
        return sizes[-1] if self._head else max(sizes), sizes[-1]

    # ---- the three ways ---------------------------------------------------------------------------------------------

    def _rows(self, x: Tensor, each: bool) -> Tensor | None:
        """x as (..., features); None without features, or where a later Flatten would mix further axes of items."""
        layers, items = self._layers or [], 1 + each  # the axes of networks and items
        if layers and isinstance(layers[0], nn.Flatten):
            return x.flatten(items)
        flattens = any(isinstance(layer, nn.Flatten) for layer in layers)
        return x if x.ndim == items + 1 or x.ndim > items and not flattens else None

    def _bmm(self, tensors: Tensors, x: Tensor, each: bool) -> Tensor:
        """Activations are (k, features, n): softmax over the few classes of many items is ten times as fast there."""
        in_place = {} if torch.compiler.is_compiling() or torch.is_grad_enabled() else _IN_PLACE
        networks, items = len(next(iter(tensors.values()))), x.shape[int(each) : -1]
        h, alike = x.flatten(int(each), -2).mT, not each  # alike: all networks have the same values, h is (features, n)
        given = True  # h is the caller's, which stays as it is, also where a layer works in place
        for layer in self._layers or []:
            if isinstance(layer, nn.Linear):
                weight = self._value(tensors, layer.weight)  # (k, out, in), or (out, in) for all networks
                bias = None if layer.bias is None else self._value(tensors, layer.bias).unsqueeze(-1)
                if alike and weight.ndim == 3:  # one product for all networks
                    h, alike = (weight.flatten(0, 1) @ h).view(networks, -1, h.shape[-1]), False
                else:
                    h = torch.bmm(weight, h) if weight.ndim == 3 else weight @ h
                if bias is not None and bias.ndim == 3 and alike:
                    h, alike = h.expand(networks, -1, -1).contiguous(), False
                if bias is not None:
                    h.add_(bias)  # torch.baddbmm would first copy the bias to every item, which takes longer
                given = False
            elif isinstance(layer, ConstantOutputs):
                value = self._value(tensors, layer.value).unsqueeze(-1)  # (k, count, 1), or (count, 1)
                h = h.expand(networks, *h.shape) if alike else h
                h, alike, given = torch.cat([h, value.expand(networks, -1, h.shape[-1])], 1), False, False
            elif isinstance(layer, nn.Dropout) and layer.training:
                h = h.expand(networks, *h.shape) if alike else h
                h, alike, given = layer(h.clone()), False, False
            elif not isinstance(layer, nn.Dropout | nn.Identity | nn.Flatten):
                h, given = layer(h.clone()) if given else in_place.get(type(layer), layer)(h), False
        outputs = (h.expand(networks, *h.shape) if alike else h).mT
        return outputs.unflatten(1, items) if len(items) > 1 else outputs

    def _compiled(self, tensors: Tensors, x: Inputs) -> Tensor | None:
        """The outputs (k, n, ...) in eval mode by mlp_kernel.c; None where it does not run the network."""
        alone = torch.get_num_threads() == 1 and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if self.method != "auto" or not self._pairs or not alone or not isinstance(x, Tensor):
            return None
        rows, library = self._rows(x, each=False), mlp_library.for_evaluation()
        if rows is None or library is None:
            return None
        values = [self._value(tensors, parameter) for parameter in self._live]
        networks, items = len(next(iter(tensors.values()))), rows.shape[:-1]
        outputs = mlp_library.mlp_outputs(library, self._pairs, values, rows.flatten(0, -2), networks)
        return None if outputs is None else outputs.mT.unflatten(1, items) if len(items) > 1 else outputs.mT

    def _value(self, tensors: Tensors, parameter: Tensor) -> Tensor:
        """The tensor that stands for a parameter of the network."""
        name = self._name_of[id(parameter)]
        return tensors[name] if name in tensors else self._shared.get(name, parameter)

    def _loop(self, tensors: Tensors, inputs: Inputs, each: bool) -> Tensor:
        # `unbind` has one backward kernel for all networks, squeeze none; v[i] would have two for each network
        values = [(v.squeeze(0),) if len(v) == 1 else v.unbind(0) for v in tensors.values()]
        networks = [dict(zip(tensors, one, strict=True)) for one in zip(*values, strict=True)]
        return torch.stack(list(self.in_turn(networks, inputs, each)))

    def in_turn(self, networks: Sequence[dict[str, Tensor]], inputs: Inputs, each: bool) -> Iterator[Tensor]:
        """The outputs (n, ...) of one network after another, which runs when they are asked for."""
        batch = lambda i: map_tensors(lambda t: t[i], inputs) if each else inputs  # noqa: E731
        apart = [path for path, name in self._paths.items() if name in networks[0]]
        if each or len(networks) == 1 or len(apart) == len(self._paths) or self.device.type != "cpu":
            yield from (self._one(one, batch(i)) for i, one in enumerate(networks))
            return
        with FrozenPrefix(self.net, apart).shared() as run:
            for one in networks:
                yield run(lambda one=one: self._one(one, inputs))

    def _one(self, tensors: dict[str, Tensor], inputs: Inputs) -> Tensor:
        """The outputs of one network."""
        given = {**self._shared, **tensors}
        full = {path: given[name] for path, name in self._paths.items() if name in given}
        return refuse_outputs(self.net, call_with(self.net, full, inputs))
