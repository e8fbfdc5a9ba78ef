"""The numbers of a step in tensors that stay where they are, so that kernels of a graph may read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.samplers.dynamics.base import Scalar


class HeldNumbers:
    """Tensors (C,) and numbers by name, on the device and in the type of `like` (C,), such as a tensor of energies."""

    def __init__(self, like: Tensor):
        self._like = like
        self._tensors: dict[str, Tensor] = {}
        self._values: dict[str, Any] = {}  # what the tensors hold, of numbers and of tensors on the CPU

    def serves(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether kernels on tensors of this kind may read these ones."""
        return self._like.device == device and self._like.dtype == dtype

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

    def rows(self, name: str, rows: Sequence[tuple[float, ...]], most: int) -> Tensor:
        """The tensor (most, n) of this name, whose first rows are filled if a number is another one than before."""
        if name not in self._tensors:
            self._tensors[name] = self._like.new_empty(most, len(rows[0]))
        if self._values.get(name) != rows:
            values = torch.tensor(rows, dtype=self._like.dtype)
            self._tensors[name][: len(rows)].copy_(values, non_blocking=True)
            self._values[name] = rows
        return self._tensors[name]

    def _place(self, name: str, each: bool) -> Tensor:
        if name not in self._tensors:
            self._tensors[name] = torch.empty_like(self._like) if each else self._like.new_empty(())
        return self._tensors[name]
