"""What devices differ in: the types of numbers that they have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def widest(device: torch.device) -> torch.dtype:
    """The type of energies and of sums on a device: float64, or float32 on Apple's GPUs, which have no other."""
    return torch.float32 if device.type == "mps" else torch.float64


def widened(value: Any, device: torch.device) -> Any:
    """A copy of energies, or of what they teach, in the widest type of the device; other values as they are."""
    if not isinstance(value, Tensor):
        return value
    return value.to(device, widest(device) if value.is_floating_point() else value.dtype, copy=True)


def moved(value: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
    """The tensor on a device; float64 becomes float32 where there is none."""
    narrow = value.dtype == torch.float64 and widest(device) != torch.float64
    return value.to(device, torch.float32 if narrow else value.dtype, non_blocking=non_blocking)
