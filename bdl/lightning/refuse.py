"""Refuses Trainer settings under which the chain would sample another law, and data that are not its N items."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor

from bdl.data.loader import TensorBatches
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.samplers.sampler import Sampler


def check_trainer(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError for Trainer settings under which the sampler cannot work.

    Settings that change the law are allowed, and noted in `sampler.notes`. Under ddp the sampler receives the process
    group whose ranks share its chain. Under gradient accumulation the sampler learns whether the closure returns the
    mean loss of the whole batch.
    """
    _check_precision(trainer, sampler)
    _check_devices(trainer, sampler)
    _check_exactness(trainer, sampler)
    _check_clipping(trainer, sampler)
    _check_accumulation(trainer, sampler)
    _note_clipping(trainer, sampler)


def check_data(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError if N differs from the length of the training data, or a kernel would not see all of them."""
    data = getattr(trainer.train_dataloader, "dataset", None)
    if data is not None and hasattr(data, "__len__") and len(data) != sampler.num_data:
        raise ConfigError(
            f"num_data = {sampler.num_data}, but the training data have {len(data)} items: set num_data={len(data)}"
        )
    size = getattr(trainer.train_dataloader, "batch_size", None)
    if sampler.dynamics.full_batch and size is not None and size * trainer.world_size < sampler.num_data:
        devices = f" on each of {trainer.world_size} devices" if trainer.world_size > 1 else ""
        raise ConfigError(
            f"{type(sampler.dynamics).__name__} needs all the data in every batch, got batch_size = {size}{devices} of "
            f"{sampler.num_data} items: set it to {sampler.num_data} (data.batch_size=null) on one device, or use a "
            "stochastic-gradient sampler"
        )


def check_targets(trainer: L.Trainer, loss: Any) -> None:
    """Raise ConfigError for training targets outside the domain of the likelihood, where they lie in one tensor."""
    loader = trainer.train_dataloader
    tensors = getattr(getattr(loader, "dataset", None), "tensors", None)
    y = loader.y if isinstance(loader, TensorBatches) else tensors[-1] if tensors else None
    if isinstance(loss, Likelihood) and isinstance(y, Tensor):
        loss.check(y)


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


def _check_devices(trainer: L.Trainer, sampler: Sampler) -> None:
    if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
        raise ConfigError(
            f"{type(trainer.strategy).__name__} may give a device only a part of the parameters: run a chain on one "
            "device, or on several with strategy=ddp"
        )
    if trainer.world_size == 1:
        return
    sampler.group = sampler.group or dist.group.WORLD
    if "per_example" in sampler.dynamics.needs:
        raise ConfigError(
            f"{type(sampler.dynamics).__name__} needs the per-example gradients of the whole batch: use one device, or "
            "trainer=chains"
        )


def _check_exactness(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError where a full-batch kernel would not see the gradient of all the data as it is."""
    if sampler.dynamics.full_batch and (trainer.gradient_clip_val or trainer.accumulate_grad_batches > 1):
        raise ConfigError(
            f"{type(sampler.dynamics).__name__} needs the unchanged gradient of all the data: remove gradient_clip_val "
            "and accumulate_grad_batches"
        )


def _check_clipping(trainer: L.Trainer, sampler: Sampler) -> None:
    if trainer.gradient_clip_val and _clip_algorithm(trainer) == "norm" and sampler.chains:
        raise ConfigError(
            "gradient_clip_val takes one norm over all chains, which couples them: use clip=bdl.ClipNorm(c)"
        )


def _check_accumulation(trainer: L.Trainer, sampler: Sampler) -> None:
    if trainer.accumulate_grad_batches == 1:
        return
    if "per_example" in sampler.dynamics.needs:
        raise ConfigError(
            f"{type(sampler.dynamics).__name__} needs the per-example gradients of the whole batch: remove "
            f"accumulate_grad_batches={trainer.accumulate_grad_batches}"
        )
    if not getattr(trainer.lightning_module, "averages_micro_batches", False):
        sampler.loss_is_whole = False  # Lightning's closure returns the last micro-batch's share of the loss
    if sampler.weighting.needs_energy:
        raise ConfigError(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} shows the weighting the energy of the last "
            "micro-batch only: use a larger batch, or Flat weighting"
        )


def _note_clipping(trainer: L.Trainer, sampler: Sampler) -> None:
    if not trainer.gradient_clip_val:
        return
    note = (
        f"Lightning clips the loss gradient at {trainer.gradient_clip_val} ({_clip_algorithm(trainer)}); "
        "the clipped steps follow another law"
    )
    if note not in sampler.notes:
        sampler.notes.append(note)


def _clip_algorithm(trainer: L.Trainer) -> str:
    """Lightning's name of its way to clip; None means "norm" to Lightning."""
    return getattr(trainer.gradient_clip_algorithm, "value", None) or "norm"
