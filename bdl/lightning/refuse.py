"""Refuses Trainer settings under which a chain would sample another distribution, and data that are not N items."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    default_collate,
)

from bdl.batch import Reader, tensors_in
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.data.ordered import asks_for_batches, counts_of, data_in_words, length_of, order_of, preferred, size_of
from bdl.engine.stack import ChainStack
from bdl.errors import BdlWarning, ConfigError
from bdl.frozen import WHOLE
from bdl.lightning.host import dataset_of, sampled_net
from bdl.likelihoods import CategoricalNLL, Likelihood
from bdl.samplers.sampler import Sampler
from bdl.schedules import Keep

# Callbacks of Lightning that step, or change weights, by themselves; and what to do instead
OWN_STEPS = {
    "StochasticWeightAveraging": "bdl.ModelAverage averages the weights, and a posterior averages predictions",
    "WeightAveraging": "bdl.ModelAverage averages the weights, and a posterior averages predictions",
    "LearningRateFinder": "bdl.tune finds lr",
    "BatchSizeFinder": "choose the batch size before",
    "ModelPruning": "prune the networks that are loaded",
    "BackboneFinetuning": "Sampler(only=...) samples a part",
}

TRIAL = 100  # steps; fewer only try the code


def check_trainer(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError for Trainer settings under which the sampler cannot work.

    Settings that change the target distribution are allowed, and noted in `sampler.notes`.
    """
    _check_callbacks(trainer)
    _check_precision(trainer, sampler)
    _check_parts(trainer, sampler)
    _check_clipping(trainer, sampler)


def check_data(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError if N differs from the length of the training data, or a kernel would not see all of them.

    N may also count the elements of the items, such as tokens. Raises it too for devices that would all see the same
    batches. An estimator of gradients checks more: `GradientEstimator.check_trainer`.
    """
    loader = trainer.train_dataloader
    if sampler.control is not None:
        sampler.control.check_trainer(trainer)
    if isinstance(loader, TensorBatches | WorkerBatches) and loader.ranks != trainer.world_size:
        raise ConfigError(
            f"each of {trainer.world_size} devices would see the same batches: "
            "loader.shard(trainer.global_rank, trainer.world_size) gives each its part"
        )
    if type(loader) in (list, tuple, dict) and next(tensors_in(loader), None) is not None:
        raise ConfigError(
            f"Lightning takes a {type(loader).__name__} as several loaders, and each tensor in it as one: give "
            "DataLoader(batches, batch_size=None, shuffle=True)"
        )
    net = sampled_net(trainer.lightning_module, None)
    axis = int(isinstance(net, ChainStack) and not net.shared and not net.follows_loader)
    items, counts = sampler.num_data, counts_of(loader, axis)
    if counts and items not in counts:
        elements = elements_of(loader, axis)
        if not counts[0] < items <= counts[-1] * elements:
            each = f" of {elements} elements" if elements > 1 else ""
            raise ConfigError(
                f"num_data = {items}, but {data_in_words(counts)}{each}: set num_data={counts[-1] * elements}"
            )
        items = counts[-1]
    if len(counts) > 1 and items == counts[0] > counts[-1]:
        line = f"{data_in_words(counts)}, and the posterior is that of num_data = {items}: set num_data={counts[-1]}"
        warn_once(sampler, line, line)
    _warn_of_a_part(trainer, sampler, length_of(loader) or items)
    size = size_of(loader)
    if size is not None and sampler.dynamics.batch_of(items, seen := size * trainer.world_size) > seen:
        devices = f" on each of {trainer.world_size} devices" if trainer.world_size > 1 else ""
        raise ConfigError(
            f"{type(sampler.dynamics).__name__} needs all the data in every batch, got batch_size = {size}{devices} of "
            f"{items} items: set it to {items} (data.batch_size=null) on one device, or use a "
            "stochastic-gradient sampler"
        )


def _warn_of_a_part(trainer: L.Trainer, sampler: Sampler, items: int) -> None:
    """Warn once where the run visits a part of the data only, or some items more often than others."""
    note, remedy = _part(trainer, items)
    if note:
        note = f"{note}, and the posterior is that of all {items}"
        warn_once(sampler, note, f"{note}: {remedy}")


def _part(trainer: Any, items: int) -> tuple[str, str]:
    """Which items the run visits, or prefers, and a remedy; empty words where it visits all alike."""
    loader = trainer.train_dataloader
    order = order_of(loader)
    if type(order) is SequentialSampler:
        steps = trainer.estimated_stepping_batches
        visited = steps * trainer.accumulate_grad_batches * (size_of(loader) or items) * trainer.world_size
        if visited >= items or steps < TRIAL:
            return "", ""
        return f"{steps} steps visit the first {visited} items", "shuffle the loader, or run longer than an epoch"
    known = order is None or type(order) is RandomSampler or isinstance(order, DistributedSampler)
    counted = None if known or trainer.world_size > 1 else preferred(loader, items)
    weighs = isinstance(order, WeightedRandomSampler) and len(order.weights.unique()) > 1
    if not weighs and not (counted and counted[1]):
        return "", ""
    name, visited = type(order).__name__, counted[0] if counted else items
    if visited < items:
        return f"{name} visits {visited} items", "give the loader a Subset of the data, and count its items"
    return f"{name} prefers some items", "visit all of them equally often, as shuffle=True does"


def warn_once(sampler: Sampler, note: str, line: str) -> None:
    """Warn with a line, and keep the note, which is said once."""
    if note not in sampler.notes:
        sampler.notes.append(note)
        warnings.warn(line, BdlWarning, stacklevel=4)


def elements_of(loader: Any, axis: int = 0) -> int:
    """The elements of the first item that have a class each, such as tokens; 1 where an item has one target."""
    try:
        y = loader.y[0] if isinstance(loader, TensorBatches) else Reader()(loader.dataset[0])[1]
    except Exception:  # a data set of somebody's own may be read in another way
        return 1
    if not isinstance(y, Tensor) or y.is_floating_point():
        return 1
    batches = isinstance(loader, DataLoader) and loader.batch_sampler is None and not asks_for_batches(loader)
    return y.numel() // max(1, y.shape[axis]) if batches else y.numel()


def check_targets(trainer: L.Trainer, loss: Any, outputs_of: Callable[[Tensor], Tensor] | None = None) -> None:
    """Raise ConfigError for training targets outside the domain of the likelihood, where they lie in one tensor.

    outputs_of: the outputs (1, ...) or (C, 1, ...) for a batch of one item. An accelerator tells of a class that the
    network does not have by an error of its driver, after which the process can do nothing more there.
    """
    loader: Any = trainer.train_dataloader
    loader = loader.batches if isinstance(loader, WorkerBatches) else loader
    tensors = getattr(dataset_of(loader), "tensors", None)
    y = loader.y if isinstance(loader, TensorBatches) else tensors[-1] if tensors else None
    if not isinstance(y, Tensor):
        return
    one = None
    if isinstance(loader, TensorBatches):
        one, _ = next(iter(loader.slices().bound(1)))
    elif tensors and len(tensors) == 2 and getattr(loader, "collate_fn", None) is default_collate:
        one = tensors[0][:1]
    outputs = None if outputs_of is None or one is None else outputs_of(one)
    if isinstance(loss, Likelihood):
        loss.check_items(y, None if outputs is None else loss.arranged(outputs).shape[-1])
    elif isinstance(loss, nn.CrossEntropyLoss) and outputs is not None and not y.is_floating_point():
        CategoricalNLL().check(y[y != loss.ignore_index], outputs.shape[-y.ndim])  # behind the axis of the items


def _check_callbacks(trainer: L.Trainer) -> None:
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    for kind in (base for callback in callbacks for base in type(callback).__mro__):
        if kind.__module__.startswith("lightning.") and kind.__name__ in OWN_STEPS:
            raise ConfigError(
                f"the callback {kind.__name__} makes steps or changes weights by itself, which moves the chain away "
                f"from the posterior: remove it; {OWN_STEPS[kind.__name__]}"
            )


def _check_precision(trainer: L.Trainer, sampler: Sampler) -> None:
    precision, device = str(trainer.precision), trainer.strategy.root_device
    if precision not in ("32-true", "64-true", "bf16-mixed"):
        raise ConfigError(
            f"precision={precision} rounds the injected noise away or steps without a closure: "
            "use bf16-mixed or 32-true"
        )
    if precision == "bf16-mixed" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise ConfigError(f"{torch.cuda.get_device_name(device)} has no bfloat16: set trainer.precision=32-true")
    if sampler.dynamics.full_batch and precision == "bf16-mixed":
        raise ConfigError(
            f"{type(sampler.dynamics).__name__} compares energies, which precision={precision} rounds too much: "
            "use 32-true"
        )


def check_strategy(trainer: L.Trainer) -> None:
    """Raise ConfigError for a strategy that may divide the parameters, as FSDP's and DeepSpeed's do."""
    whole = isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy)
    if not whole or isinstance(trainer.strategy, DeepSpeedStrategy):  # which is a DDPStrategy by inheritance
        raise ConfigError(
            f"{type(trainer.strategy).__name__} may give a device a part of the parameters, and a chain lies whole on "
            f"each: {WHOLE}"
        )


def _check_parts(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError where what the sampler needs as a whole would be split over devices."""
    check_strategy(trainer)
    synced = any(isinstance(m, nn.SyncBatchNorm) for m in trainer.lightning_module.modules())
    if synced and (sampler.chains or 1) > 1:
        raise ConfigError(
            f"sync_batchnorm=true knows one network, and {sampler.chains} chains have statistics of their own: set "
            "trainer.sync_batchnorm=false, chains=1, or model.norm=filter_response, which needs no batch"
        )
    _check_micro_batches(trainer, sampler)


def _check_micro_batches(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError where the sampler needs a whole batch, and would see its parts."""
    name, micro_batches = type(sampler.dynamics).__name__, trainer.accumulate_grad_batches
    parts = {"per_example": "the per-example gradients", "noise_draws": "gradients of parts"}
    needed = [what for name, what in parts.items() if name in sampler.dynamics.needs]
    if needed and (trainer.world_size > 1 or micro_batches > 1):
        remedy = f"remove accumulate_grad_batches={micro_batches}"
        remedy = "use one device, or trainer=chains" if trainer.world_size > 1 else remedy
        raise ConfigError(f"{name} needs {needed[0]} of the whole batch: {remedy}")
    if sampler.dynamics.full_batch and (trainer.gradient_clip_val or micro_batches > 1):
        raise ConfigError(
            f"{name} needs the unchanged gradient of all the data: remove gradient_clip_val and accumulate_grad_batches"
        )
    if sampler.weighting.needs_energy and micro_batches > 1:
        raise ConfigError(
            f"accumulate_grad_batches={micro_batches} shows the weighting the energy of the last micro-batch only: "
            "use a larger batch, or Flat weighting"
        )


def _check_clipping(trainer: L.Trainer, sampler: Sampler) -> None:
    """Note that Lightning clips. Raise ConfigError where that couples chains."""
    if not trainer.gradient_clip_val:
        return
    algorithm = getattr(trainer.gradient_clip_algorithm, "value", None) or "norm"  # None means "norm" to Lightning
    if algorithm == "norm" and sampler.chains:
        raise ConfigError(
            "gradient_clip_val takes one norm over all chains, which couples them: use clip=bdl.ClipNorm(c)"
        )
    clips = f"Lightning clips the loss gradient at {trainer.gradient_clip_val} ({algorithm})"
    note = f"{clips}; the clipped steps follow another distribution"
    if note not in sampler.notes:
        sampler.notes.append(note)


def check_keep_rule(keep: Keep, sampler: Sampler, total: float) -> None:
    """Raise ConfigError if the rule keeps nothing in `total` steps, or keeps states while the sampler adapts."""
    if total != math.inf and keep.count(int(total)) == 0:
        raise ConfigError(f"{keep} keeps no sample in {int(total)} steps: shorten burn_in or every, or run longer")
    for part in (sampler.dynamics, sampler.exchange):
        adapting = 0 if part is None else part.adapt_steps or 0
        if keep.count(adapting):
            within = f"within the first {adapting} steps, in which {type(part).__name__} still adapts"
            raise ConfigError(f"{keep} keeps samples {within}: raise burn_in or lower adapt_steps")


def check_saved(net: nn.Module, module: L.LightningModule, sampler: Sampler) -> None:
    """Raise ConfigError if a parameter of the module is sampled but not part of `net`, whose tensors are saved."""
    saved, sampled = {id(p) for p in net.parameters()}, {id(p) for p in sampler.param_groups[0]["params"]}
    missing = [n for n, p in module.named_parameters() if p.requires_grad and id(p) in sampled - saved]
    if missing:
        raise ConfigError(f'{missing[0]} is sampled but not part of the network that is saved: pass net="" to save all')


def check_network(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Raise ConfigError for the state of another network: one line, where torch would list every tensor."""
    of_saved, of_present = ({k: tuple(getattr(v, "shape", ())) for k, v in s.items()} for s in (saved, present))
    for name in [*of_present, *of_saved]:
        if of_saved.get(name) != of_present.get(name):
            there, here = (f"shape {d[name]}" if name in d else "no such tensor" for d in (of_saved, of_present))
            raise ConfigError(
                "the checkpoint belongs to another network, data set or number of chains: "
                f"{name} has {there} in it, and {here} in this module; build the network that was saved, or start "
                "without the checkpoint"
            )
