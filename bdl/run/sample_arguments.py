"""What `bdl.sample` takes by name: one list of types for its overloads, which differ in the loss alone; and checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, Required, TypedDict

from bdl.errors import ConfigError, check_whole, did_you_mean
from bdl.frozen import FrozenMode, Only
from bdl.lean import L
from bdl.lightning.callbacks import Schedule
from bdl.run.sampler_settings import SamplerSettings
from bdl.samplers.clipping import Clip
from bdl.samplers.combinations import refuse_types
from bdl.samplers.divergence import OnDivergence
from bdl.samplers.dynamics.base import Scalar, Transition
from bdl.samplers.estimator import GradientEstimator
from bdl.samplers.exchange import Exchange
from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.blocks import Blocks
from bdl.samplers.weighting.base import Weighting
from bdl.schedules import EveryStep, Keep


class SampleArguments(TypedDict, total=False):
    """Arguments of `bdl.sample`, then those that it hands to `bdl.Sampler`."""

    steps: Required[int]
    lr: Required[float]
    dynamics: Transition
    keep: Keep | None
    full_energy: bool | None
    chains: int | None
    start: Literal["fresh", "given"] | None
    test: Iterable[Any] | Mapping[str, Iterable[Any]] | None
    schedule: Schedule | None
    seed: int
    checkpoint_every: int
    monitor_every: int
    accelerator: str
    threads: int | None
    callbacks: Sequence[L.Callback]
    num_data: int
    temperature: Scalar
    prior: Prior
    weighting: Weighting
    clip: Clip | None
    gradient: Literal["control"] | GradientEstimator | None
    exchange: Exchange | None
    only: Only
    frozen: FrozenMode
    blocks: Blocks | None
    on_divergence: OnDivergence
    stack: int


def default_keep(steps: int) -> Keep:
    """50 to 100 states of the second half, or all of it where it has fewer.

    >>> [default_keep(steps).count(steps) for steps in (1, 3, 10, 200, 201, 1000, 5000)]
    [1, 2, 5, 100, 50, 100, 100]
    """
    return EveryStep(burn_in=steps // 2, every=-(-steps // 200))


def check_arguments(
    steps: Any, keep: Any, start: Any, test: Any, schedule: Any, seed: Any, callbacks: Any, sampler: Mapping[str, Any]
) -> None:
    """Raise ConfigError for arguments that are not what `bdl.sample` takes. sampler: those for `bdl.Sampler`."""
    check_whole("steps", steps)
    check_whole("seed", seed, 0)
    if keep is not None and not isinstance(keep, Keep):
        raise ConfigError(f"keep must be a rule such as bdl.schedules.EveryStep(burn_in=0, every=10), got {keep!r}")
    if start not in (None, "fresh", "given"):
        raise ConfigError(f'start must be "fresh", "given" or None, got {start!r}')
    if test is not None and not isinstance(test, Iterable):
        raise ConfigError(f"test must be a loader of labelled batches, or a dict of several, got {test!r}")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ConfigError(f"schedule must be an object such as bdl.Schedule(lr=..., temperature=...), got {schedule!r}")
    if not isinstance(callbacks, Sequence) or not all(isinstance(each, L.Callback) for each in callbacks):
        raise ConfigError(f"callbacks must be a list of Lightning's callbacks, got {callbacks!r}")
    known = [field.name for field in fields(SamplerSettings)]
    for name in sampler:
        if name not in known:
            hint = did_you_mean(name, [*known, *SampleArguments.__annotations__])
            raise ConfigError(
                f"{name} is no argument of bdl.sample{hint}: help(bdl.Sampler) lists those of the sampler"
            )
    made = {field.name: sampler.get(field.name, field.default) for field in fields(SamplerSettings)}
    refuse_types(made["prior"], made["weighting"], made["exchange"], made["clip"])
