"""Backpropagated: what a closure or a loop back-propagates, and what becomes of the gradients."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bdl.torch_private import adds_up, compiles, has_hooks_after, times_mean

FAR = 1e-3  # share of the loss by which two sums over a batch may differ, half precision included
CALLS = 2  # of closures, or steps of a loop, that are compared
LEFT = "_left_by_a_step"  # an attribute of such a gradient
CHANGED = (
    "{} the gradients after they are back-propagated, as clip_grad_norm_ does: the chain then follows another "
    "distribution, or another temperature; clip by an argument of the Sampler, such as clip=bdl.ClipNorm(1.0), and "
    "leave the gradients as they are"
)
OLD = (
    "{} to the gradients of the step before: the chain follows their sum, which is another distribution; call "
    "sampler.zero_grad() {}"
)
HOOKED = (
    "a hook changes gradients while they are back-propagated (register_hook, register_full_backward_hook, "
    "register_post_accumulate_grad_hook): the chain then follows another distribution, or another temperature; remove "
    "the hook"
)
SUM = (
    "the {} back-propagates a sum over {}: take the mean over the items "
    '(reduction="mean"), which bdl multiplies by num_data'
)
TIMES = (
    "the {} back-propagates {:.4g} times the mean loss of the batch, which bdl multiplies by num_data: the chain has "
    "another temperature; back-propagate the mean loss itself, temperature= of the Sampler makes a colder distribution"
)
LARGEST = 1.5  # factor of a mean loss: smaller ones are shares of accumulated batches, or of short ones

_open: list[Backpropagated] = []
_plain: dict[str, Callable[..., Any]] = {}  # torch's functions while passes are watched
_installing = threading.Lock()


class Backpropagated:
    """Adds up the values from which a thread calls torch's `backward` and `grad`, and notes the gradients they leave.

    A loss that is scaled, as a GradScaler does, or back-propagated several times, leaves other gradients than its own:
    the chain then samples another temperature, and its energies do not show it. Passes that reach none of the sampled
    parameters do not count. Several may be open at a time, each for its thread.

    Attributes:
        total: () the sum of the values; None before the first pass.
        left: by id, parameter, gradient and how often that had been changed, after its last pass.
        passes: how many passes have reached a sampled parameter.
        old: whether gradients of an earlier step are there before the first pass, and not zero.
        summed: the shape of what the loss is a sum over.
        factor: by which the mean loss of a pass was multiplied, as far as autograd's graph tells it.
        hooked: whether gradients change on their way through the graph.
    """

    def __init__(self, sampled: Callable[[], Iterable[Tensor]], keeps: Tensor | None = None) -> None:
        """keeps: the parameter whose gradient `share` compares."""
        self.total: Tensor | None = None
        self.left: dict[int, tuple[Tensor, Tensor, int]] = {}
        self.passes, self.factor, self.old, self.hooked = 0, 1.0, False, False
        self.known = False  # whether the loss has a scale of its own, as a cross entropy has
        self.summed: tuple[int, ...] = ()
        self._reached = self._passing = False
        self._sampled, self._keeps, self._kept = sampled, keeps, None
        self._put: list[tuple[Tensor, Tensor, Tensor]] = []  # parameter, gradient of `grad`, value

    def __enter__(self) -> Backpropagated:
        self._thread = threading.get_ident()
        with _installing:
            if not _open:
                _plain.update(backward=torch.autograd.backward, grad=torch.autograd.grad)
                torch.autograd.backward, torch.autograd.grad = _backward, _grad
            _open.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _installing:
            if self in _open:
                _open.remove(self)
                if not _open and torch.autograd.backward is _backward:
                    torch.autograd.backward, torch.autograd.grad = _plain["backward"], _plain["grad"]

    def backward(
        self, plain: Callable[..., Any], tensors: Any, grad_tensors: Any = None, *rest: Any, **named: Any
    ) -> Any:
        """A pass by torch's `backward`, or that of another watch. A checkpoint makes its pass within another one."""
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if threading.get_ident() != self._thread or compiles():
            return plain(roots, grad_tensors, *rest, **named)
        sampled, nodes = {id(p) for p in self._sampled()}, list(nodes_of(*roots))
        leaves = [leaf for leaf in leaves_among(nodes) if id(leaf) in sampled]
        self._reached |= bool(leaves)
        if self._passing:
            return plain(roots, grad_tensors, *rest, **named)
        value, summed, (factor, known) = _value(roots, grad_tensors), adds_up(roots[0]), times_mean(roots[0])
        old = any(bool(g.count_nonzero()) for leaf in leaves if (g := leaf.grad) is not None and hasattr(g, LEFT))
        self._reached = bool(leaves)
        with self._watched(nodes, roots, grad_tensors):
            done = plain(roots, grad_tensors, *rest, **named)
        if not self._reached:
            return done
        self.old |= old and self.passes == 0
        self.passes += 1
        self._add(value)
        self.summed = self.summed or summed
        if abs(factor) > abs(self.factor):
            self.factor, self.known = factor, known
        self.left |= {id(leaf): (leaf, g, g._version) for leaf in leaves if (g := leaf.grad) is not None}
        if self._keeps is not None and self._keeps.grad is not None:
            self._kept = self._keeps.grad.clone()
        return done

    def grad(
        self, plain: Callable[..., Any], outputs: Any, inputs: Any, grad_outputs: Any = None, *rest: Any, **named: Any
    ) -> Any:
        """Gradients by torch's `grad`."""
        gradients = plain(outputs, inputs, grad_outputs, *rest, **named)
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

        stepping = {id(leaf): (leaf, None if leaf.grad is None else leaf.grad.clone())
                    for leaf in leaves_among(nodes) if has_hooks_after(leaf)}  # fmt: skip

        def see(node: Any, to_next: tuple[Tensor | None, ...], got: tuple[Tensor | None, ...]) -> None:
            pairs = [(g, sent.pop((node, place), [])) for place, g in enumerate(got)]
            if node.name().startswith("BackwardHook"):  # what a module with hooks puts around itself: an identity
                pairs += [(g, [back]) for g, back in zip(got, to_next, strict=False)]
            leaf, before = stepping.get(id(getattr(node, "variable", None)), (None, None))
            if leaf is not None and got[0] is not None:  # what a hook has made of the gradient that was added
                made = torch.zeros_like(got[0]) if leaf.grad is None else leaf.grad
                pairs.append((made, [got[0]] if before is None else [got[0], before]))
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

    def changed(self) -> bool:
        """Whether gradients are no longer those that the last pass has left."""
        return any(leaf.grad is not grad or grad._version != version for leaf, grad, version in self.left.values())

    def share(self) -> float | None:
        """By what the gradient of a parameter was multiplied since its last pass; None where it is no multiple."""
        kept, now = self._kept, None if self._keeps is None else self._keeps.grad
        if kept is None or now is None or not kept.count_nonzero():
            return None
        share = float(now.norm() / kept.norm())
        return share if bool((now - share * kept).abs().max() <= FAR * now.abs().max()) else None

    def multiples(self, who: str, num_data: int, scale: float = 1.0) -> Iterator[tuple[str, str]]:
        """Kinds and lines, where what is back-propagated is a sum over items, or a multiple of a mean loss.

        who: the closure or the loop. scale: by which the loop has multiplied the gradients.
        """
        factor = self.factor * scale
        if num_data > 1 and self.summed[:1] > (1,):
            yield "sum", SUM.format(who, self.summed)
        elif num_data > 1 and factor > LARGEST and (self.known or math.isclose(factor, num_data, rel_tol=FAR)):
            yield "times", TIMES.format(who, factor)

    def differences(self, loss: Tensor, compares: bool, may_change: bool) -> Iterator[tuple[str, str]]:
        """Kinds and lines, where the sum is not that of the () or (C,) losses. A device sync.

        Gradients that come in another way cannot be compared; those of `grad` are where they are put into place.
        """
        for value in {id(value): value for p, g, value in self._put if p.grad is g}.values():
            self._add(value)
        if self.total is None:
            return
        if self.old:
            yield "old", OLD.format("the closure adds", "at its beginning")
        if self.hooked:
            yield "hooked", HOOKED
        if not may_change and self.changed():
            yield "changed", CHANGED.format("the closure, or a hook of the module, changes")
        sent, returned = float(self.total), float(loss.detach().cpu().double().sum())
        if compares and math.isfinite(sent) and abs(sent - returned) > FAR * max(abs(sent), abs(returned)):
            yield (
                "scaled",
                f"the closure back-propagates {sent:.4g} in all, and returns a loss of {returned:.4g}: the chain "
                "follows the gradients, so that its temperature is another one, and its energies are not those of its "
                "distribution; back-propagate the loss that you return, once and unscaled",
            )


def _backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    call = _plain["backward"]
    for watch in list(_open):
        call = partial(watch.backward, call)
    return call(tensors, *args, **kwargs)


def _grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
    call = _plain["grad"]
    for watch in list(_open):
        call = partial(watch.grad, call)
    return call(outputs, *args, **kwargs)


def mark(params: Iterable[Tensor]) -> None:
    """Note in the gradients that a step has used them; a reference would keep torch from moving the parameters."""
    for p in params:
        if p.grad is not None:
            setattr(p.grad, LEFT, True)


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
