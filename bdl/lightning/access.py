"""Finding the Sampler and the network inside any LightningModule; refusing Trainer settings that break the law."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn

from bdl.errors import ConfigError
from bdl.models.stack import ChainStack
from bdl.samplers.sampler import Sampler


def find_sampler(trainer: L.Trainer) -> Sampler:
    """The Sampler that the module's `configure_optimizers` returned. Raises ConfigError if there is none."""
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, Sampler):
            return optimizer
    names = [type(o).__name__ for o in trainer.optimizers]
    raise ConfigError(f"configure_optimizers must return a bdl.Sampler, got {names or 'nothing'}")


def check_trainer(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError for Trainer settings under which the sampler can't work; note those that change the law.

    Under ddp the sampler gets the group whose ranks share its chain.
    """
    _check_devices(trainer, sampler)
    _check_gradient(trainer, sampler)


def _check_devices(trainer: L.Trainer, sampler: Sampler) -> None:
    """Precision, and which devices hold what."""
    name, device = type(sampler.dynamics).__name__, trainer.strategy.root_device
    if str(trainer.precision) not in ("32-true", "64-true", "bf16-mixed"):
        raise ConfigError(
            f"precision={trainer.precision} rounds the noise away or steps without a closure: use bf16-mixed or 32-true"
        )
    if trainer.precision == "bf16-mixed" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise ConfigError(f"{torch.cuda.get_device_name(device)} has no bfloat16: set trainer.precision=32-true")
    if sampler.dynamics.accept_reject and str(trainer.precision) not in ("32-true", "64-true"):
        raise ConfigError(f"{name} compares energies, which precision={trainer.precision} rounds too much: use 32-true")
    if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
        raise ConfigError(
            f"{type(trainer.strategy).__name__} may hold parts of the parameters only: a chain runs on one device, or "
            "on several with strategy=ddp"
        )
    if trainer.world_size > 1:
        sampler.group = sampler.group or dist.group.WORLD
    if trainer.world_size > 1 and "per_example" in sampler.dynamics.needs:
        raise ConfigError(f"{name} needs the per-example gradients of the whole batch: one device, or trainer=chains")


def _check_gradient(trainer: L.Trainer, sampler: Sampler) -> None:
    """What the Trainer does to the gradient before the sampler sees it: clipping, accumulation."""
    name = type(sampler.dynamics).__name__
    if sampler.dynamics.accept_reject and (trainer.gradient_clip_val or trainer.accumulate_grad_batches > 1):
        raise ConfigError(f"{name} needs the gradient of all the data as it is: no clipping, no accumulation")
    if trainer.accumulate_grad_batches > 1 and "per_example" in sampler.dynamics.needs:
        raise ConfigError(f"{name} needs the per-example gradients of the whole batch: no accumulate_grad_batches")
    algorithm = getattr(trainer.gradient_clip_algorithm, "value", None) or "norm"
    if trainer.gradient_clip_val and algorithm == "norm" and sampler.chains:
        raise ConfigError(
            "gradient_clip_val takes one norm over all chains, which couples them: use clip=bdl.ClipNorm(c)"
        )
    if trainer.accumulate_grad_batches > 1 and not getattr(trainer.lightning_module, "averages_micro_batches", False):
        sampler.loss_is_whole = False  # Lightning hands on the last micro-batch's share
    if trainer.accumulate_grad_batches > 1 and sampler.weighting.needs_energy:
        raise ConfigError(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} shows the weighting the energy of the last "
            "micro-batch only: use a larger batch, or Flat weighting"
        )
    if trainer.gradient_clip_val:
        note = (
            f"Lightning clips the loss gradient at {trainer.gradient_clip_val} "
            f"({algorithm}); where it acts, the law is another one"
        )
        if note not in sampler.notes:
            sampler.notes.append(note)


def check_data(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError if N differs from the training data, where these have a length."""
    data = getattr(trainer.train_dataloader, "dataset", None)
    if data is not None and hasattr(data, "__len__") and len(data) != sampler.num_data:
        raise ConfigError(
            f"num_data = {sampler.num_data}, but the training data have {len(data)} items: set num_data={len(data)}"
        )
    size = getattr(trainer.train_dataloader, "batch_size", None)
    if sampler.dynamics.accept_reject and size is not None and size * trainer.world_size < sampler.num_data:
        devices = f" on each of {trainer.world_size} devices" if trainer.world_size > 1 else ""
        raise ConfigError(
            f"{type(sampler.dynamics).__name__} needs all the data in every batch, got batch_size = {size}{devices} of "
            f"{sampler.num_data} items: set it to {sampler.num_data} (data.batch_size=null) on one device, or use a "
            "stochastic-gradient sampler"
        )


def sampled_net(module: nn.Module, name: str | None) -> nn.Module:
    """The network whose tensors are the sample: the submodule `name`, `net` unless given, or the module itself."""
    if name is not None:
        return module.get_submodule(name)
    net = getattr(module, "net", module)
    return net if isinstance(net, nn.Module) else module


def stacked_tensors(net: nn.Module, chains: int | None) -> dict[str, Tensor]:
    """Parameters and buffers by the network's own names, leading axis = chains (1 for a single chain). Not copies."""
    inner = net.net if isinstance(net, ChainStack) else net
    tensors: dict[str, Any] = {**dict(inner.named_parameters()), **dict(inner.named_buffers())}
    return {k: v.detach() if chains is not None else v.detach().unsqueeze(0) for k, v in tensors.items()}


def per_chain(value: Any, chains: int | None) -> list[float]:
    """A float, () or (C,) tensor as a list with one number per chain."""
    count = chains or 1
    if not isinstance(value, Tensor):
        return [float(value)] * count
    numbers = value.detach().double().reshape(-1).tolist()
    return numbers * count if len(numbers) == 1 else numbers
