"""GivenGradients: whether the gradients of a step that has no closure are those of its loss, as it left them."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from bdl.errors import BdlWarning
from bdl.samplers.backpropagated import CALLS, CHANGED, FAR, HOOKED, OLD, Backpropagated, mark
from bdl.torch_private import compiles


class GivenGradients:
    """Watches the backward passes between the first steps that no closure makes.

    Which loss is meant is not known: that its scale is right is seen only where it is a sum over items, a multiple of a
    cross entropy, or `num_data` times a mean.
    """

    def __init__(self, num_data: int) -> None:
        self._left, self._said, self._num_data = CALLS, set[str](), num_data
        self._watch: Backpropagated | None = None

    def see(self, params: Sequence[Tensor], may_change: bool) -> None:
        """Called at every step. may_change: whether somebody may change the gradients, as a Trainer does."""
        if self._left < 0:
            return
        self._left -= 1
        watch, self._watch = self._watch, None
        if watch is not None:
            self._close()
            self._compare(watch, may_change)
        shown = [p for p in params if p.grad is not None and p.grad.layout is torch.strided]
        if self._left < 0 or not shown or compiles() or shown[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return
        mark(shown)
        self._watch = Backpropagated(lambda: params, keeps=min(shown, key=torch.numel))
        self._close = weakref.finalize(self, self._watch.__exit__)  # no step may follow
        self._watch.__enter__()

    def _compare(self, watch: Backpropagated, may_change: bool) -> None:
        if watch.passes == 0:
            return
        share = watch.share()
        if watch.old:
            self._tell("old", OLD.format("loss.backward() adds", "before it"))
        if watch.hooked:
            self._tell("hooked", HOOKED)
        if not may_change and watch.changed() and not _is_usual(share, watch.passes):
            self._tell("changed", CHANGED.format("the loop changes"))
        for kind, line in watch.multiples("loop", self._num_data, 1.0 if share is None else share):
            self._tell(kind, line)

    def _tell(self, kind: str, line: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(line, BdlWarning, stacklevel=10)


def _is_usual(share: float | None, passes: int) -> bool:
    """Whether gradients were multiplied as a GradScaler does, by a power of two, or divided by the number of passes."""
    if share is None or share <= 0:
        return False
    return any(abs(math.log2(each) - round(math.log2(each))) < FAR for each in (share, share * passes))
