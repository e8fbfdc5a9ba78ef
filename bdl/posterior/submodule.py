"""The submodule whose tensors the samples hold, found in the module that holds it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from bdl.engine.functional import named_tensors, replace_tensors
from bdl.errors import StoreError
from bdl.posterior.frozen import frozen_entry


def sampled_part(module: nn.Module, target: Mapping[str, Any]) -> nn.Module:
    """The module or its submodule, in the order of `named_modules`, whose tensors are those of target.json.

    These are the tensors of the samples and of the frozen part. The module may be a stack of chains, of which it is
    then one plain copy. It is the module itself where target.json names no shapes.

    Raises StoreError where nothing fits; it names the first tensor that differs.
    """
    if target.get("shapes") is None:
        return module
    frozen = frozen_entry(target).get("shapes", {})
    wanted = {name: tuple(shape) for name, shape in {**target["shapes"], **frozen}.items()}
    shapes_of = {part: {name: tuple(t.shape) for name, t in named_tensors(part).items()} for part in module.modules()}
    for part, shapes in shapes_of.items():
        if shapes == wanted:
            return part
    for part, shapes in shapes_of.items():
        if shapes.keys() == wanted.keys() and all(
            shapes[k][1:] == wanted[k] or k in frozen and shapes[k] == wanted[k] for k in wanted
        ):
            first = {k: t.detach()[0].clone() for k, t in named_tensors(part).items() if tuple(t.shape) != wanted[k]}
            return replace_tensors(copy.deepcopy(part), first)
    present = shapes_of[module]
    name = next(n for n in [*present, *wanted] if present.get(n) != wanted.get(n))
    there, here = (f"the shape {shapes[name]}" if name in shapes else "no place" for shapes in (wanted, present))
    raise StoreError(
        f"the run holds samples of another network: {name} has {there} in them, and {here} in {type(module).__name__}; "
        "pass the net of the run, or the module that holds it"
    )
