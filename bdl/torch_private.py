"""What bdl reads of torch's private names, each in one place.

A torch that lacks one of the names is served by a slower way: tensors are copied one by one, a module counts as one
that somebody watches, compiled code runs evaluations too, no network takes outputs that another one has computed,
nobody notices that losses are sums, or means over different numbers of items, what is compiled may be compiled twice,
and a compiler may choose kernels by timing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch

from bdl.errors import ConfigError

Call = Callable[..., Any]

MEAN, SUM = 1, 2  # torch's numbers of reduction="mean" and "sum"
NLL = "bdl.nll"  # the key of a note in autograd's graph
CROSS_ENTROPIES = (
    "NllLossBackward0", "NllLoss2DBackward0", "BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0",
)  # fmt: skip
FAR = 16  # operations between a loss and what it is a mean over: sums, factors, a second term
_foreach_copy: Any = getattr(torch, "_foreach_copy_", None)
_without_modes: Any = getattr(_python_dispatch, "_disable_current_modes", nullcontext)


def copy_all(out: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy the values into tensors of the same shapes, in one kernel where torch can."""
    if out and _foreach_copy is not None:
        _foreach_copy(out, values)
    else:
        for place, value in zip(out, values, strict=True):
            place.copy_(value)


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """How often each tensor, or another one of its memory, was written to."""
    return [t._version for t in tensors]


def standard_gamma(shape: Tensor, random: torch.Generator) -> Tensor:
    """Draws of Gamma(shape, 1), each shape by itself, from a stream of one's own, which `Tensor` has no method for."""
    return torch._standard_gamma(shape, random)  # type: ignore[attr-defined]


def gather(params: Sequence[Tensor], out: Sequence[Tensor]) -> list[int]:
    """Copy the parameters' gradients into `out`, zeros where there is none; returns the positions of these."""
    grads = [p.grad for p in params]  # once, because reading one is slow beside a step of a small network
    present = [g for g in grads if g is not None]
    idle = [] if len(present) == len(grads) else [i for i, g in enumerate(grads) if g is None]
    for i in idle:
        out[i].zero_()
    try:
        copy_all([place for place, g in zip(out, grads, strict=True) if g is not None] if idle else out, present)
    except RuntimeError as error:
        if all(g.layout is torch.strided for g in present):
            raise
        line = "a layer gives sparse gradients: build it with sparse=False, as torch.nn.Embedding's default"
        raise ConfigError(line) from error
    return idle


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module calls hooks, those of all modules included."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    everywhere = getattr(nn.modules.module, "_has_any_global_hook", lambda: True)
    return any(getattr(module, name, True) for name in names) or everywhere()


def lies_in_parts(tensor: Tensor) -> bool:
    """Whether a parameter is divided among devices: a DTensor of `fully_shard`, or a view of FSDP's flat parameter."""
    return hasattr(tensor, "device_mesh") or getattr(tensor, "_fsdp_flattened", False)


def has_tensor_hooks(tensor: Tensor) -> bool:
    """Whether somebody reads or changes the gradient of a tensor, before or after it is accumulated."""
    return any(getattr(tensor, name, True) for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))


def has_hooks_after(tensor: Tensor) -> bool:
    """Whether hooks run once the gradient of a tensor of this process is accumulated; those of FSDP move parts."""
    return bool(getattr(tensor, "_post_accumulate_grad_hooks", None)) and not lies_in_parts(tensor)


def reduced_shape(loss: Tensor) -> tuple[int, ...]:
    """The shape of what a () or (C,) loss is a mean over, by autograd's graph; () where it is not known."""
    node, passed = loss.grad_fn, ((), tuple(loss.shape))
    for _ in range(FAR):
        kept = getattr(node, "_input_metadata", None)
        if not kept:
            break
        if (shape := tuple(kept[0].shape)) not in passed:
            return shape
        node = node.next_functions[0][0] if node is not None and node.next_functions else None
    return ()


def adds_up(loss: Tensor) -> tuple[int, ...]:
    """The shape of what a () loss is a sum over, by the graph of a pass to come; () where it is no sum, or not known.

    Sums of means, of quotients and of terms with weights are none, nor is what divides a sum by more than 2.
    """
    node: Any = loss.grad_fn if loss.ndim == 0 else None
    for _ in range(FAR):
        below = next((each for each, _ in getattr(node, "next_functions", ()) if each is not None), None)
        kept = getattr(below, "_input_metadata", None)
        if not kept:
            return ()
        if (shape := tuple(kept[0].shape)) != ():
            break
        if node.name().startswith("Div") or any(each.abs() < 0.5 for each in _constants(node)):
            return ()
        node = below
    else:
        return ()
    whole = node.name() == "SumBackward0" and (_is_nll(below) or not _is_weighted(below))
    return shape if whole or getattr(node, "_saved_reduction", None) == SUM else ()


def note_nll(losses: Tensor) -> None:
    """Note in autograd's graph that losses (..., B) are negative log densities of items."""
    if not torch.compiler.is_compiling() and not in_function_transform():
        node: Any = losses.grad_fn
        if node is not None:
            node.metadata[NLL] = True


def _is_nll(node: Any) -> bool:
    """Whether a node makes losses that are noted, or cross entropies."""
    return node is not None and (node.name() in CROSS_ENTROPIES or NLL in node.metadata)


def times_mean(loss: Tensor) -> tuple[float, bool]:
    """The constant by which a () loss, or the sum of those of chains, multiplies a mean; whether that is a mean NLL.

    Autograd's graph knows cross entropies and bdl's likelihoods. Of other losses the scale may be part of the law.
    """
    node: Any = getattr(loss, "grad_fn", None) if loss.ndim == 0 else None
    factor = 1.0
    for _ in range(FAR):
        name = "" if node is None else node.name()
        below = next((each for each, _ in getattr(node, "next_functions", ()) if each is not None), None)
        means = name.startswith("MeanBackward") and _is_nll(below)
        if name in CROSS_ENTROPIES or means:
            return factor, means or getattr(node, "_saved_reduction", None) == MEAN
        if (constant := _constant(node, name)) is None:
            break
        factor, node = factor * constant, below
    return factor, False


def mean_over(loss: Tensor) -> tuple[int, ...]:
    """The shape of what a () loss is the plain mean of, by its graph; () for other losses, and multiples of a mean."""
    node: Any = loss.grad_fn if loss.ndim == 0 else None
    factor = 1.0
    for _ in range(FAR):
        name = "" if node is None else node.name()
        below = next((each for each, _ in getattr(node, "next_functions", ()) if each is not None), None)
        if name == "MeanBackward0":
            kept = getattr(below, "_input_metadata", None)
            return tuple(kept[0].shape) if kept and math.isclose(factor, 1, rel_tol=1e-4) else ()
        if (constant := _constant(node, name)) is None:
            break
        factor, node = factor * constant, below
    return ()


def _constant(node: Any, name: str) -> float | None:
    """The number by which a node multiplies a () value, 1 where it sums one; None for other nodes."""
    constants = [c for c in _constants(node) if _is_number(c)] if "Mul" in name else []
    divisor = getattr(node, "_saved_other", None) if name.startswith("Div") else None
    if len(constants) == 1:
        return _number(constants[0])
    if isinstance(divisor, Tensor) and _is_number(divisor) and not divisor.requires_grad:
        by = _number(divisor)
        return 1 / by if by else math.inf
    return 1.0 if name == "SumBackward0" else None


def _is_number(constant: Tensor) -> bool:
    """Whether it is one number that the host knows: a read of a device's would make it wait."""
    return constant.ndim == 0 and constant.device.type == "cpu"


def _number(constant: Tensor) -> float:
    """The value of such a number. Modes such as FlopCounterMode would get it as an int, and fail."""
    with _without_modes():
        return float(constant)


def _is_weighted(node: Any) -> bool:
    """Whether a term of a loss is a mean, or has a divisor or a weight, between here and a layer; or no layer is near.

    A sum over the parameters themselves is an energy, and adds up no items.
    """
    waiting, seen, layers = [node], 0, 0
    while waiting and seen < 4 * FAR:
        node, seen = waiting.pop(), seen + 1
        name = "Accumulate" if node is None else node.name()
        layers += (ends := any(word in name for word in ("Addmm", "Mm", "Bmm", "Conv")))
        if node is None or ends or "Accumulate" in name:
            continue
        if any(each.ndim for each in _constants(node)) or any(word in name for word in ("Mean", "Div", "SumBackward1")):
            return True
        waiting += [following for following, _ in node.next_functions]
    return seen >= 4 * FAR or not layers


def _constants(node: Any) -> list[Tensor]:
    """The tensors by which a node multiplies."""
    kept = [getattr(node, f"_saved_{side}", None) for side in ("self", "other")] if "Mul" in node.name() else []
    return [each for each in kept if isinstance(each, Tensor) and not each.requires_grad]


def compiles() -> bool:
    """Whether `torch.compile` has been called, for whatever function."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    return any(backend is not None for backend in backends.values())


def compiler_options() -> set[str]:
    """The names of the options that `torch.compile` takes; none where torch does not tell them."""
    try:
        from torch._inductor import list_options
    except ImportError:
        return set()
    return set(list_options())


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of the optimizer calls hooks."""
    return any(getattr(optimizer, f"_optimizer_step_{when}_hooks", True) for when in ("pre", "post"))


def is_compiled(module: nn.Module) -> bool:
    """Whether calls of the module go to code that torch.compile has made."""
    return getattr(module, "_compiled_call_impl", True) is not None


def in_function_transform() -> bool:
    """Whether a transform of torch.func, such as vmap, runs the code."""
    stack: Any = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: True)
    return stack() is not None


def replace_compiled(module: nn.Module, around: Callable[[Call, Call], Call] | None) -> None:
    """Let the calls of a compiled module go to around(compiled call, plain call), or for None to the plain call.

    A torch without these names keeps its compiled call.
    """
    private: Any = module
    if hasattr(module, "_compiled_call_impl") and hasattr(module, "_call_impl"):
        compiled = private._compiled_call_impl
        private._compiled_call_impl = around and around(compiled, private._call_impl)
