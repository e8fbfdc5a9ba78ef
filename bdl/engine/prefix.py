"""The frozen prefix of networks that run one after another: what comes before their own parameters runs once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bdl.batch import tensors_in
from bdl.torch_private import has_hooks, in_function_transform, is_compiled, versions

PLAIN_TYPES = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class LayerCall:
    """A call of a module: what it was given and has returned, and the versions of these tensors then."""

    given: Any
    versions: list[int]
    returned: Any
    returned_versions: list[int]

    def gives(self, given: Any) -> bool:
        """Whether the same call returns the same, because no tensor of it has been changed in place since."""
        unchanged = (
            versions(tensors_in(self.given)) == self.versions
            and versions(tensors_in(self.returned)) == self.returned_versions
        )
        return unchanged and alike(self.given, given)


class FrozenPrefix:
    """Runs the frozen modules before the first parameters in which the networks differ once, for the first network.

    The other networks take the outputs of the first one where a module is called with the same values. The outputs, and
    so the gradients, are those that each network would compute, to the bit. A module runs for each network by itself if
    it draws random numbers, as a dropout in training mode does, because the noise of each network is its own; if it, or
    a module in it, has hooks; and after a module that has parameters or buffers of the networks' own was called.

    Args:
        net: the architecture.
        paths: paths of the parameters and buffers in which the networks differ.
    """

    def __init__(self, net: nn.Module, paths: Collection[str]):
        owners = {path.rpartition(".")[0] for path in paths}
        self._owners = [module for path, module in net.named_modules() if path in owners]
        self._frozen: list[nn.Module] = []
        if not any(map(is_compiled, net.modules())):
            self._find(net, set(map(id, self._owners)))
        self._calls: dict[tuple[int, int], LayerCall] = {}  # by the id of the module and the number of its call
        self._counts: dict[int, int] = {}  # calls of each module by this network
        self._first, self._before = True, True  # whether this is the first network, and the prefix has not ended
        self._inside = False  # whether a module around this one is being recorded

    def _find(self, module: nn.Module, owners: Collection[int]) -> bool:
        """Whether the module and all in it are frozen; those that are and have parameters go into the list."""
        inside = [self._find(child, owners) for child in module.children()]
        plain = not ("forward" in vars(module) or has_hooks(module))
        frozen = plain and id(module) not in owners and all(inside)
        if frozen and next(module.parameters(), None) is not None:
            self._frozen.append(module)
        return frozen

    @contextmanager
    def shared(self) -> Iterator[Callable[[Callable[[], Tensor]], Tensor]]:
        """In the block, what is yielded runs one network after another: it calls the function that is given to it."""
        forwards = {module: vars(module).get("forward") for module in [*self._frozen, *self._owners]}
        if self._frozen and possible():
            for module in self._frozen:
                vars(module)["forward"] = self._once(module, module.forward)
            for module in self._owners:
                vars(module)["forward"] = self._end(module.forward)
        try:
            yield self._run
        finally:
            for module, forward in forwards.items():
                vars(module).pop("forward", None)
                if forward is not None:
                    vars(module)["forward"] = forward

    def _run(self, network: Callable[[], Tensor]) -> Tensor:
        self._counts, self._before = {}, True
        outputs = network()
        self._first = False
        return outputs

    def _end(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def ending(*args: Any, **kwargs: Any) -> Any:
            self._before = False
            return forward(*args, **kwargs)

        return ending

    def _once(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def once(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not self._before:
                return forward(*args, **kwargs)
            number = self._counts[id(module)] = self._counts.get(id(module), 0) + 1
            key, given = (id(module), number), (args, kwargs)
            if self._first:
                return self._record(key, given, forward)
            call = self._calls.get(key)
            return call.returned if call is not None and call.gives(given) else forward(*args, **kwargs)

        return once

    def _record(self, key: tuple[int, int], given: Any, forward: Callable[..., Any]) -> Any:
        if not all(map(comparable, tensors_in(given))):
            return forward(*given[0], **given[1])
        before, stream, self._inside = versions(tensors_in(given)), torch.get_rng_state(), True
        try:
            returned = forward(*given[0], **given[1])
        finally:
            self._inside = False
        pure = self._before and versions(tensors_in(given)) == before and torch.equal(stream, torch.get_rng_state())
        if pure and constant(returned) and wants_gradient(returned) <= wants_gradient(given):
            self._calls[key] = LayerCall(given, before, returned, versions(tensors_in(returned)))
        return returned


def possible() -> bool:
    """Whether values can be compared here: not where torch traces or transforms the code."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    return not (traced or in_function_transform())


def comparable(tensor: Tensor) -> bool:
    """Whether torch counts the changes of the tensor, which has values of its own."""
    return not tensor.is_inference() and tensor.layout == torch.strided


def wants_gradient(value: Any) -> bool:
    """Whether a tensor in a value depends on something that requires a gradient."""
    return any(tensor.requires_grad for tensor in tensors_in(value))


def constant(value: Any) -> bool:
    """Whether several networks may have the value in common: tensors, plain values and tuples of them."""
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(constant, value))
    return comparable(value) if isinstance(value, Tensor) else type(value) in PLAIN_TYPES


def alike(a: Any, b: Any) -> bool:
    """Whether two values are the same: tensors, plain values, and tuples, lists and dicts of them."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        same = a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and comparable(b)
        return a is b or same and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(value, b[key]) for key, value in a.items())
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(alike, a, b))
    return type(a) in PLAIN_TYPES and a == b
