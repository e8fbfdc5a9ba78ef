"""The part of a module that was sampled: the whole of it, or the submodule whose tensors the samples hold."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from torch import nn

from bdl.errors import StoreError
from bdl.functional import replace_tensors

Shapes = Mapping[str, Sequence[int]]  # of parameters and buffers by name, without the axis of chains


def sampled_part(module: nn.Module, shapes: Shapes | None) -> nn.Module:
    """The module or its submodule, in the order of `named_modules`, whose tensors have these names and shapes.

    It may be a stack of chains, of which it is then one plain copy. Without shapes it is the module itself.

    Raises StoreError where nothing fits; it names the first tensor that differs.
    """
    if shapes is None:
        return module
    wanted = {name: tuple(shape) for name, shape in shapes.items()}
    for part in module.modules():
        if part_shapes(part) == wanted:
            return part
    for part in module.modules():
        stacked = part_shapes(part)
        if stacked.keys() == wanted.keys() and all(stacked[k][1:] == wanted[k] for k in wanted):
            return _first_of(part)
    present = part_shapes(module)
    name = next(n for n in [*present, *wanted] if present.get(n) != wanted.get(n))
    there, here = (f"the shape {shapes[name]}" if name in shapes else "no place" for shapes in (wanted, present))
    raise StoreError(
        f"the run holds samples of another network: {name} has {there} in them, and {here} in {type(module).__name__}; "
        "pass the net of the run, or the module that holds it"
    )


def part_shapes(part: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters and buffers by name."""
    return {name: tuple(t.shape) for name, t in [*part.named_parameters(), *part.named_buffers()]}


def _first_of(stacked: nn.Module) -> nn.Module:
    """A plain copy of the first network of a stack."""
    tensors = [*stacked.named_parameters(), *stacked.named_buffers()]
    return replace_tensors(copy.deepcopy(stacked), {name: t.detach()[0].clone() for name, t in tensors})
