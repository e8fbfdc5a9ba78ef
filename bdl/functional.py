"""Calls a network with other tensors than its own, or in eval mode, and leaves the network as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def call(net: nn.Module, tensors: Mapping[str, Tensor], *inputs: Any) -> Any:
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
    return functional_call(net, full, inputs, tie_weights=False)


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
