"""Parts of a Sampler that make no sense together, or are of another type."""

from __future__ import annotations

from collections.abc import Sequence

from bdl.errors import ConfigError
from bdl.samplers.clipping import Clip
from bdl.samplers.divergence import OnDivergence
from bdl.samplers.dynamics.base import FullBatch, Transition
from bdl.samplers.exchange import Exchange
from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.blocks import Block
from bdl.samplers.weighting.base import AUTO, Weighting


def refuse_types(prior: Prior, weighting: Weighting, exchange: Exchange | None, clip: Clip | None) -> None:
    """Raise ConfigError for a part of another type, such as the number that it should hold."""
    parts = (
        ("prior", prior, Prior, "bdl.Gaussian(precision=1.0)"), ("weighting", weighting, Weighting, "bdl.Flat()"),
        ("exchange", exchange, Exchange | None, "bdl.Exchange(ladder=[1, 2])"),
        ("clip", clip, Clip | None, "bdl.ClipNorm(1.0)"),
    )  # fmt: skip
    for name, part, kind, example in parts:
        if not isinstance(part, kind):
            raise ConfigError(f"{name} must be an object such as {example}, got {part!r}")


def refuse_combinations(
    dynamics: Transition,
    weighting: Weighting,
    exchange: Exchange | None,
    clip: Clip | None,
    on_divergence: OnDivergence,
    chains: int | None,
) -> None:
    """Raise ConfigError for parts that make no sense together, and for a `dynamics` of another type."""
    name = type(dynamics).__name__
    if not isinstance(dynamics, Transition):
        raise ConfigError(
            "dynamics must be an object of a subclass of bdl.Dynamics or bdl.FullBatch, such as bdl.SGHMC(), got "
            f"{dynamics!r}"
        )
    kernel = isinstance(dynamics, FullBatch)
    if on_divergence != "stop" and (kernel or exchange is not None or (chains or 1) < 2):
        why = name if kernel else "replica exchange" if exchange is not None else "a single chain"
        raise ConfigError(f"on_divergence={on_divergence} needs a stack of chains that do not interact, and not {why}")
    if weighting.zeta == AUTO:
        raise ConfigError(
            'zeta="auto" is found before a sampler is made, by tune=auto on the command line or by '
            "bdl.find_settings(weighting=...) in Python: do that, or give a number such as 1, which changes little"
        )
    if exchange is not None:
        refuse_weighted_exchange(weighting)
    if dynamics.variational and (exchange is not None or weighting.needs_energy):
        raise ConfigError(f"{name} draws from its approximation: use Flat, and leave exchange null")
    if exchange is not None and not dynamics.noisy:
        raise ConfigError(f"{name} only optimises, so replicas have nothing to exchange: leave exchange null")
    if kernel:
        _refuse_beside_kernel(name, weighting, clip)


def refuse_weighted_exchange(weighting: Weighting) -> None:
    """Raise ConfigError for a weighting beside replica exchange, also for one whose zeta is still to be found."""
    if weighting.needs_energy:
        name = type(weighting).__name__
        raise ConfigError(f"replica exchange swaps by exp(-U/T) and {name} changes that: use Flat")


def _refuse_beside_kernel(name: str, weighting: Weighting, clip: Clip | None) -> None:
    """Raise ConfigError for parts that would change the law of a kernel that evaluates all the data."""
    if weighting.needs_energy:
        weighted_by = type(weighting).__name__
        raise ConfigError(f"{name} moves by the energies of exp(-U/T), which {weighted_by} changes: use Flat, or SGLD")
    if clip is not None:
        raise ConfigError(f"{name} needs the gradient as it is: leave clip null")


def refuse_learned(prior: Prior, dynamics: Transition, weighting: Weighting, exchange: Exchange | None) -> None:
    """Raise ConfigError for a learned precision where its conditional law is another one, or θ is not the chain's."""
    if not prior.learns:
        return
    remedy = "give the prior a number as its precision"
    if dynamics.variational:
        raise ConfigError(f"{type(dynamics).__name__} fits an approximation under a fixed prior: {remedy}")
    if weighting.needs_energy:
        raise ConfigError(
            f"{type(weighting).__name__} changes the distribution of a learned precision: use Flat, or {remedy}"
        )
    if exchange is not None:
        raise ConfigError(f"replica exchange swaps θ without its learned precision: leave exchange null, or {remedy}")


def refuse_factors(dynamics: Transition, exchange: Exchange | None, blocks: Sequence[Block]) -> None:
    """Raise ConfigError for blocks with a factor of lr, where the sampler has one lr for all parameters."""
    if all(block.lr_factor == 1 for block in blocks):
        return
    if not dynamics.per_coordinate:
        name = type(dynamics).__name__
        raise ConfigError(f"{name} takes one lr for all parameters: leave the lr_factor of the blocks at 1")
    if exchange is not None:
        raise ConfigError("replica exchange swaps states of one lr: leave the lr_factor of the blocks at 1")
