"""The numbers of a step in tensors that stay where they are, so that kernels of a graph may read them."""

from __future__ import annotations

import torch
from torch import Tensor

from bdl.samplers.dynamics.base import Scalar


class HeldNumbers:
    """Tensors (C,) and numbers by name, on the device and in the type of `like` (C,), a tensor of energies."""

    def __init__(self, like: Tensor):
        self._like = like
        self._tensors: dict[str, Tensor] = {}
        self._values: dict[str, Scalar] = {}  # what the tensors hold, of numbers and of tensors on the CPU

    def serves(self, energy: Tensor) -> bool:
        """Whether kernels on these energies (C,) may read the tensors."""
        return self._like.device == energy.device

    def copy(self, name: str, value: Tensor) -> Tensor:
        """The tensor of this name, with the numbers of one on its device."""
        return self._place(name, each=True).copy_(value)

    def uniform(self, name: str, generator: torch.Generator) -> Tensor:
        """The tensor of this name, with uniform numbers: those of `torch.rand`."""
        return self._place(name, each=True).uniform_(generator=generator)

    def put(self, name: str, value: Scalar, each: bool = False) -> Tensor:
        """The tensor of this name, () or with `each` (C,), filled if the value is another one than before."""
        place, before = self._place(name, each), self._values.get(name)
        if isinstance(value, Tensor):
            on_host = value.device.type == "cpu"  # another one is not read
            if not (on_host and isinstance(before, Tensor) and torch.equal(before, value)):
                place.copy_(value, non_blocking=True)
                self._values[name] = value.clone() if on_host else float("nan")
        elif isinstance(before, Tensor) or before != value:
            place.fill_(value)
            self._values[name] = value
        return place

    def _place(self, name: str, each: bool) -> Tensor:
        if name not in self._tensors:
            self._tensors[name] = torch.empty_like(self._like) if each else self._like.new_empty(())
        return self._tensors[name]
