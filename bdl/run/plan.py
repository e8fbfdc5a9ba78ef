"""Plan: what a run does. It is made once from the configuration, which ends here; each part below takes what it needs.

`Plan.of` decides all that follows from the configuration and the machine. `Plan.of_stack` adds what the data decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hydra.core.hydra_config import HydraConfig
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig
from torch import nn

import bdl
from bdl.baselines.base import Baseline
from bdl.data.module import DataModule
from bdl.likelihoods import Loss
from bdl.run.auto import choose_precision, count_carriers, count_stacks, seconds_of
from bdl.run.config import config_hash, fill_in, put, run_name, run_settings
from bdl.run.law import check_num_data, complete_loss, complete_model, target_of
from bdl.run.processes import ProcessInfo, processes_per_machine
from bdl.run.recipe import Recipe, plain
from bdl.schedules import Function, Keep

Strategy = Literal["auto", "ddp", "chains"]
OURS = ("_target_", "concurrent", "max_time", "start_epochs")  # keys of the trainer that Lightning's does not know


@dataclass(frozen=True)
class Stacks:
    """How the chains are divided: `count` stacks of `chains` each, from number `first` on."""

    first: int
    count: int
    chains: int
    carriers: int  # processes that carry the stacks of a run on one CPU
    shared_batches: bool


@dataclass(frozen=True)
class Compute:
    """Where and how a run computes."""

    accelerator: str
    strategy: Strategy  # ddp: one chain on several devices; chains: a stack on each; auto: one device
    per_machine: int  # processes on each machine under ddp and chains; otherwise 1
    concurrent: int  # processes that share one device
    machines: int
    threads: int | None
    tf32: bool
    compiled: bool | Literal["auto"]
    max_time: str | None
    trainer: Mapping[str, Any]  # arguments of Lightning's Trainer, with the precision that auto stands for

    @classmethod
    def of(cls, cfg: DictConfig) -> Compute:
        trainer = plain(cfg.trainer)
        return cls(
            trainer["accelerator"], trainer.get("strategy", "auto"), processes_per_machine(trainer),
            trainer.get("concurrent", 1), trainer.get("num_nodes", 1), cfg.threads, cfg.tf32, cfg.compile,
            trainer.get("max_time"), {key: value for key, value in trainer.items() if key not in OURS},
        )  # fmt: skip

    def count_steps(self, data: DataModule) -> int | float:
        """The sampler's steps in a run: trainer.max_steps, or those of trainer.max_epochs where it is -1."""
        if self.trainer["max_steps"] >= 0:
            return self.trainer["max_steps"]
        batches = len(data.train_dataloader())
        return self.trainer["max_epochs"] * -(-batches // self.trainer["accumulate_grad_batches"])


@dataclass(frozen=True)
class Output:
    """What a run writes along the way, in steps, and what it reports at its end."""

    checkpoint_every: int
    monitor_every: int
    train_items: int | None
    objective: str | None


@dataclass(frozen=True)
class TuningRequest:
    """What is to be found before the run begins."""

    auto: bool  # the settings that were not given
    budget: str | None  # a time, which decides the steps
    typed: tuple[str, ...]  # the overrides of the command line, which say what was given

    @property
    def seconds(self) -> float | None:
        """Those of the budget."""
        return None if self.budget is None else seconds_of(self.budget)


@dataclass(frozen=True)
class StackPlan:
    """What one stack does. Nothing in it is left to the data."""

    number: int
    steps: int | float
    model: Recipe[nn.Module]
    loss: Recipe[Loss]
    sampler: Recipe[Callable[..., bdl.Sampler]]  # num_data = N
    schedule: Mapping[str, Recipe[Function] | None]  # the functions of lr, temperature and zeta
    keep: Recipe[Keep]
    collect: Mapping[str, Any]  # further arguments of CollectSamples
    start: Recipe[bdl.AdamWStart | bdl.CheckpointStart] | None
    baseline: Recipe[Baseline] | None
    target: Mapping[str, Any]  # what target.json records besides the sampler's law


@dataclass(frozen=True)
class Plan:
    """What a run does, as far as the configuration and the machine decide it."""

    folder: Path
    hash: str  # `config_hash` of what the user gave
    name: str
    choices: Mapping[str, str]  # the names of data, model, sampler and schedule
    seed: int
    stacks: Stacks
    compute: Compute
    output: Output
    tuning: TuningRequest | None
    found: Mapping[str, Any] | None  # what tuning found: settings by key, reasons, seconds
    logger: Recipe[Logger] | None
    _given: DictConfig = field(repr=False)  # sections that wait for the data; no other module reads it

    @classmethod
    def of(cls, cfg: DictConfig) -> Plan:
        """The plan of a configuration that has been checked. Raises ConfigError for devices that are missing."""
        hydra, stacks = HydraConfig.get(), count_stacks(cfg)
        return cls(
            Path(cfg.run_dir), config_hash(cfg), run_name(hydra.runtime.choices), _words(hydra.runtime.choices),
            cfg.seed,
            Stacks(cfg.stack, stacks, cfg.chains // stacks, count_carriers(cfg), cfg.shared_batches),
            Compute.of(_decided(cfg)),
            Output(cfg.checkpoint_every, cfg.monitor_every, cfg.train_items, cfg.objective),
            TuningRequest(bool(cfg.tune), cfg.budget, tuple(hydra.overrides.task)) if cfg.tune or cfg.budget else None,
            plain(cfg.found) if cfg.found else None,
            Recipe.optional(cfg.logger),  # as given: the id of W&B is the hash
            cfg,
        )  # fmt: skip

    def with_found(self, found: Mapping[str, Any] | None) -> Plan:
        """The plan of the same run with what tuning found. Its hash, and so its folder, is the same."""
        return Plan.of(fill_in(self._given, {"found": found}))

    def numbers(self, process: ProcessInfo) -> range:
        """The numbers of all stacks of the run: one per process under trainer=chains, otherwise those of `stacks`."""
        count = process.world_size if self.compute.strategy == "chains" else self.stacks.count
        return range(self.stacks.first, self.stacks.first + count)

    def checkpoint(self, stack: int) -> str:
        """The name of a stack's checkpoint."""
        return "last" if stack == self.stacks.first else f"last-{stack}"

    def data(self, stack: int) -> Recipe[DataModule]:
        """The data module of a stack, whose number names the order of the batches."""
        recipe: Recipe[DataModule] = Recipe.of(_decided(self._given, stack).data)
        return recipe.having(chains=None) if self.stacks.shared_batches and "chains" in recipe.node else recipe

    def of_stack(self, number: int, data: DataModule) -> StackPlan:
        """The plan of one stack, with N, the steps, the likelihood and the ends of the network as the data decide them.

        Raises ConfigError for another N than that of the data, a likelihood that does not fit the task, and a network
        whose inputs are not those of the data.
        """
        cfg, steps = _decided(self._given, number), self.compute.count_steps(data)
        put(cfg, {"sampler.num_data": check_num_data(cfg.sampler.num_data, data), "steps": steps})
        loss = complete_loss(plain(cfg.loss), data)
        model = complete_model(plain(cfg.model), data, loss.build(), cfg.loss.get("scale", "input"))
        put(cfg, {"loss": dict(loss.node), "model": dict(model.node)})  # for keys that follow them
        schedule, collect = cfg.schedule, plain(cfg.collect)
        keep: Recipe[Keep] = Recipe(collect.pop("keep"))
        return StackPlan(
            number, steps, model, loss, Recipe.of(cfg.sampler),
            {name: Recipe.optional(schedule[name]) for name in ("lr", "temperature", "zeta")},
            keep, collect, Recipe.optional(cfg.get("start")),
            Recipe.optional(cfg.get("baseline")), target_of(model, plain(cfg.data), data),
        )  # fmt: skip

    def recorded(self, stack: StackPlan) -> dict[str, Any]:
        """What config.yaml records, the same for all stacks: what was given, and what tuning and the data decided."""
        found = dict(self.found or {})
        decided = {"sampler.num_data": stack.sampler.get("num_data"), "steps": stack.steps}
        settings = run_settings(fill_in(self._given, decided | found.get("settings", {})))
        completed = {"model": dict(stack.model.node), "loss": dict(stack.loss.node)}
        return settings | completed | ({"found": found} if found else {})


def _decided(cfg: DictConfig, stack: int | None = None) -> DictConfig:
    """A copy of the configuration, of one of its stacks, with what null, auto and tuning stand for."""
    found = plain(cfg.found)["settings"] if cfg.found else {}
    chains = {"chains": cfg.chains // count_stacks(cfg), "stack": cfg.stack if stack is None else stack}
    return fill_in(cfg, {**chains, "trainer.precision": choose_precision(cfg), **found})


def _words(choices: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(choices[name]) for name in ("data", "model", "sampler", "schedule")}
