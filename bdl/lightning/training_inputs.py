"""The inputs of the training items, as far as they lie in memory or in the first batch."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.core.hooks import DataHooks
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, TensorDataset, default_collate

from bdl.batch import INPUT_ERRORS, Inputs, Reader, count_items, inputs_of_call, map_tensors, part_of, tensors_in
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.data.module import DataModule
from bdl.engine.stack import ChainStack
from bdl.errors import BdlWarning
from bdl.lightning.first_batch import check_training_step, devices_of
from bdl.lightning.host import reader_of
from bdl.lightning.module import BayesianModule
from bdl.lightning.refuse import warn_once
from bdl.posterior.seen_inputs import NUMBERS, recorded_inputs
from bdl.samplers.sampler import Sampler


def see_first_batch(
    trainer: L.Trainer, module: L.LightningModule, net: nn.Module, batch: Any, sampler: Sampler
) -> dict[str, Any]:
    """`check_training_step` of a module of the user's. Returns `recorded_inputs` of the training items.

    It is {} where nothing is known, and for data that a run encodes itself. net: the network that is sampled.
    """
    if isinstance(module, BayesianModule):
        return _inputs_seen(trainer, module, net, batch, None)
    with watched(net) as calls:
        if (note := check_training_step(module, batch, sampler)) is not None:
            warn_once(sampler, note, note)
    return _inputs_seen(trainer, module, net, batch, calls[0]) if calls else {}


def _inputs_seen(trainer: L.Trainer, module: L.LightningModule, net: nn.Module, batch: Any, fed: Any) -> dict[str, Any]:
    """fed: what the network was given of the batch, see `watched`; None where it is given what the batch holds."""
    datamodule: Any = getattr(trainer, "datamodule", None)
    if isinstance(datamodule, DataModule) and datamodule.preprocessing() is not None:
        return {}
    read, loader = reader_of(module), trainer.train_dataloader
    with torch.random.fork_rng(devices_of(module)), warnings.catch_warnings(action="ignore", category=BdlWarning):
        try:
            inputs = read(batch)[0]
            if fed is not None and not _alike(fed, part_of(inputs, slice(0, count_items(fed)))):
                return {}  # training_step changes them, and predictions are given what it makes
            if not _changes_batches(module, datamodule) and (known := _in_memory(loader, read)) is not None:
                return recorded_inputs(*known)
        except (*INPUT_ERRORS, TypeError, KeyError):  # methods of the user's that take one batch of theirs
            return {}
    if isinstance(net, ChainStack) and not net.shared:
        inputs = map_tensors(lambda t: t.flatten(0, 1), inputs)
    of_order = isinstance(loader, DataLoader) and isinstance(loader.sampler, RandomSampler)
    record = recorded_inputs(inputs, whole=False)  # in another order, the first batch is like others if it is of images
    return {name: about for name, about in record.items() if of_order or not about["features"]}


@contextlib.contextmanager
def watched(net: nn.Module) -> Iterator[list[Inputs]]:
    """A list that gets the inputs of the first call of the network in the block."""
    calls: list[Inputs] = []

    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not calls and not (args and kwargs):
            calls.append(inputs_of_call(args, kwargs))

    handle = net.register_forward_pre_hook(see, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def _alike(one: Inputs, other: Inputs) -> bool:
    pairs = list(tensors_in(one)), list(tensors_in(other))
    return len(pairs[0]) == len(pairs[1]) and all(map(torch.equal, *pairs))


def _changes_batches(*hosts: Any) -> bool:
    """Whether Lightning's hooks make other batches of those of the loader."""
    hooks = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
    own = [getattr(type(host), hook, None) for host in hosts for hook in hooks if host is not None]
    return any(hook not in {getattr(DataHooks, name) for name in hooks} for hook in own)


def _in_memory(loader: Any, read: Reader) -> tuple[Inputs, bool] | None:
    """The inputs of all items, or of many evenly spaced ones, and whether these are all; None if not in memory."""
    make: Callable[[Tensor], Tensor] | None = None
    tensors: tuple[Tensor, ...]
    if isinstance(loader, TensorBatches | WorkerBatches):
        slices = loader.slices()
        tensors, make, rows, complete = (slices.x, slices.y), slices.transform, None, True
    elif isinstance(loader, DataLoader) and loader.collate_fn is default_collate:
        data: Any = loader.dataset
        rows = None
        if type(data) is Subset:
            data, rows = data.dataset, torch.as_tensor(data.indices)
        if type(data) is not TensorDataset:
            return None
        tensors, complete = data.tensors, isinstance(loader.sampler, SequentialSampler | RandomSampler)
    else:
        return None
    count = len(tensors[0]) if rows is None else len(rows)
    every = max(1, math.ceil(count * max(t[:1].numel() for t in tensors) / NUMBERS))
    chosen = tuple(t[::every] if rows is None else t[rows[::every].to(t.device)] for t in tensors)
    batch = chosen if make is None else (make(chosen[0]), *chosen[1:])
    return read(batch)[0], complete and every == 1
