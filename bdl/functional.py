"""Calls a network with other tensors, or in eval mode, and leaves it as it was; lists the layers of an MLP."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.module import _has_any_global_hook

from bdl.batch import Inputs, arguments, refuse_unbound
from bdl.cpu import cpu
from bdl.likelihoods.heads import ConstantOutputs

TINY = 1 / 16  # root mean square of x below which 2 sigmoid(2x) - 1 has fewer digits than tanh
ELEMENTWISE = (
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
BATCHED = (*ELEMENTWISE, nn.Linear, ConstantOutputs)


class Stack(nn.Module):
    """C copies of a network: `net` is the network, whose tensors carry a leading axis of C = `chains` copies.

    The tensors of `frozen_names`, names in the plain network, are the exception: all copies share them.
    """

    net: nn.Module
    chains: int
    frozen_names: frozenset[str] = frozenset()


def call(net: nn.Module, tensors: Mapping[str, Tensor], inputs: Inputs) -> Any:
    """The outputs of the network with its parameters and buffers replaced by name. Tied tensors stay tied.

        >>> import torch
        >>> double = {"weight": torch.tensor([[2.0]]), "bias": torch.zeros(1)}
        >>> call(torch.nn.Linear(1, 1), double, torch.tensor([[3.0]]))
        tensor([[6.]])

    This function resolves ties itself: where one module stands in two places, `functional_call(tie_weights=True)`
    would leave the replaced tensors in the network.
    """
    originals = tensors_of_modules(net)
    given = {id(originals[name]): value for name, value in tensors.items() if name in originals}
    full = {name: given[id(value)] for name, value in originals.items() if id(value) in given}
    return call_with(net, full, inputs)


def call_with(net: nn.Module, tensors: dict[str, Tensor], inputs: Inputs) -> Any:
    """The outputs of the network with tensors by path, one for every module and attribute that holds it.

    Raises ConfigError, with the structure of the inputs, where the network takes others.
    """
    args, kwargs = arguments(inputs)
    try:
        return functional_call(net, tensors, args, kwargs, tie_weights=False)
    except TypeError as error:
        refuse_unbound(net, inputs)
        raise error


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Run the block in eval mode, then give every submodule its previous mode back."""
    modes = [(m, m.training) for m in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def tensors_of_modules(net: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by path. A tied tensor appears once for every module and attribute that holds it.

    A module that stands in several places is listed once, under its first path.
    """
    return {
        f"{path}.{name}" if path else name: value
        for path, module in net.named_modules()
        for tensors in (module._parameters, module._buffers)  # named_parameters() takes three times as long
        for name, value in tensors.items()
        if value is not None
    }


def hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its class's `forward`, which batched matrix products would leave out.

    That is hooks, those of all modules included, and a `forward` of its own, as libraries that move or quantise parts
    of a network give it.
    """
    return bool(
        "forward" in vars(module)
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _has_any_global_hook()
    )


def replace_tensors(net: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Give a network these tensors in place of its parameters and buffers of these names. Tied ones stay tied.

    Returns the network itself. The tensors may have other shapes, such as a leading axis of networks. Parameters and
    buffers that have no tensor here stay.
    """
    name_of = {id(t): name for name, t in [*net.named_parameters(), *net.named_buffers()]}
    parameters: dict[str, nn.Parameter] = {}
    for path, original in tensors_of_modules(net).items():
        module, attribute = net.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        name = name_of[id(original)]
        if name not in tensors:
            continue
        if isinstance(original, nn.Parameter):
            new = nn.Parameter(tensors[name], requires_grad=original.requires_grad)
            setattr(module, attribute, parameters.setdefault(name, new))
        else:
            setattr(module, attribute, tensors[name])
    return net


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
