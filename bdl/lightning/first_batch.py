"""What the first batch shows: a loss that is no mean, and outputs that the loss takes for something else."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
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


def check_training_step(module: L.LightningModule, batch: Any) -> None:
    """`check_mean` for a LightningModule, by its `training_step`, which logs nothing meanwhile.

    It is not checked where it steps by hand, or where it does not take half a batch.
    """

    def loss_of(part: Any) -> Tensor:
        returned: Any = module.training_step(part, 0)
        loss = returned["loss"] if isinstance(returned, Mapping) else returned
        return torch.zeros(()) if loss is None else loss

    if module.automatic_optimization:
        with _without_a_trace(module), contextlib.suppress(RuntimeError, IndexError, TypeError):
            check_mean(loss_of, batch)


@contextmanager
def _without_a_trace(module: L.LightningModule) -> Iterator[None]:
    """Run the block in eval mode. The module logs nothing; its metrics and torch's random streams stay as they are."""
    metrics = [(m, copy.deepcopy(m.__getstate__())) for m in module.modules() if isinstance(m, torchmetrics.Metric)]
    silent: Any = module
    silent.log = silent.log_dict = lambda *_, **__: None
    devices = [module.device] if module.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), evaluating(module):
            yield
    finally:
        del silent.log, silent.log_dict
        for metric, state in metrics:
            metric.__setstate__(state)
