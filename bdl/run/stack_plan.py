"""StackPlan: what one stack of a run does, in parts that mean something alone. Nothing in it is left to the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

import bdl
from bdl.likelihoods import Loss
from bdl.posterior.trained import BaselineLike
from bdl.run.section import Section
from bdl.schedules import Function, Keep
from bdl.tune.heat import CoolDirections

SamplerSection = Section[Callable[..., bdl.Sampler]]


@dataclass(frozen=True)
class ChainsPlan:
    """Which chains a stack has, and where they begin."""

    stack: int  # its number, which names its random streams
    seed: int
    count: int
    shared_batches: bool
    start: Section[bdl.AdamWStart | bdl.CheckpointStart] | None


@dataclass(frozen=True)
class TargetPlan:
    """The target distribution, but for what the sampler says of it: N, T and the prior."""

    model: Section[nn.Module]
    loss: Section[Loss]
    record: Mapping[str, Any]  # what target.json holds besides the sampler's law


@dataclass(frozen=True)
class MotionPlan:
    """How the chains move, and for how long."""

    steps: int | float
    sampler: SamplerSection  # num_data = N
    schedule: Mapping[str, Section[Function] | None]  # the functions of lr, temperature and zeta
    may_move: frozenset[str] | None  # what of lr, burn_in may move to keep promises of tuning; None: no promises
    cool: CoolDirections | None = None  # what tuning promises of the hottest direction


@dataclass(frozen=True)
class KeepingPlan:
    """What is kept of the chains, and how often they are looked at."""

    rule: Section[Keep]
    collect: Mapping[str, Any]  # further arguments of CollectSamples
    folder: str  # where the samples lie in the run's folder; a baseline is fitted on them
    checkpoint: str  # its name
    checkpoint_every: int  # steps
    monitor_every: int  # steps


@dataclass(frozen=True)
class StackPlan:
    """What one stack does."""

    chains: ChainsPlan
    target: TargetPlan
    motion: MotionPlan
    keeping: KeepingPlan
    baseline: Section[BaselineLike] | None
    name: str  # the name of the run
    settings: Mapping[str, Any]  # what config.yaml records, the same for all stacks
