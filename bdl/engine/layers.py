"""The layers that many networks run together by batched matrix products: which they are, and a fast tanh."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor, nn

from bdl.cpu import cpu
from bdl.likelihoods.heads import ConstantOutputs
from bdl.torch_private import has_hooks

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
