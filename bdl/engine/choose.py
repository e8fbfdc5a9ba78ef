"""The one place that chooses the form of a gradient: compiled, written out, recorded, or by autograd."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from bdl.batch import Inputs
from bdl.engine import mlp_kernel
from bdl.engine.branches import Branches
from bdl.engine.forward import hooked, mlp_layers
from bdl.engine.gradient import Autograd, Gradient, InTurn, OnLeaves
from bdl.engine.graphs import recorder_for
from bdl.engine.mlp_gradient import MLPGradient, supports
from bdl.engine.offset_gradient import OffsetGradient, OffsetLikelihood
from bdl.engine.recorded import Recorded
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError
from bdl.fused import Fused
from bdl.likelihoods import Likelihood, Loss, WithOffset, mean_loss
from bdl.torch_private import has_tensor_hooks, is_compiled

Compile = bool | Literal["auto"]
FUSING = ("cuda",)  # devices on which kernels are worth fusing: on a CPU, C code and torch's kernels are as fast
KNOWN_PACKAGES = ("torch.", "torchvision.models.", "torchvision.ops.", "bdl.")  # what transforms draw, Python may hold
RANDOM_LAYERS = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def choose_gradient(
    net: nn.Module,
    loss: Loss,
    compiled: Compile = "auto",
    autograd: Autograd | None = None,
    graphs: bool = False,
    walks_only: bool = False,
    casts: bool = False,
) -> Gradient:
    """The fastest form in which the gradients of the mean losses can be had.

    Stacks of MLPs have the chain rule written out in torch, and in C where the layers fit and the machine has a
    compiler. Networks with other layers, with hooks, with a frozen part, or compiled by torch go through autograd, and
    so do all where `torch.compile` fuses their kernels. The forms agree to rounding, not to the bit. Where the networks
    of a stack run one after another, so do their gradients; where they take branches and a graph can hold the step,
    they run side by side.

    Args:
        net: a ChainStack, or another network, which needs `autograd`.
        loss: a negative log-likelihood per item, or any loss that returns its mean over the batch.
        compiled: True or "auto" allows the code in C, and True requires it where the layers fit. On a GPU True lets
            `torch.compile` fuse the kernels of a graph instead, see `fuses`.
        autograd: the gradient that the others must equal; None means that of the stack's losses.
        graphs: whether the kernels may become a CUDA graph, where the device has them.
        walks_only: whether a graph is to hold whole steps, and never the gradient by itself.
        casts: whether `autograd` runs in mixed precision, which autograd alone has.

    Raises ConfigError where compiled code is required and cannot be built, and for method="branches" on an accelerator
    where a graph cannot hold the step.
    """
    if autograd is None:
        assert isinstance(net, ChainStack)
        autograd = of_stack(net, loss)
    if not isinstance(net, ChainStack):
        return autograd
    fused = graphs and fuses(net, loss, compiled, autograd.params[0].device)
    if fused:
        autograd = Autograd(Fused(of_stack(net, loss).losses_of), autograd.params, autograd.context)
    record = recorder_for(autograd.params[0].device) if graphs and compiled and _waits_for_nothing(loss) else None
    repeats = record is not None and _repeats_itself(net)
    branches = repeats and net.takes_branches
    if record is not None and net.method == "branches" and not repeats:
        raise ConfigError(
            'method="branches" needs steps whose kernels are always the same: no dropout, no hooks, and modules of '
            'torch, torchvision or bdl; use method="auto"'
        )
    written: Gradient | None = None if casts or fused else _written_out(net, loss)
    if written is None and (branches or net.runs_in_turn and not casts):
        written = _in_turn(net, loss, autograd, branches, fused)
    if written is None or list(map(id, written.params)) != list(map(id, autograd.params)):
        written = autograd
    if isinstance(written, MLPGradient) and isinstance(written.loss, OffsetLikelihood):
        return OffsetGradient(mlp_kernel.compiled(written, compiled is True) if compiled else written)
    if not compiled:
        return written
    gradient = mlp_kernel.compiled(written, required=compiled is True) if isinstance(written, MLPGradient) else written
    if record is None or not (isinstance(written, MLPGradient) or repeats):
        return gradient
    kernels = OnLeaves(written, net) if isinstance(written, Autograd) else gradient
    return Recorded(kernels, record, compiled is True, walks_only)


def fuses(stack: ChainStack, loss: Loss, compiled: Compile, device: torch.device) -> bool:
    """Whether `torch.compile` fuses the kernels of the gradient: where it is asked for, on a GPU, for known layers."""
    return compiled is True and device.type in FUSING and _waits_for_nothing(loss) and _repeats_itself(stack)


def _waits_for_nothing(loss: Loss) -> bool:
    """Whether the loss is known never to wait for the device, as one that needs autograd may."""
    return isinstance(loss, Likelihood) and type(loss).mean_and_gradient is not Likelihood.mean_and_gradient


def of_stack(stack: ChainStack, loss: Loss) -> Autograd:
    """The gradient of a stack's mean losses, by autograd."""

    def losses(x: Inputs, y: Tensor) -> Tensor:
        return mean_loss(loss, stack(x), stack.per_chain(y), stack.chains)

    return Autograd(losses, [p for p in stack.parameters() if p.requires_grad])


def _in_turn(stack: ChainStack, loss: Loss, autograd: Autograd, branches: bool, fused: bool) -> InTurn | None:
    watched = hooked(stack) or is_compiled(stack) or any(map(has_tensor_hooks, stack.parameters()))
    if watched or stack.chains == 1:
        return None
    return InTurn(stack, loss, autograd.context, Branches(autograd.params[0].device) if branches else None, fused)


def _repeats_itself(stack: ChainStack) -> bool:
    """Whether all training steps have the same kernels: known layers alone, none hooked, none random."""
    return not is_compiled(stack) and all(
        type(m).__module__.startswith(KNOWN_PACKAGES)
        and not (hooked(m) or any(map(has_tensor_hooks, m.parameters(recurse=False))))
        and not (
            isinstance(m, RANDOM_LAYERS)
            or any(isinstance(p := getattr(m, n, 0), float) and p for n in ("p", "dropout"))
        )
        for m in stack.modules()
    )


def _written_out(stack: ChainStack, loss: Loss) -> MLPGradient | None:
    net = stack.net
    if type(net) is WithOffset and isinstance(loss, Likelihood):
        net, loss = net.net, OffsetLikelihood(loss, net.targets)
    layers = mlp_layers(net)
    hooks = (hooked(m) or any(map(has_tensor_hooks, m.parameters(recurse=False))) for m in stack.modules())
    watched = is_compiled(stack) or stack.frozen_names or any(hooks)
    if watched or layers is None or stack.method not in ("auto", "bmm") or not supports(layers):
        return None
    return MLPGradient(layers, stack.chains, loss, stack.shared)
