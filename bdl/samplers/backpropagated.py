"""Backpropagated: whether a closure back-propagates the loss that it returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bdl.errors import BdlWarning
from bdl.torch_private import compiles

FAR = 1e-3  # share of the loss by which two sums over a batch may differ, half precision included


class Closures:
    """Calls closures, and compares what the first one returns with what it back-propagates.

    It is not compared after a call of `torch.compile`: a network that runs inside of the mode would be compiled twice.
    """

    compared = False

    def call(self, closure: Callable[[], Any], compares: bool) -> Any:
        """What the closure returns. compares: False where its gradient need not be that of the loss."""
        compares, self.compared = compares and not self.compared and not compiles(), True
        with torch.enable_grad():
            return _compared(closure) if compares else closure()


def _compared(closure: Callable[[], Any]) -> Any:
    with Backpropagated() as watch:
        loss = closure()
    if loss is not None:
        watch.compare(torch.as_tensor(loss))
    return loss


class Backpropagated(TorchFunctionMode):
    """Adds up the values from which `Tensor.backward` is called, and notes the gradients that it leaves.

    A loss that is scaled, as a GradScaler does, or back-propagated several times, leaves other gradients than its own:
    the chain then samples another temperature, and its energies do not show it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total: Tensor | None = None
        self.left: list[tuple[Tensor, Tensor, int]] = []  # parameter, gradient and how often that had been changed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            gradient = kwargs.get("gradient", args[1] if len(args) > 1 else None)
            root = args[0].detach()
            value = (root if gradient is None else root * gradient).sum().double()
            self.total = value if self.total is None else self.total + value
            leaves = list(leaves_of(args[0]))
            func(*args, **kwargs)
            self.left = [(leaf, leaf.grad, leaf.grad._version) for leaf in leaves if leaf.grad is not None]
            return None
        return func(*args, **kwargs)

    def compare(self, loss: Tensor) -> None:
        """Warn where the sum is not that of the () or (C,) losses. A device sync."""
        if self.total is None:  # the gradients come in another way, which cannot be compared
            return
        if any(leaf.grad is not grad or grad._version != version for leaf, grad, version in self.left):
            warnings.warn(
                "the closure changes the gradients after it back-propagates, as clip_grad_norm_ does: the chain then "
                "follows another distribution, or another temperature; clip by an argument of the Sampler, such as "
                "clip=bdl.ClipNorm(1.0), and leave the gradients as they are",
                BdlWarning,
                stacklevel=10,
            )
        sent, returned = float(self.total), float(loss.detach().double().sum())
        if torch.isfinite(self.total) and abs(sent - returned) > FAR * max(abs(sent), abs(returned)):
            warnings.warn(
                f"the closure back-propagates {sent:.4g} in all, and returns a loss of {returned:.4g}: the chain "
                "follows the gradients, so that its temperature is another one, and its energies are not those of its "
                "distribution; back-propagate the loss that you return, once and unscaled",
                BdlWarning,
                stacklevel=10,
            )


def leaves_of(root: Tensor) -> Iterator[Tensor]:
    """The tensors whose `grad` a backward pass from here adds to."""
    seen, waiting = set(), [root.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        waiting += [following for following, _ in node.next_functions]
