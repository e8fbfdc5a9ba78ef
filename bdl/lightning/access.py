"""Finding the Sampler and the network inside any LightningModule; refusing Trainer settings that break the law."""

from __future__ import annotations

from typing import Any

import lightning as L
from torch import Tensor, nn

from bdl.errors import ConfigError
from bdl.lightning.chains import ChainStack
from bdl.samplers import Sampler


def find_sampler(trainer: L.Trainer) -> Sampler:
    """The Sampler that the module's `configure_optimizers` returned. Raises ConfigError if there is none."""
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, Sampler):
            return optimizer
    names = [type(o).__name__ for o in trainer.optimizers]
    raise ConfigError(f"configure_optimizers must return a bdl.Sampler, got {names or 'nothing'}")


def check_trainer(trainer: L.Trainer, sampler: Sampler) -> None:
    """Raise ConfigError for Trainer settings under which the sampler can't work; note those that change the law."""
    if str(trainer.precision) == "16-mixed":
        raise ConfigError("precision=16-mixed scales the loss and steps without a closure: use bf16-mixed or 32-true")
    if trainer.accumulate_grad_batches > 1 and sampler.weighting.needs_energy:
        raise ConfigError(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} shows the weighting the energy of the last "
            "micro-batch only: use a larger batch, or Flat weighting"
        )
    if trainer.gradient_clip_val:
        sampler.notes.append(
            f"Lightning clips the loss gradient at {trainer.gradient_clip_val} "
            f"({trainer.gradient_clip_algorithm or 'norm'}); where it acts, the law is another one"
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
