"""Running a network with tensors that are not its own, and leaving it as it was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def call(net: nn.Module, tensors: Mapping[str, Tensor], *inputs: Any) -> Any:
    """The outputs of the network with its parameters and buffers replaced by name; those it ties stay tied.

    Ties are resolved here: where one module stands in two places, `functional_call(tie_weights=True)` leaves the
    replaced tensors in the network.
    """
    own = _tensors_of_modules(net)
    given = {id(own[name]): value for name, value in tensors.items() if name in own}
    full = {name: given[id(value)] for name, value in own.items() if id(value) in given}
    return functional_call(net, full, inputs, tie_weights=False)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every submodule has the mode of its own back."""
    modes = [(m, m.training) for m in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _tensors_of_modules(net: nn.Module) -> dict[str, Tensor]:
    """Every module's own tensors by one name for each module, tied ones under the name of each that holds them."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in net.named_modules()
        for held in (module._parameters, module._buffers)
        for name, value in held.items()
        if value is not None
    }
