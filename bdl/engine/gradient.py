"""Gradients: the mean losses of a network or of a stack, and their gradients; and those of each item by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from bdl.batch import Inputs, map_tensors
from bdl.engine.branches import Branches
from bdl.engine.functional import call, named_tensors, on_leaves
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError
from bdl.fused import Fused
from bdl.lent import LentGradients
from bdl.likelihoods import Loss, mean_loss
from bdl.torch_private import gather

# (inputs, targets) -> () or (C,) mean losses, which autograd can differentiate
Losses = Callable[[Inputs, Tensor], Tensor]


class Gradient(ABC):
    """Mean losses of a batch, and the gradients of each chain's loss with respect to that chain's parameters."""

    params: list[Tensor]  # in the order in which gradients are written
    idle: Sequence[int] = ()  # parameters for which the last `write` found no gradient; their places hold zeros
    walks: bool = False  # whether `walk` may make steps
    launch: Callable[..., Any] | None = None  # runs a step's kernels together, see `Graphs.run`; None: one by one

    @abstractmethod
    def write(self, x: Inputs, y: Tensor, out: Sequence[Tensor]) -> Tensor:
        """The () or (C,) losses; the gradients go into `out`, tensors of the shapes of `params`.

        x: (C, B, ...), a batch per chain, or (B, ...) for one network or a shared batch. y: with the same leading axes.
        """

    def hold(self, x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
        """The batch where `write` may read it."""
        return x, y

    def walk(
        self, x: Tensor, y: Tensor, rows: Tensor | None, out: Sequence[Tensor], losses: Tensor, after: int, context: int
    ) -> int:
        """Many steps in compiled code: for each batch what `write` does, then a call of the C function `after`.

        x (N, ...), y (N, ...): the data. rows: (steps, C, B) or (steps, B) those of each step's batch; None: all, in
        their order. losses: (steps, C), is filled. after: address of `int64_t after(const void *context, int64_t step)`
        in C, which ends the walk where it does not return 0.

        Returns the number of steps that `after` has made; 0 where this form of the gradient knows single steps only.
        The step after the last may have written its losses and gradients.
        """
        return 0

    def batches(self, x: Tensor, y: Tensor, rows: Tensor | None, chains: int | None) -> Any:
        """What `Sampler.walk` takes: `walk` on these batches, or `HeldBatches` where graphs hold whole steps.

        chains: how many batches a step has, one for each chain; None where all chains share one.
        """
        return partial(self.walk, x, y, rows)

    def losses(self, x: Inputs, y: Tensor) -> Tensor:
        """The () or (C,) losses, until the next call. Their `backward` leaves the gradients in the parameters."""
        out = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in self.params]
        return WithGradients.apply(self.write(x, y, out), out, *self.params)  # type: ignore[no-any-return]


class Autograd(Gradient):
    """The gradient of any loss, by torch's autograd. `context`: in which losses are found, as that of a precision."""

    def __init__(
        self, losses: Losses, params: Sequence[Tensor], context: Callable[[], AbstractContextManager[Any]] = nullcontext
    ):
        self.params, self.losses_of, self.context = list(params), losses, context
        self._out: Sequence[Tensor] = ()
        self._lent: LentGradients | None = None

    def losses(self, x: Inputs, y: Tensor) -> Tensor:
        return self.losses_of(x, y)

    def write(self, x: Inputs, y: Tensor, out: Sequence[Tensor]) -> Tensor:
        if out is not self._out:
            self._out, self._lent = out, LentGradients(self.params, out) if LentGradients.pays(out) else None
        if self._lent is not None:
            self._lent.lend()
        else:
            for p in self.params:
                p.grad = None
        with torch.enable_grad():
            with self.context():
                losses = self.losses_of(x, y)
            backward(losses)
        self.idle = gather(self.params, out) if self._lent is None else self._lent.idle()
        return losses.detach()


def backward(losses: Tensor) -> None:
    """Leave the gradients of the () or (C,) losses in the parameters.

    Chain c's loss depends on its own parameters only, so the sum keeps gradients apart. Raises ConfigError for losses
    without a gradient.
    """
    if not losses.requires_grad:
        raise ConfigError(
            "the loss has no gradient: compute it from the outputs by torch's functions, without item(), detach() or "
            "no_grad()"
        )
    losses.sum().backward()


class OnLeaves(Gradient):
    """That of `Autograd` for a network, in kernels that a graph can hold.

    As long as a loss lives, as that of Lightning's own step does during a block, autograd adds gradients on the stream
    on which it first met a parameter. A graph is recorded on another stream. So each call has leaves of its own.
    """

    def __init__(self, gradient: Autograd, net: nn.Module):
        self.params, self._gradient, self._net = gradient.params, gradient, net

    def losses(self, x: Inputs, y: Tensor) -> Tensor:
        return self._gradient.losses(x, y)

    def write(self, x: Inputs, y: Tensor, out: Sequence[Tensor]) -> Tensor:
        with on_leaves(self._net, self.params) as leaves:
            gradient = Autograd(self._gradient.losses_of, leaves, self._gradient.context)
            losses = gradient.write(x, y, out)
        self.idle = gradient.idle
        return losses


class InTurn(Gradient):
    """That of `Autograd` for a stack whose networks run by themselves: each goes back before its next one runs.

    What a network keeps for its gradient is then held once, not once per chain. On a GPU `branches` may run several
    networks at once, and it is held for these. fused: whether `torch.compile` fuses the kernels of a network; the same
    code runs all of them.
    """

    def __init__(
        self,
        stack: ChainStack,
        loss: Loss,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        branches: Branches | None = None,
        fused: bool = False,
    ):
        self._names, params = zip(*((n, p) for n, p in stack.net.named_parameters() if p.requires_grad), strict=True)
        self.params = list(params)
        self._stack, self._loss, self._context = stack, loss, context
        self._branches = branches or Branches(self.params[0].device, most=1)
        self._fused = Fused(self._loss_of_one) if fused else None

    def write(self, x: Inputs, y: Tensor, out: Sequence[Tensor]) -> Tensor:
        networks, y = self._stack.networks(), self._stack.per_chain(y)
        losses, idle, each = [], set(range(len(self.params))), self._losses_in_turn(networks, x, y)
        with torch.enable_grad(), self._branches.fork(len(networks)) as branch:
            for c, network in enumerate(networks):
                with branch(c):  # the gradient of a kernel runs on the stream of the kernel
                    with self._context():
                        loss = next(each)
                    backward(loss)
                    losses.append(loss.detach())
                    leaves = [network[name] for name in self._names]
                    idle &= set(gather(leaves, [place[c] for place in out]))
                    for leaf in leaves:
                        leaf.grad = None
                    del loss  # and with it what the network has kept, before the next one runs
        self.idle = sorted(idle)
        return torch.cat(losses)

    def _losses_in_turn(self, networks: Sequence[dict[str, Tensor]], x: Inputs, y: Tensor) -> Iterator[Tensor]:
        """The (1,) loss of each network, which runs when it is asked for. y: (C, B, ...)."""
        if self._fused is None:
            for c, outputs in enumerate(self._stack.in_turn(networks, x)):
                yield mean_loss(self._loss, outputs.unsqueeze(0), y[c : c + 1], 1)
            return
        for c, network in enumerate(networks):
            batch = x if self._stack.shared else map_tensors(lambda t, c=c: t[c], x)
            yield self._fused(network, batch, y[c])

    def _loss_of_one(self, network: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        """(1,) the loss of one network for its batch (B, ...)."""
        return mean_loss(self._loss, self._stack.outputs_of(network, x).unsqueeze(0), y.unsqueeze(0), 1)


class WithGradients(torch.autograd.Function):
    """The losses (C,), to which autograd attributes gradients that are known already."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, gradients: list[Tensor], *params: Tensor) -> Tensor:
        ctx.gradients = gradients
        return losses.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Any:  # type: ignore[override]
        scaled = [g * upstream.view(-1, *[1] * (g.ndim - 1)) for g in ctx.gradients]
        return None, None, *scaled


def per_example_gradients(
    net: nn.Module, loss: Loss, x: Inputs, y: Tensor, tensors: Mapping[str, Tensor] | None = None
) -> Tensor:
    """(n, d) gradients of the loss of each item, one row per item, computed by torch.func.

    Columns are the parameters that require a gradient, in the order of `net.named_parameters()`.

    Args:
        loss: loss(outputs, y), the mean over a batch or one value per item. It is called with one item at a time.
        x, y: (n, ...) inputs and labels; several inputs as a tuple, or as a dict by name.
        tensors: parameters and buffers by name, to use instead of those of the network.

    Raises ConfigError for networks whose outputs for one item depend on the other items (BatchNorm in training).
    """
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers()), **(tensors or {})}
    live = {k: tensors[k].detach() for k, p in net.named_parameters() if p.requires_grad}
    rest = {k: v.detach() for k, v in tensors.items() if k not in live}

    def one(live: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        return loss(call(net, {**rest, **live}, map_tensors(lambda t: t.unsqueeze(0), x)), y.unsqueeze(0)).mean()

    try:
        rows = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(live, x, y)
    except RuntimeError as error:
        raise ConfigError(f"the network has no per-example gradients: {str(error).splitlines()[0]}") from error
    return torch.cat([rows[k].reshape(len(rows[k]), -1) for k in live], 1)


def per_chain_gradients(stack: ChainStack, loss: Loss, x: Inputs, y: Tensor) -> Tensor:
    """(C, n, d) gradients of the loss of each item, for every network of a stack."""
    data = None if stack.shared else 0
    axes = {name: None if name in stack.frozen_names else 0 for name in named_tensors(stack.net)}
    one = lambda t, x, y: per_example_gradients(stack.net, loss, x, y, t)  # noqa: E731
    return vmap(one, in_dims=(axes, data, data), randomness="different")(named_tensors(stack.net), x, y)
