"""Detects that a chain has diverged, and says where and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from bdl.errors import DivergedError
from bdl.samplers.dynamics.base import Scalar

CHECK_EVERY = 100  # steps between reads of the counter on an accelerator; each is a device sync

Named = Iterable[tuple[str, Tensor | None]]


class DivergenceWatch:
    """Watches every step: at once, or through a counter on the device where reading a number would make steps wait.

    The counter holds how many steps there are since the first bad one, that step included; 0 without a bad step.
    Unlike the number of that step, it can be kept by kernels that are the same in every step.
    """

    def __init__(self, device: torch.device, at_once: bool):
        self._since_bad = None if at_once else torch.zeros((), dtype=torch.int64, device=device)
        self._last = -1  # the last step that was seen

    def note(self, total: Tensor) -> None:
        """Count a step; it has to be seen, too. total: () a sum that is not finite if one of its parts is not."""
        if self._since_bad is not None:  # inf - inf and NaN - NaN are NaN: fewer kernels than isfinite has
            self._since_bad.add_((self._since_bad > 0) | (total - total).isnan())

    def see(self, step: int, total: Tensor, suspects: Callable[[], Named], lr: Scalar) -> None:
        """Raise DivergedError for a bad step, with a counter some steps later. suspects: the parts of `total`."""
        self._last = step
        if self._since_bad is None:
            if not math.isfinite(total.item()):
                refuse(step, suspects(), lr)  # one by one, since a sum of finite numbers may overflow
        elif step % CHECK_EVERY == 0:
            self.check(lr)

    def check(self, lr: Scalar) -> None:
        """Read the counter: a device sync. Raises DivergedError."""
        since_bad = 0 if self._since_bad is None else int(self._since_bad)
        if since_bad:
            raise DivergedError(_message("loss or gradient", self._last - since_bad + 1, lr))


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
