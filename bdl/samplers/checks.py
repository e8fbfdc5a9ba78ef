"""What a Sampler refuses: numbers that can't be meant, pieces that make no sense together, chains that are one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.samplers.accepting import refuse_for_kernel
from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.weighting.weightings import Weighting

if TYPE_CHECKING:
    from bdl.samplers.sampler import Sampler


def check_number(name: str, value: Scalar, chains: int | None, strict: bool) -> None:
    """Raise ConfigError unless lr or T is a number, or one per chain, > 0 (strict) or >= 0."""
    if isinstance(value, Tensor) and value.ndim > 0 and value.shape != (chains,):
        raise ConfigError(f"{name} must be a number or have one per chain ({chains}), got shape {tuple(value.shape)}")
    ok = (value > 0) if strict else (value >= 0)
    if not (bool(ok.all()) if isinstance(ok, Tensor) else ok):
        raise ConfigError(f"{name} must be {'>' if strict else '>='} 0, got {value}")


def check_loss(loss: Tensor | None, lead: torch.Size | tuple[int, ...], weighting: Weighting, called: bool) -> None:
    """Raise ConfigError unless the closure returned one mean loss, or one per chain: shape `lead`.

    None will do where nothing needs an energy. called: was there a closure?
    """
    if loss is None:
        if weighting.needs_energy:
            cause = "the closure returned no loss" if called else "call step(closure)"
            raise ConfigError(f"{type(weighting).__name__} needs the energy of every step: {cause}")
        return
    if loss.shape != lead:
        wanted = f"the {lead[0]} mean losses, shape ({lead[0]},)" if lead else "one mean loss, shape ()"
        raise ConfigError(f"the closure must return {wanted}, got shape {tuple(loss.shape)}")


def refuse_combinations(sampler: Sampler) -> None:
    """Raise ConfigError for pieces that make no sense together."""
    dynamics, weighting, exchange = sampler.dynamics, sampler.weighting, sampler.exchange
    name, weighted = type(dynamics).__name__, weighting.needs_energy
    if exchange is not None and weighted:
        raise ConfigError(f"replica exchange swaps by exp(-U/T) and {type(weighting).__name__} changes that: use Flat")
    if hasattr(dynamics, "entropy") and (exchange is not None or weighted):
        raise ConfigError(f"{name} draws from its approximation: no weighting and no exchange")
    if exchange is not None and not getattr(dynamics, "noisy", True):
        raise ConfigError(f"{name} samples nothing that replicas could exchange: leave it out")
    if sampler.is_kernel:
        refuse_for_kernel(sampler)


def refuse_idle(dynamics: Any, name: str) -> None:
    """Raise ConfigError where a thermostat would average over a parameter without a gradient."""
    raise ConfigError(
        f"the thermostat of {type(dynamics).__name__} averages over all parameters, but {name} has no gradient: "
        "freeze it (requires_grad = False)"
    )


def refuse_identical(theta: Tensor, g: Tensor) -> None:
    """Raise ConfigError for chains (C, d) that nothing tells apart: one start, one gradient, and no noise."""
    if bool((theta == theta[0]).all()) and bool((g == g[0]).all()):
        raise ConfigError(
            f"{len(theta)} identical chains: same start, same batches and no noise; start them apart "
            "(bdl.ChainStack does), give each its own batches, or set temperature > 0"
        )
