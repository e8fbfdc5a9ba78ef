"""What the first batch shows: a loss that is no mean, a gradient that is not the loss's, and outputs misread."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
import torchmetrics
from torch import Tensor, nn

from bdl.batch import INPUT_ERRORS, Reader, count_items, feed, part_of, refuse_outputs, refuse_unfit
from bdl.engine.functional import evaluating
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood, Loss, mean_note, refuse_misfit
from bdl.samplers.sampler import Sampler

LARGEST = 10_000_000  # parameters of a network whose gradient is compared, which takes two copies of them
LEAST = 2e-4  # share of the loss that a difference has to be, well above rounding in float32
TRIES = 6  # lengths of a step, each ten times another
MOVE = 0.05  # share of their size by which parameters without a gradient are moved
UNLIKE = 0.2  # share of the slope by which a gradient may be off, where the loss has kinks


def check_mean(loss_of: Callable[[Any], Tensor], batch: Any, axis: int = 0) -> None:
    """Raise ConfigError for a loss that adds up the items of a batch. Other losses pass, weighted means too.

    The loss of a batch is compared with those of its halves: a mean lies between them, a sum is the sum of both.

    Args:
        loss_of: gives the loss of a batch, or those of all chains, in eval mode and without a trace in the module.
        batch: one of at least two items; others are not checked.
        axis: the axis of the items.
    """
    half = count_items(batch, axis) // 2
    if not half:
        return
    with torch.no_grad():
        parts = (slice(0, 2 * half), slice(0, half), slice(half, 2 * half))
        whole, first, second = (float(loss_of(part_of(batch, part, axis)).cpu().double().sum()) for part in parts)
    added, mean = first + second, (first + second) / 2
    if abs(whole - added) < 0.01 * abs(whole) and abs(whole - mean) > 0.1 * abs(whole):
        raise ConfigError(
            f"the loss adds up the items of a batch: it is {whole:.4g} for {2 * half} items, {first:.4g} and "
            f'{second:.4g} for their halves. Return the mean (reduction="mean"), which bdl multiplies by num_data'
        )


@torch.no_grad()
def gradient_note(loss_of: Callable[[], Tensor], params: Sequence[Tensor], chains: int | None) -> str | None:
    """What to tell of a loss whose gradient is another function's, as hooks make it; None where it fits.

    The slope of the loss along its gradient, by differences L(θ + e v) - L(θ - e v), is compared with the gradient's
    length. Differences at e and 2 e have to agree, or nothing is said.

    Args:
        loss_of: () or (C,) the loss at the present parameters, the same one each time; differentiable.
        params: the parameters, of one dtype. chains: C if they carry an axis of chains.
    """
    if params[0].dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(params[0].device.type):
        return None  # differences of losses would be rounding
    if sum(p.numel() for p in params) > LARGEST:
        return None
    with torch.enable_grad():
        try:
            loss = loss_of().sum()
        except INPUT_ERRORS:  # the step itself says what is wrong
            return None
        if not loss.requires_grad:
            return None
        found = torch.autograd.grad(loss, list(params), allow_unused=True)
    start = [p.clone() for p in params]
    if moves := _without_gradient(loss_of, params, found, float(loss.detach()), chains is None):
        return moves
    along = [torch.zeros_like(p) if g is None else g.to(p) for p, g in zip(params, found, strict=True)]
    length = float(torch.stack([v.square().sum().cpu().double() for v in along]).sum().sqrt())
    scale = abs(float(loss.detach()))

    def difference(e: float) -> float:
        ends = []
        for sign in (1, -1):
            for p, at, v in zip(params, start, along, strict=True):
                p.copy_(at + sign * e / length * v)
            ends.append(float(loss_of().cpu().double().sum()))
        return ends[0] - ends[1]

    if not (math.isfinite(length) and math.isfinite(scale) and length * scale > 0):
        return None
    e = 1e-3 * scale / length
    try:
        for _ in range(TRIES):
            rise = difference(e)
            if LEAST < abs(rise) / scale < 100 * LEAST:
                break
            e *= 10 if abs(rise) <= LEAST * scale else 0.1
        else:
            return None
        slopes = rise / (2 * e), difference(2 * e) / (4 * e)
    finally:
        for p, at in zip(params, start, strict=True):
            p.copy_(at)
    apart = abs(slopes[0] - slopes[1]) > 0.1 * max(map(abs, slopes))
    if apart or not all(abs(slope - length) > UNLIKE * max(slope, length) for slope in slopes):
        return None
    return (
        f"the gradient is not the loss's: along it the loss of the first batch rises by {slopes[0]:.3g} per unit of "
        f"length, and the gradient says {length:.3g}, so that the chain follows another distribution or temperature: "
        "remove the hook (register_hook, register_full_backward_hook) or the autograd.Function that changes it"
    )


def _without_gradient(
    loss_of: Callable[[], Tensor], params: Sequence[Tensor], found: Sequence[Tensor | None], loss: float, told: bool
) -> str | None:
    """What to tell of parameters that move the loss, and get no gradient from it. told: by the sampler."""
    still = [p for p, g in zip(params, found, strict=True) if (not told if g is None else not bool(g.any()))]
    start, ends = [p.clone() for p in still], []
    for sign in (1, -1, 1) if still else ():  # twice at one place, where a loss with draws of its own differs
        for p, at in zip(still, start, strict=True):
            wave = torch.arange(p.numel(), device=p.device, dtype=p.dtype).cos().view_as(p)
            p.copy_(at + sign * MOVE * (at.square().mean().sqrt() + MOVE) * wave)
        ends.append(float(loss_of().cpu().double().sum()))
    for p, at in zip(still, start, strict=True):
        p.copy_(at)
    if not ends or not abs(ends[0] - ends[1]) > max(LEAST * abs(loss), 10 * abs(ends[2] - ends[0])):
        return None
    return (
        f"{len(still)} of {len(params)} parameters get no gradient from the loss, which they change: a detach(), or a "
        "torch.no_grad() around a part of the network, so that they would follow the prior alone: remove it, or leave "
        "this part out of what is sampled by only="
    )


def check_first_batch(
    net: nn.Module, loss: Loss, batch: Any, read: Reader, loss_of: Callable[[Any], Tensor]
) -> str | None:
    """Raise ConfigError for a loss that is no mean, and for one that takes the outputs for something else.

    It is raised too for inputs that the network does not take. loss_of: see `check_mean`. Returns `mean_note`.
    """
    if not isinstance(loss, Likelihood):
        each = isinstance(net, ChainStack) and not net.shared  # a batch for each chain
        check_mean(loss_of, batch, axis=int(each))
    inputs, y = read(batch)
    labels = net.per_chain(y) if isinstance(net, ChainStack) and isinstance(y, Tensor) else y
    try:
        outputs = feed(net, inputs)
    except INPUT_ERRORS as error:
        refuse_unfit(net, inputs, error, lambda: feed(net, inputs))
        raise
    refuse_misfit(loss, refuse_outputs(net, outputs), labels)
    stacked = isinstance(net, ChainStack)
    return mean_note(loss, outputs[0], labels[0]) if stacked else mean_note(loss, outputs, labels)


def check_training_step(module: L.LightningModule, batch: Any, sampler: Sampler) -> str | None:
    """`check_mean` and `gradient_note` for a LightningModule, by its `training_step`, which logs nothing meanwhile.

    It is not checked where it steps by hand, or where it does not take half a batch.
    """

    def loss_of(part: Any) -> Tensor:
        returned: Any = module.training_step(part, 0)
        loss = returned["loss"] if isinstance(returned, Mapping) else returned
        return torch.zeros(()) if loss is None else loss

    if module.automatic_optimization:
        with _without_a_trace(module), contextlib.suppress(RuntimeError, IndexError, TypeError):
            check_mean(loss_of, batch)

            def again() -> Tensor:
                with torch.random.fork_rng(devices_of(module)):
                    return loss_of(batch)

            return gradient_note(again, sampler.sampled, sampler.chains)
    return None


def devices_of(module: L.LightningModule) -> list[torch.device]:
    """The devices other than the CPU whose random streams a module draws from."""
    return [module.device] if module.device.type == "cuda" else []


@contextmanager
def _without_a_trace(module: L.LightningModule) -> Iterator[None]:
    """Run the block in eval mode. The module logs nothing; its metrics and torch's random streams stay as they are."""
    metrics = [(m, copy.deepcopy(m.__getstate__())) for m in module.modules() if isinstance(m, torchmetrics.Metric)]
    silent: Any = module
    silent.log = silent.log_dict = lambda *_, **__: None
    try:
        with torch.random.fork_rng(devices_of(module)), evaluating(module):
            yield
    finally:
        del silent.log, silent.log_dict
        for metric, state in metrics:
            metric.__setstate__(state)
