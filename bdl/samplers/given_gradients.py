"""GivenGradients: whether the gradients of a step that has no closure are those of one pass, as it left them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bdl.errors import BdlWarning
from bdl.samplers.backpropagated import CALLS, CHANGED, FAR, OLD
from bdl.torch_private import compiles


class GivenGradients:
    """Watches the gradients of the smallest parameter between the first steps that no closure makes."""

    def __init__(self) -> None:
        self._left, self._said = CALLS, set[str]()
        self._handles: list[Any] = []
        self._old = self._came = self._after = self._value = torch.zeros(())  # gradients of that parameter
        self._version, self._adds = -1, False

    def see(self, params: Sequence[Tensor], may_change: bool) -> None:
        """Called at every step. may_change: whether somebody may change the gradients, as a Trainer does."""
        if self._left < 0:
            return
        self._left -= 1
        for handle in self._handles:
            handle.remove()
        if self._handles:
            self._compare(may_change)
        self._handles = []
        shown = [p for p in params if p.grad is not None and p.grad.layout is torch.strided]
        if self._left < 0 or not shown or compiles() or shown[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return
        p = min(shown, key=torch.numel)
        self._old, self._version, self._adds = p.grad.clone(), -1, False  # type: ignore[union-attr]
        self._parameter = p
        self._handles = [p.register_hook(self._arrives), p.register_post_accumulate_grad_hook(self._is_added)]

    def _arrives(self, gradient: Tensor) -> None:
        self._came = gradient.clone()

    def _is_added(self, p: Tensor) -> None:
        assert p.grad is not None
        if self._version < 0:  # the first pass since the last step
            self._adds = _close(p.grad, self._old + self._came) and not _close(p.grad, self._came)
        self._after, self._version, self._value = p.grad, p.grad._version, p.grad.clone()

    def _compare(self, may_change: bool) -> None:
        now = self._parameter.grad
        if self._version < 0:
            return
        if self._adds:
            self._tell("old", OLD.format("loss.backward() adds", "before it"))
        if may_change or now is None or now is self._after and now._version == self._version:
            return
        share = float(now.norm() / self._value.norm())
        unscaled = share > 0 and math.log2(share).is_integer()  # what a GradScaler does to what it has scaled
        if not _close(now, self._value) and not (unscaled and _close(now, share * self._value)):
            self._tell("changed", CHANGED.format("the loop changes"))

    def _tell(self, kind: str, line: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(line, BdlWarning, stacklevel=10)


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= FAR * other.abs().max())
