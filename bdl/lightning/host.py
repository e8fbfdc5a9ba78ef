"""What a Trainer and its module hold for a sampler: itself, its network, the batches, and what Lightning tells it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import lightning as L
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from bdl.batch import Inputs, Reader
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.data.ordered import order_of, ordered
from bdl.engine.forward import Forward
from bdl.engine.functional import drops_out
from bdl.engine.stack import ChainStack
from bdl.errors import BdlWarning, ConfigError
from bdl.samplers.batch_noise import left_by_a_pass
from bdl.samplers.host import Host
from bdl.samplers.sampler import Sampler

Kind = TypeVar("Kind", bound=L.Callback)


def find_sampler(trainer: L.Trainer) -> Sampler:
    """The Sampler that the module's `configure_optimizers` returned. Raises ConfigError if there is none."""
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, Sampler):
            return optimizer
    names = [type(o).__name__ for o in trainer.optimizers]
    raise ConfigError(f"configure_optimizers must return a bdl.Sampler, got {names or 'nothing'}")


def callbacks_of(trainer: L.Trainer, kind: type[Kind]) -> list[Kind]:
    """The callbacks of this kind, in their order."""
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, kind)]


def sampled_net(module: nn.Module, name: str | None) -> nn.Module:
    """The network whose tensors are the sample: the submodule `name`.

    Without a name it is the submodule `net`, or the module itself where it has no `net`. The name "" means the module.
    """
    if name is not None:
        return module.get_submodule(name)
    net = getattr(module, "net", module)
    return net if isinstance(net, nn.Module) else module


def plain_net(net: nn.Module) -> nn.Module:
    """The network itself, or the one whose parameters a stack has stacked: its names are those of one copy."""
    return net.net if isinstance(net, ChainStack) else net


def loss_of(module: nn.Module) -> Any:
    """The loss of a module; None where it has no attribute of that name."""
    return getattr(module, "loss", None)


def dataset_of(loader: Any) -> Any:
    """The data set of any loader; None where it has no attribute of that name."""
    return getattr(loader, "dataset", None)


def batches_of(loader: Any) -> int | None:
    """The batches of a pass; None where the loader, or its stream of items, has no length."""
    try:
        return len(loader)
    except TypeError:
        return None


def reader_of(module: nn.Module) -> Reader:
    """Reads the batches of a module: by its own methods, or else by those of its network, also in a stack."""
    return Reader(module, plain_net(sampled_net(module, None)))


def host_under(trainer: L.Trainer, host: Host, averages_micro_batches: bool = False) -> Host:
    """The host with what the Trainer knows: the processes, the batches, and how the loss is accumulated.

    Args:
        host: what the module says of itself.
        averages_micro_batches: whether the closure returns the mean loss of all micro-batches. Lightning's own returns
            the last one's share.
    """
    shared, loader = dist.group.WORLD if trainer.world_size > 1 else None, trainer.train_dataloader
    disjoint, random = _are_disjoint(loader), drops_out(trainer.lightning_module)
    whole = isinstance(loader, TensorBatches) and disjoint and loader.batch_size == len(loader.dataset)
    batches = batches_of(loader)
    parts, clips = trainer.accumulate_grad_batches, bool(trainer.gradient_clip_val)
    control = find_sampler(trainer).control is not None  # whose gradients of all the data come through the same places
    return replace(
        host,
        own_backward=not averages_micro_batches or parts == 1 and _has_own_backward(trainer.lightning_module),
        changes_gradients=clips or control or averages_micro_batches and parts > 1,
        group=host.group or shared,
        batches=batches,
        noise_share=left_by_a_pass(batches / parts) if batches and disjoint and not random else 1.0,
        sees_all_data=whole and not random,
        loss_is_whole=parts == 1 or averages_micro_batches,
    )


def _has_own_backward(module: nn.Module) -> bool:
    """Whether a BayesianModule back-propagates in a way of the user's: bdl's own goes through what autograd misses."""
    owner = next(kind for kind in type(module).__mro__ if "backward" in vars(kind))
    return "backward" in vars(module) or owner.__module__.partition(".")[0] != "bdl"


def _are_disjoint(loader: Any) -> bool:
    """Whether the batches of a pass are disjoint parts of the same items. False where that is not known."""
    if isinstance(loader, WorkerBatches):
        loader = loader.batches
    if isinstance(loader, TensorBatches):
        return not loader.replacement and loader.augment is None
    if not isinstance(loader, DataLoader):
        return False
    order = order_of(loader)
    return type(order) is SequentialSampler or type(order) is RandomSampler and not order.replacement


def in_order(loader: Any, most: int | None = None) -> Iterable[Any]:
    """All items of a training loader in batches, in a fixed order and without augmentation.

    most: items of a batch, where bdl.data decides. The loader keeps its position.

    Raises ConfigError for a loader that is none of bdl.data's and no DataLoader.
    """
    if isinstance(loader, TensorBatches | WorkerBatches):
        slices = loader.slices()
        return slices if most is None else slices.bound(most)
    if isinstance(loader, DataLoader):
        return ordered(loader)
    raise ConfigError(
        f"full-data energies need the items in a fixed order, which {type(loader).__name__} does not give: use a "
        "DataLoader or TensorBatches"
    )


def most_items(
    loader: Any, net: nn.Module, device: torch.device, read: Callable[[Any], tuple[Inputs, Any]]
) -> int | None:
    """Items that all chains of a network may run on at once on an accelerator; None on a CPU, and for other loaders.

    read: inputs and target of a batch, as the network takes them.
    """
    if device.type == "cpu" or not isinstance(loader, TensorBatches | WorkerBatches):
        return None
    inputs, _ = read(next(iter(loader.slices().bound(1))))
    return net.items(inputs) if isinstance(net, ChainStack) else Forward(net).items(inputs)


def refuse_shared_freeze(net: nn.Module, sampler: Sampler) -> None:
    """Raise ConfigError for a part that the sampler alone has frozen, in a stack with a copy of it for each chain."""
    live = {id(p) for p in sampler.sampled}
    if sampler.only is not None and isinstance(net, ChainStack) and not net.frozen_names:
        if any(id(p) not in live for p in net.parameters()):
            raise ConfigError(
                f"the Sampler samples only={sampler.only!r} of a stack whose chains share nothing: "
                "ChainStack(net, C, only=...) keeps one frozen part, with the values of the network"
            )


def share_batches(stack: ChainStack, sampler: Sampler) -> None:
    """Let all chains share the batches of a DataLoader, unless the stack was told how to read its batches."""
    if not stack.follows_loader:
        return
    note = (
        f"the {stack.chains} chains share the DataLoader's batches. Each samples the same posterior as with batches of "
        "its own, but common batch noise may make chains agree more than independent ones, and R-hat look better. "
        "ChainStack(net, C, shared=True) says that you mean it; bdl.data.TensorBatches(x, y, batch_size, chains=C) "
        "gives each chain its own"
    )
    if not stack.shared:
        warnings.warn(note, BdlWarning, stacklevel=2)
        sampler.notes.append(note)
    stack.shared = True
