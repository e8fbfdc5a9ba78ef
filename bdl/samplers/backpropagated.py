"""Backpropagated: whether a closure back-propagates the loss that it returns."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bdl.errors import BdlWarning
from bdl.torch_private import compiles

FAR = 1e-3  # share of the loss by which two sums over a batch may differ, half precision included
CALLS = 2  # of closures that are compared
LEFT = "_left_by_a_closure"  # an attribute of such a gradient

_watching = threading.Lock()  # one closure at a time: torch has one `backward`


class Closures:
    """Calls closures, and compares what the first ones return with what they back-propagate.

    The second call shows gradients that the closure has not zeroed. Nothing is compared after a call of
    `torch.compile`, whose graphs may call what is watched here.
    """

    def __init__(self) -> None:
        self._left, self._said = CALLS, set[str]()

    def call(self, closure: Callable[[], Any], compares: bool, changes: bool = True) -> Any:
        """What the closure returns.

        compares: False where its gradient need not be that of the loss. changes: whether it should not change the
        gradients afterwards, as a Trainer does that clips them.
        """
        compares, self._left = compares and self._left > 0 and not compiles(), self._left - 1
        with torch.enable_grad():
            if not compares or not _watching.acquire(blocking=False):
                return closure()
            try:
                with Backpropagated() as watch:
                    loss = closure()
            finally:
                _watching.release()
        for _, gradient, _ in watch.left:
            setattr(gradient, LEFT, True)  # a reference would keep torch from moving the parameters
        for kind, line in () if loss is None else watch.differences(torch.as_tensor(loss), changes):
            if kind not in self._said:
                self._said.add(kind)
                warnings.warn(line, BdlWarning, stacklevel=9)
        return loss


class Backpropagated:
    """Adds up the values from which a thread calls torch's `backward` and `grad`, and notes the gradients they leave.

    A loss that is scaled, as a GradScaler does, or back-propagated several times, leaves other gradients than its own:
    the chain then samples another temperature, and its energies do not show it.
    """

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.left: list[tuple[Tensor, Tensor, int]] = []  # parameter, gradient and how often that had been changed
        self.old = False  # whether gradients of an earlier closure are there before the first pass, and not zero
        self._put: list[tuple[Tensor, Tensor, Tensor]] = []  # parameter, gradient of `grad`, value

    def __enter__(self) -> Backpropagated:
        self._thread, self._plain = threading.get_ident(), (torch.autograd.backward, torch.autograd.grad)
        torch.autograd.backward, torch.autograd.grad = self._backward, self._grad
        return self

    def __exit__(self, *_: object) -> None:
        torch.autograd.backward, torch.autograd.grad = self._plain

    def _backward(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return self._plain[0](tensors, grad_tensors, *args, **kwargs)
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        self._add(_value(roots, grad_tensors))
        leaves = [leaf for root in roots for leaf in leaves_of(root)]
        if not self.left:
            self.old = any(
                bool(g.count_nonzero()) for leaf in leaves if (g := leaf.grad) is not None and hasattr(g, LEFT)
            )
        done = self._plain[0](tensors, grad_tensors, *args, **kwargs)
        self.left = [(leaf, leaf.grad, leaf.grad._version) for leaf in leaves if leaf.grad is not None]
        return done

    def _grad(self, outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        gradients = self._plain[1](outputs, inputs, grad_outputs, *args, **kwargs)
        if threading.get_ident() == self._thread:
            value = _value([outputs] if isinstance(outputs, Tensor) else list(outputs), grad_outputs)
            given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
            self._put += [(p, g, value) for p, g in zip(given, gradients, strict=True) if g is not None and p.is_leaf]
        return gradients

    def _add(self, value: Tensor) -> None:
        self.total = value if self.total is None else self.total + value

    def differences(self, loss: Tensor, changes: bool) -> Iterator[tuple[str, str]]:
        """Kinds and lines, where the sum is not that of the () or (C,) losses. A device sync.

        Gradients that come in another way cannot be compared; those of `grad` are where they are put into place.
        """
        for value in {id(value): value for p, g, value in self._put if p.grad is g}.values():
            self._add(value)
        if self.total is None:
            return
        if self.old:
            yield (
                "old",
                "the closure adds to the gradients of the step before: the chain follows their sum, which is another "
                "distribution; call sampler.zero_grad() at its beginning",
            )
        if changes and any(leaf.grad is not grad or grad._version != version for leaf, grad, version in self.left):
            yield (
                "changed",
                "the closure changes the gradients after it back-propagates, as clip_grad_norm_ does: the chain then "
                "follows another distribution, or another temperature; clip by an argument of the Sampler, such as "
                "clip=bdl.ClipNorm(1.0), and leave the gradients as they are",
            )
        sent, returned = float(self.total), float(loss.detach().double().sum())
        if math.isfinite(sent) and abs(sent - returned) > FAR * max(abs(sent), abs(returned)):
            yield (
                "scaled",
                f"the closure back-propagates {sent:.4g} in all, and returns a loss of {returned:.4g}: the chain "
                "follows the gradients, so that its temperature is another one, and its energies are not those of its "
                "distribution; back-propagate the loss that you return, once and unscaled",
            )


def _value(roots: list[Tensor], weights: Any) -> Tensor:
    """() the sum that a pass from these tensors is the gradient of."""
    given = [weights] if isinstance(weights, Tensor) else list(weights or ())
    each = zip(roots, given or [None] * len(roots), strict=True)
    parts = [(r.detach() if w is None else r.detach() * w.detach()).sum().double() for r, w in each]
    return torch.stack([part.cpu() for part in parts]).sum()


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
