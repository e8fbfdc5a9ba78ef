"""Calls a network with other tensors, or in eval mode, and leaves it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from bdl.batch import Inputs, feed

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def drops_out(module: nn.Module) -> bool:
    """Whether a network has layers that make two losses of one batch differ."""
    return any(isinstance(m, DROPOUT) and m.p > 0 for m in module.modules())


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
    """The outputs of the network with tensors by path, one for every module and attribute that holds it."""
    return feed(net, inputs, lambda *args, **kwargs: functional_call(net, tensors, args, kwargs, tie_weights=False))


@contextmanager
def on_leaves(net: nn.Module, params: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """In the block the network has new leaves in place of these parameters, in the same memory. Yields the leaves."""
    leaves = {id(p): p.detach().requires_grad_() for p in params}
    places = [
        (module._parameters, name, p)
        for module in net.modules()
        for name, p in module._parameters.items()
        if id(p) in leaves
    ]
    for tensors, name, p in places:
        tensors[name] = leaves[id(p)]  # type: ignore[assignment]
    try:
        yield list(leaves.values())
    finally:
        for tensors, name, p in places:
            tensors[name] = p


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


@contextmanager
def watching(modules: Mapping[str, nn.Module], see: Callable[[str, Any, Any], Any]) -> Iterator[None]:
    """In the block, call see(name, arguments, outputs) after each forward. What it returns replaces the outputs."""
    hooks = [
        module.register_forward_hook(lambda _, given, outputs, name=name: see(name, given, outputs))
        for name, module in modules.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


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


def named_tensors(net: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name. A tied tensor has one name, the first of its paths."""
    first: dict[int, tuple[str, Tensor]] = {}
    for path, tensor in tensors_of_modules(net).items():
        first.setdefault(id(tensor), (path, tensor))
    return dict(first.values())


def replace_tensors(net: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Give a network these tensors in place of its parameters and buffers of these names. Tied ones stay tied.

    Returns the network itself. The tensors may have other shapes, such as a leading axis of networks. Parameters and
    buffers that have no tensor here stay.
    """
    name_of = {id(t): name for name, t in named_tensors(net).items()}
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
