"""Detects that a chain has diverged, and says where and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from bdl.errors import DivergedError
from bdl.samplers.dynamics.base import Scalar

CHECK_EVERY = 100  # steps between reads of the flag on an accelerator; each is a device sync

Named = Iterable[tuple[str, Tensor | None]]


class DivergenceWatch:
    """Watches every step: at once on a CPU, elsewhere through a device flag that holds the first bad step."""

    def __init__(self, device: torch.device):
        self._flag = None if device.type == "cpu" else torch.tensor(-1, device=device)

    def see(self, step: int, total: Tensor, suspects: Callable[[], Named], lr: Scalar) -> None:
        """total: () a sum that is not finite if one of the suspects is not. Raises DivergedError."""
        if self._flag is None:
            if not math.isfinite(total.item()):
                refuse(step, suspects(), lr)  # one by one, since a sum of finite numbers may overflow
            return
        self._flag = torch.where((self._flag < 0) & ~torch.isfinite(total), step, self._flag)
        if step % CHECK_EVERY == 0:
            self.check(lr)

    def check(self, lr: Scalar) -> None:
        """Read the flag: a device sync. Raises DivergedError."""
        if self._flag is not None and int(self._flag) >= 0:
            raise DivergedError(_message("loss or gradient", int(self._flag), lr))


def refuse(step: int, suspects: Named, lr: Scalar) -> None:
    """Raise DivergedError naming the first suspect that is not finite, if any."""
    for name, value in suspects:
        if value is not None and not bool(torch.isfinite(value).all()):
            raise DivergedError(_message(name, step, lr))


def _message(where: str, step: int, lr: Scalar) -> str:
    return (
        f"{where} is not finite at step {step}: most likely lr = {lr} is too large for this network, or the data "
        "contain NaN; lower lr, warm it up, or clip (bdl.ClipNorm); nothing of this step was written"
    )
