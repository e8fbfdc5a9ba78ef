"""The submodule whose tensors the samples hold, found in the module that holds it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from bdl.engine.functional import replace_tensors
from bdl.errors import StoreError

Shapes = Mapping[str, Sequence[int]]  # of parameters and buffers by name, without the axis of chains


def sampled_part(module: nn.Module, target: Mapping[str, Any]) -> nn.Module:
    """The module or its submodule, in the order of `named_modules`, whose tensors are those of target.json.

    These are the tensors of the samples and of the frozen part. The module may be a stack of chains, of which it is
    then one plain copy. It is the module itself where target.json names no shapes.

    Raises StoreError where nothing fits; it names the first tensor that differs.
    """
    if (shapes := target.get("shapes")) is None:
        return module
    frozen = (target.get("frozen") or {"shapes": {}})["shapes"]
    shapes = {**shapes, **frozen}
    wanted = {name: tuple(shape) for name, shape in shapes.items()}
    for part in module.modules():
        if part_shapes(part) == wanted:
            return part
    for part in module.modules():
        stacked = part_shapes(part)
        if stacked.keys() == wanted.keys() and all(
            stacked[k][1:] == wanted[k] or k in frozen and stacked[k] == wanted[k] for k in wanted
        ):
            return _first_of(part, wanted)
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


def _first_of(stacked: nn.Module, wanted: Shapes) -> nn.Module:
    """A plain copy of the first network of a stack, whose tensors have the wanted shapes."""
    tensors = [*stacked.named_parameters(), *stacked.named_buffers()]
    first = {name: t.detach()[0].clone() for name, t in tensors if tuple(t.shape) != wanted[name]}
    return replace_tensors(copy.deepcopy(stacked), first)
