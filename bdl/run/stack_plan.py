"""StackPlan: what one stack of a run does, in parts that mean something alone. Each part reads its own sections.

Nothing in it is left to the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig
from torch import nn

import bdl
from bdl.data.module import DataModule
from bdl.likelihoods import Loss
from bdl.posterior.trained import BaselineLike
from bdl.run.config import plain
from bdl.run.sampler_settings import SamplerSettings
from bdl.run.section import Section, complete_loss, complete_model, scale_for, target_of
from bdl.schedules import Function, Keep
from bdl.tune.heat import CoolDirections


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

    @classmethod
    def of(cls, cfg: DictConfig, data: DataModule, baseline: Section[BaselineLike] | None) -> TargetPlan:
        """Raises ConfigError for a likelihood that does not fit the task, and for inputs that no network fits."""
        loss = complete_loss(plain(cfg.loss), data)
        scale = cfg.loss.get("scale") or scale_for(loss.target, baseline)
        model = complete_model(plain(cfg.model), data, loss.build(), scale)
        return cls(model, loss, target_of(model, plain(cfg.data), data))


@dataclass(frozen=True)
class Promise:
    """What tuning promises of the samples."""

    may_move: frozenset[str] | None  # what of lr, burn_in may move to keep it; None: nothing is promised
    cool: CoolDirections | None  # of the hottest direction


@dataclass(frozen=True)
class MotionPlan:
    """How the chains move, and for how long."""

    steps: int | float
    sampler: SamplerSettings  # num_data = N
    schedule: Mapping[str, Section[Function] | None]  # the functions of lr, temperature and zeta
    promise: Promise | None  # None without tuning

    @classmethod
    def of(cls, cfg: DictConfig, steps: int | float, promise: Promise | None) -> MotionPlan:
        schedule = {name: Section.optional(cfg.schedule[name]) for name in ("lr", "temperature", "zeta")}
        return cls(steps, SamplerSettings.of(Section.of(cfg.sampler)), schedule, promise)


@dataclass(frozen=True)
class KeepingPlan:
    """What is kept of the chains, and how often they are looked at."""

    rule: Section[Keep]
    collect: Mapping[str, Any]  # further arguments of CollectSamples
    folder: str  # where the samples lie in the run's folder; a baseline is fitted on them
    checkpoint: str  # its name
    checkpoint_every: int  # steps
    monitor_every: int  # steps

    @classmethod
    def of(cls, cfg: DictConfig, folder: str, checkpoint: str) -> KeepingPlan:
        collect = plain(cfg.collect)
        rule: Section[Keep] = Section(collect.pop("keep"))
        return cls(rule, collect, folder, checkpoint, cfg.checkpoint_every, cfg.monitor_every)

    @property
    def in_cycles(self) -> bool:
        """Whether the samples of a chain follow the cycles of the schedule."""
        return self.rule.get("cycle") is not None


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

    @property
    def keeps_start(self) -> bool:
        """Whether the chains start at trained networks, and their last states alone are kept."""
        start, every = self.chains.start, self.keeping.rule.get("every")
        return start is not None and start.target == "bdl.AdamWStart" and every == self.motion.steps
