"""Backpropagated: whether a closure back-propagates the loss that it returns."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bdl.errors import BdlWarning
from bdl.torch_private import adds_up, compiles

FAR = 1e-3  # share of the loss by which two sums over a batch may differ, half precision included
CALLS = 2  # of closures that are compared
LEFT = "_left_by_a_closure"  # an attribute of such a gradient
CHANGED = (
    "{} the gradients after they are back-propagated, as clip_grad_norm_ does: the chain then follows another "
    "distribution, or another temperature; clip by an argument of the Sampler, such as clip=bdl.ClipNorm(1.0), and "
    "leave the gradients as they are"
)
OLD = (
    "{} to the gradients of the step before: the chain follows their sum, which is another distribution; call "
    "sampler.zero_grad() {}"
)
SUM = (
    "the closure back-propagates a sum over {}: take the mean over the items "
    '(reduction="mean"), which bdl multiplies by num_data'
)

_watching = threading.Lock()  # one closure at a time: torch has one `backward`


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
            if not watches or not _watching.acquire(blocking=False):
                return closure()
            try:
                with Backpropagated() as watch:
                    loss = closure()
            finally:
                _watching.release()
        if loss is not None:
            self._compare(watch, torch.as_tensor(loss), compares, may_change)
        sampled = {id(p) for p in self._sampled()}  # nobody zeroes the gradients of others
        for gradient in (gradient for leaf, gradient, _ in watch.left if id(leaf) in sampled):
            setattr(gradient, LEFT, True)  # a reference would keep torch from moving the parameters
        return loss

    def _compare(self, watch: Backpropagated, loss: Tensor, compares: bool, may_change: bool) -> None:
        lines = list(watch.differences(loss, compares, may_change))
        if compares and self._num_data > 1 and watch.summed[:1] > (1,):
            lines.append(("sum", SUM.format(watch.summed)))
        for kind, line in lines:
            if kind not in self._said:
                self._said.add(kind)
                warnings.warn(line, BdlWarning, stacklevel=10)


class Backpropagated:
    """Adds up the values from which a thread calls torch's `backward` and `grad`, and notes the gradients they leave.

    A loss that is scaled, as a GradScaler does, or back-propagated several times, leaves other gradients than its own:
    the chain then samples another temperature, and its energies do not show it.
    """

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.left: list[tuple[Tensor, Tensor, int]] = []  # parameter, gradient and how often that had been changed
        self.old = False  # whether gradients of an earlier closure are there before the first pass, and not zero
        self.summed: tuple[int, ...] = ()  # the shape of what the loss is a sum over
        self._passing = False
        self.hooked = False  # whether gradients change on their way through the graph
        self._put: list[tuple[Tensor, Tensor, Tensor]] = []  # parameter, gradient of `grad`, value

    def __enter__(self) -> Backpropagated:
        self._thread, self._plain = threading.get_ident(), (torch.autograd.backward, torch.autograd.grad)
        torch.autograd.backward, torch.autograd.grad = self._backward, self._grad
        return self

    def __exit__(self, *_: object) -> None:
        torch.autograd.backward, torch.autograd.grad = self._plain

    def _backward(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread or self._passing:  # a checkpoint makes a pass within another one
            return self._plain[0](tensors, grad_tensors, *args, **kwargs)
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        self._add(_value(roots, grad_tensors))
        nodes = list(nodes_of(*roots))
        leaves = leaves_among(nodes)
        if not self.left:
            self.old = any(
                bool(g.count_nonzero()) for leaf in leaves if (g := leaf.grad) is not None and hasattr(g, LEFT)
            )
        self.summed = self.summed or adds_up(roots[0])
        with self._watched(nodes, roots, grad_tensors):
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

    @contextmanager
    def _watched(self, nodes: list[Any], roots: list[Tensor], weights: Any) -> Iterator[None]:
        """Watch what the nodes of a graph send to each other in a pass, which hooks may change on its way."""
        sent: dict[tuple[Any, int], list[Tensor | None]] = {}
        for root, weight in zip(roots, _weights(roots, weights), strict=True):
            if root.numel() == 1 or weight is not None:
                sent[root.grad_fn, root.output_nr] = [torch.ones_like(root) if weight is None else weight]

        def see(node: Any, to_next: tuple[Tensor | None, ...], got: tuple[Tensor | None, ...]) -> None:
            pairs = [(g, sent.pop((node, place), [])) for place, g in enumerate(got)]
            if node.name().startswith("BackwardHook"):  # what a module with hooks puts around itself: an identity
                pairs += [(g, [back]) for g, back in zip(got, to_next, strict=False)]
            self.hooked |= any(came and _differ(g, came) for g, came in pairs)
            for (following, place), g in zip(node.next_functions, to_next, strict=False):
                sent.setdefault((following, place), []).append(g)

        handles = [node.register_hook(partial(see, node)) for node in nodes]
        self._passing = True
        try:
            yield
        finally:
            self._passing = False
            for handle in handles:
                handle.remove()

    def _add(self, value: Tensor) -> None:
        self.total = value if self.total is None else self.total + value

    def differences(self, loss: Tensor, compares: bool, may_change: bool) -> Iterator[tuple[str, str]]:
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
                OLD.format("the closure adds", "at its beginning"),
            )
        if self.hooked:
            yield (
                "hooked",
                "a hook changes gradients while they are back-propagated (register_hook, register_full_backward_hook): "
                "the chain then follows another distribution, or another temperature; remove the hook",
            )
        if not may_change and any(
            leaf.grad is not grad or grad._version != version for leaf, grad, version in self.left
        ):
            yield (
                "changed",
                CHANGED.format("the closure, or a hook of the module, changes"),
            )
        sent, returned = float(self.total), float(loss.detach().cpu().double().sum())
        if compares and math.isfinite(sent) and abs(sent - returned) > FAR * max(abs(sent), abs(returned)):
            yield (
                "scaled",
                f"the closure back-propagates {sent:.4g} in all, and returns a loss of {returned:.4g}: the chain "
                "follows the gradients, so that its temperature is another one, and its energies are not those of its "
                "distribution; back-propagate the loss that you return, once and unscaled",
            )


def _value(roots: list[Tensor], weights: Any) -> Tensor:
    """() the sum that a pass from these tensors is the gradient of."""
    each = zip(roots, _weights(roots, weights), strict=True)
    parts = [(r.detach() if w is None else r.detach() * w.detach()).sum().cpu().double() for r, w in each]
    return torch.stack(parts).sum()


def _weights(roots: list[Tensor], weights: Any) -> list[Tensor | None]:
    return [weights] if isinstance(weights, Tensor) else [*(weights or [None] * len(roots))]


def _differ(got: Tensor | None, sent: list[Tensor | None]) -> bool:
    """Whether a gradient is not the sum of those that were sent. Only what is easily compared counts."""
    if got is None or any(each is None for each in sent) or len(sent) == 1 and sent[0] is got:
        return False
    parts = [each for each in sent if each is not None]
    if any(t.layout is not torch.strided or t.shape != got.shape or t.dtype != got.dtype for t in [got, *parts]):
        return False
    whole = torch.stack(parts).sum(0)
    return bool((got - whole).abs().max() > FAR * whole.abs().max()) if whole.numel() else False


def nodes_of(*roots: Tensor) -> Iterator[Any]:
    """The nodes of autograd's graph below some tensors."""
    seen, waiting = set(), [root.grad_fn for root in roots]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def leaves_among(nodes: Iterable[Any]) -> list[Tensor]:
    """The tensors whose `grad` a backward pass through these nodes adds to."""
    return [node.variable for node in nodes if hasattr(node, "variable")]
