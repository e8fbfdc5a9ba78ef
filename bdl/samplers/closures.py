"""Closures: whether a closure back-propagates the loss that it returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from bdl.errors import BdlWarning
from bdl.samplers.backpropagated import CALLS, Backpropagated, mark
from bdl.torch_private import compiles


class Closures:
    """Calls closures, and compares what the first ones return with what they back-propagate.

    The second call shows gradients that the closure has not zeroed. Nothing is compared after a call of
    `torch.compile`, whose graphs may call what is watched here.
    """

    def __init__(self, num_data: int, sampled: Callable[[], Iterable[Tensor]]) -> None:
        self._left, self._said, self._num_data, self._sampled = CALLS, set[str](), num_data, sampled

    def call(self, closure: Callable[[], Any], compares: bool, may_change: bool = False) -> Any:
        """What the closure returns.

        compares: False where the values that are back-propagated need not add up to the loss. may_change: whether it
        may change the gradients afterwards, as a Trainer does that clips them.
        """
        watches, self._left = self._left > 0 and not compiles(), self._left - 1
        with torch.enable_grad():
            if not watches:
                return closure()
            with Backpropagated(self._sampled) as watch:
                loss = closure()
        if loss is not None:
            self._compare(watch, torch.as_tensor(loss), compares, may_change)
        mark(leaf for leaf, _, _ in watch.left.values())
        return loss

    def _compare(self, watch: Backpropagated, loss: Tensor, compares: bool, may_change: bool) -> None:
        lines = list(watch.differences(loss, compares, may_change))
        if compares:
            lines += watch.multiples("closure", self._num_data)
        for kind, line in lines:
            if kind not in self._said:
                self._said.add(kind)
                warnings.warn(line, BdlWarning, stacklevel=10)
