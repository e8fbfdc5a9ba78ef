"""Plan: what a run does, in parts. The configuration ends here.

`RunRequest.plan` decides all that follows from the configuration, the machine and what tuning found, and
`Plan.of_stack` adds what the data decide.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from hydra.conf import HydraConf
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from bdl.data.module import DataModule
from bdl.errors import ConfigError
from bdl.posterior.calibrated import CalibrationRequest
from bdl.posterior.trained import FOLDER as TRAINED
from bdl.posterior.trained import BaselineLike
from bdl.run import config
from bdl.run.config import plain
from bdl.run.directory import RunDirectory
from bdl.run.processes import ProcessInfo, processes_per_machine
from bdl.run.records import REFIT
from bdl.run.section import Section, check_calibration, check_num_data
from bdl.run.stack_plan import ChainsPlan, KeepingPlan, MotionPlan, StackPlan, TargetPlan
from bdl.run.stacking import StackingRequest
from bdl.run.tuning_request import TuningRequest
from bdl.run.typed import typed

Strategy = Literal["auto", "ddp", "chains"]
OURS = ("_target_", "concurrent", "max_time", "start_epochs", "timeout")  # Lightning's trainer does not know them


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
    patience: float | None  # seconds for which the processes of one chain may stand still
    trainer: Mapping[str, Any]  # arguments of Lightning's Trainer, with the precision that auto stands for

    @classmethod
    def of(cls, cfg: DictConfig) -> Compute:
        """Raises ConfigError for devices that are missing."""
        trainer = plain(cfg.trainer)
        return cls(
            trainer["accelerator"], trainer.get("strategy", "auto"), processes_per_machine(trainer),
            trainer.get("concurrent", 1), trainer.get("num_nodes", 1), cfg.threads, cfg.tf32, cfg.compile,
            trainer.get("max_time"), trainer.get("timeout"),
            {key: value for key, value in trainer.items() if key not in OURS},
        )  # fmt: skip

    def count_steps(self, data: DataModule) -> int | float:
        """The sampler's steps in a run: trainer.max_steps, or those of trainer.max_epochs where it is -1."""
        if self.trainer["max_steps"] >= 0:
            return self.trainer["max_steps"]
        batches = len(data.train_dataloader())
        return self.trainer["max_epochs"] * -(-batches // self.trainer["accumulate_grad_batches"])


@dataclass(frozen=True)
class ReportPlan:
    """What a run says of its samples, and to whom."""

    logger: Section[Logger] | None  # as given: the id of W&B is the hash
    train_items: int | None  # how many training items the report predicts; None for all
    objective: str | None  # the metric that a sweep minimises
    calibrate: CalibrationRequest | None  # what is fitted on validation items
    command: str  # the command line that makes the run, as it can be copied, without its folder and time limit
    weights: StackingRequest = "uniform"  # of the chains
    judged: Path | None = None  # the run whose scores on held-out rows stand for this one, which has none


@dataclass(frozen=True)
class Plan:
    """What a run does, as far as the configuration, the machine and tuning decide it."""

    hash: str  # `config_hash` of what the user gave
    folder: Path
    name: str
    choices: Mapping[str, str]  # the names of data, model, sampler and schedule
    seed: int
    stacks: Stacks
    compute: Compute
    tuning: TuningRequest | None
    report: ReportPlan
    refit: bool  # whether a posterior of all rows follows
    found: Mapping[str, Any]  # what tuning found: settings by key, reasons, seconds; empty before
    settings: Mapping[str, Any]  # every key with an effect on the samples, as the user gave it
    _sections: DictConfig = field(repr=False)  # the configuration with what tuning found; parts of it wait for the data

    def directory(self) -> RunDirectory:
        """The folder of the run. Raises ConfigError where it holds another run, or files that no run makes."""
        return RunDirectory(self.folder, self.hash, self.settings)

    def numbers(self, process: ProcessInfo) -> range:
        """The numbers of all stacks of the run: one per process under trainer=chains, otherwise those of `stacks`."""
        count = process.world_size if self.compute.strategy == "chains" else self.stacks.count
        return range(self.stacks.first, self.stacks.first + count)

    def data(self, stack: int) -> Section[DataModule]:
        """The data module of a stack, whose number names the order of the batches."""
        section: Section[DataModule] = Section.of(self._of_stack(self._sections, stack).data)
        return section.having(chains=None) if self.stacks.shared_batches and "chains" in section.node else section

    def of_stack(self, number: int, data: DataModule) -> StackPlan:
        """The plan of one stack, with N, the steps, the likelihood and the ends of the network as the data decide them.

        Raises ConfigError for another N than that of the data, a likelihood that does not fit the task, and a network
        whose inputs are not those of the data.
        """
        steps, num_data = self.compute.count_steps(data), check_num_data(self._sections.sampler.num_data, data)
        counted = config.fill_in(self._sections, {"sampler.num_data": num_data, "steps": steps})
        cfg, stacks = self._of_stack(counted, number), self.stacks
        baseline: Section[BaselineLike] | None = Section.optional(cfg.get("baseline"))
        target = TargetPlan.of(cfg, data, baseline)
        if self.report.calibrate is not None:
            check_calibration(self.report.calibrate, target.loss.build(), data)
        completed = {"loss": dict(target.loss.node), "model": dict(target.model.node)}
        config.put(cfg, completed)  # other keys follow these
        found = {"found": dict(self.found)} if self.found else {}
        return StackPlan(
            ChainsPlan(number, self.seed, stacks.chains, stacks.shared_batches, Section.optional(cfg.get("start"))),
            target,
            MotionPlan.of(cfg, steps, self.tuning and self.tuning.promise(self.found, self.compute.strategy)),
            KeepingPlan.of(cfg, TRAINED if baseline else "", "last" if number == stacks.first else f"last-{number}"),
            baseline,
            name=self.name,
            settings=config.run_settings(counted) | completed | found,
        )

    def _of_stack(self, cfg: DictConfig, number: int) -> DictConfig:
        """A copy of the configuration, as one stack reads it."""
        return config.fill_in(cfg, {"chains": self.stacks.chains, "stack": number})


@dataclass(frozen=True)
class RunRequest:
    """What a user asks for: a checked configuration, and Hydra's own of the call. `plan` is all that reads them.

    judged, found: of a refit; the run that it follows, and what tuning has found for that.
    """

    cfg: DictConfig
    hydra: HydraConf
    judged: Path | None = None
    found: Mapping[str, Any] | None = None

    def plan(self, found: Mapping[str, Any] | None = None) -> Plan:
        """The plan, with what tuning found. Its hash, and so its folder, does not depend on that.

        Raises ConfigError for devices that are missing, and for a refit where no rows of a table are held out.
        """
        cfg, hydra = self.cfg, self.hydra
        known: Mapping[str, Any] = plain(found or self.found or {})
        check_refit(cfg)
        decided = {"trainer.precision": config.choose_precision(cfg), **known.get("settings", {})}
        sections, count = config.fill_in(cfg, decided), config.count_stacks(cfg)
        return Plan(
            hash=config.config_hash(cfg),
            folder=Path(cfg.run_dir),
            name=config.run_name(hydra.runtime.choices),
            choices={name: str(hydra.runtime.choices[name]) for name in ("data", "model", "sampler", "schedule")},
            seed=cfg.seed,
            stacks=Stacks(cfg.stack, count, cfg.chains // count, config.count_carriers(cfg), cfg.shared_batches),
            compute=Compute.of(sections),
            tuning=TuningRequest.of(cfg, hydra.overrides.task),
            report=self.report,
            refit=bool(cfg.refit),
            found=known,
            settings=config.run_settings(cfg),
            _sections=sections,
        )

    @cached_property
    def draft(self) -> Plan:
        """The plan before tuning."""
        return self.plan()

    @property
    def report(self) -> ReportPlan:
        cfg, calibrate = self.cfg, CalibrationRequest.of(plain(self.cfg.get("calibrate")))
        return ReportPlan(
            Section.optional(cfg.logger), cfg.train_items, cfg.objective, calibrate, self.command, cfg.weights,
            self.judged,
        )  # fmt: skip

    @property
    def command(self) -> str:
        words = [word for word in self.hydra.overrides.task if not word.startswith(("run_dir=", "trainer.max_time="))]
        return shlex.join([*typed("train"), *words])

    def of_all_rows(self, found: Mapping[str, Any] | None) -> RunRequest:
        """The refit: the same with what tuning has found, from all rows, into a folder of this run."""
        judged = Path(self.cfg.run_dir)
        own = {"run_dir": str(judged / REFIT), "data.all_rows": True}
        nothing = {"tune": False, "budget": None, "objective": None, "refit": None}
        return RunRequest(config.fill_in(self.cfg, own | nothing), self.hydra, judged, found)


def check_refit(cfg: DictConfig) -> None:
    """Raise ConfigError for a refit where no rows of a table are held out, or where it takes those of a calibration."""
    if cfg.refit and cfg.data.get("all_rows") is not False:
        raise ConfigError(
            f"refit={cfg.refit} joins the rows that a table holds out: it needs data=csv or data=parquet, and "
            "data.all_rows=false"
        )
    if cfg.refit and cfg.get("calibrate") is not None:
        raise ConfigError(
            "calibrate needs validation rows that the samples have not seen, and refit=all samples them: leave one "
            "of the two out"
        )
