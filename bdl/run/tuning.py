"""What `tune=auto` and `budget` do before a run begins: find what was not given, print it, and record it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

import bdl
from bdl.errors import ConfigError
from bdl.run import build
from bdl.run.config import fill_in
from bdl.run.derived import count_carriers, count_stacks
from bdl.run.directory import read_config
from bdl.run.from_data import count_outputs, fill_in_from_data
from bdl.run.machine import prepare_torch
from bdl.run.processes import ProcessInfo
from bdl.samplers.dynamics.base import Transition
from bdl.tune.budget import choose_steps, seconds_of_evaluation, seconds_per_step
from bdl.tune.find import find_settings
from bdl.tune.finding import Finding
from bdl.tune.trial import Problem

KEYS = {
    "batch_size": ("data.batch_size",),
    "prior": ("sampler.prior.precision",),
    "lr": ("sampler.lr",),
    "friction": ("sampler.dynamics.friction",),
    "burn_in": ("collect.keep.burn_in",),
    "steps": ("length", "trainer.max_steps"),
}
UNITS = {"s": 1, "m": 60, "h": 3600}
START_UP, REPORT = 5.0, 8.0  # seconds before the configuration is read and to write a report, of a small run
MOST_ITEMS = 4096  # training images that trials look at; all rows of a table are in memory anyway


def tuned(cfg: DictConfig, process: ProcessInfo) -> DictConfig:
    """The configuration with `found`: what config.yaml records for a run that has begun, else what is found now.

    `found` has no effect on the hash of the configuration, so the run directory depends on what the user typed.
    Raises ConfigError where a budget cannot be kept, because others start the processes.
    """
    if not cfg.tune and cfg.budget is None:
        return cfg
    if (Path(cfg.run_dir) / "config.yaml").exists():
        return fill_in(cfg, found=read_config(Path(cfg.run_dir)).get("found"))
    if process.launched and cfg.budget is not None:
        raise ConfigError("budget needs processes that bdl starts itself, and others have started these: set length")
    began = time.perf_counter()
    prepare_torch(cfg.threads, cfg.tf32, count_carriers(cfg))
    findings = _find(cfg, given_names(cfg, HydraConfig.get().overrides.task), began)
    seconds = time.perf_counter() - began
    if process.is_main:
        for finding in findings:
            print(finding)
        print(f"tune: took {seconds:.1f} s", flush=True)
    settings = {key: finding.value for finding in findings for key in KEYS[finding.name]}
    reasons = [str(finding) for finding in findings]
    return fill_in(cfg, found={"settings": settings, "reasons": reasons, "seconds": round(seconds, 1)})


def seconds_of(budget: Any) -> float:
    """The seconds of a time such as 90s, 10m or 1.5h. Raises ConfigError for another value.

    >>> seconds_of("10m")
    600.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(budget))
    if match is None or not float(match[1]):
        raise ConfigError(f"budget must be a time such as 90s, 10m or 1h, got {budget!r}")
    return float(match[1]) * UNITS[match[2]]


def given_names(cfg: DictConfig, overrides: Sequence[str]) -> set[str]:
    """The settings that the user has given, by name: those of `KEYS` that the command line sets, and their groups."""
    typed = {override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".") for override in overrides}
    groups = {"prior": ("sampler.prior",), "friction": ("sampler.dynamics",), "burn_in": ("collect", "collect.keep")}
    given = {name for name, keys in KEYS.items() if typed & {*keys, *groups.get(name, ())}}
    given |= {"prior"} if any(key.startswith("sampler.prior.") for key in typed) else set()
    return given | ({"burn_in"} if cfg.schedule.get("cycle") is not None else set())  # a cycle has its own keeping


def _find(cfg: DictConfig, given: set[str], began: float) -> list[Finding]:
    """Everything that is to be found, in the order in which it is printed."""
    budget = None if cfg.budget is None or "steps" in given else seconds_of(cfg.budget)
    datamodule = build.build_data(cfg.data, cfg.shared_batches, warn=False)
    turns = -(-count_stacks(cfg) // count_carriers(cfg))
    cfg = fill_in(cfg, chains=cfg.chains // count_stacks(cfg))
    cfg = fill_in_from_data(cfg, datamodule, build.count_steps(cfg.trainer, datamodule))
    sampler, problem = instantiate(cfg.sampler, _convert_="all").keywords, _problem(cfg, datamodule)
    steps, per_step, findings = int(cfg.steps), 0.0, []
    if budget is not None:
        per_step = seconds_per_step(problem, sampler["dynamics"])
        steps = max(FEWEST, int(budget / (per_step * turns)))
    if cfg.tune and (reason := _no_sampler(cfg, sampler["dynamics"])):
        print(f"tune: there is nothing to find for {reason}")
    elif cfg.tune:
        _train(cfg, problem, datamodule, steps)
        tuning = find_settings(
            problem.stack, problem.loss, problem.items, _items(datamodule, "val"), sampler["dynamics"],
            num_data=datamodule.num_data, temperature=float(cfg.sampler.temperature), steps=steps,
            given=_values(given, cfg, datamodule, sampler), seed=cfg.seed, compiled=cfg.compile,
        )  # fmt: skip
        per_step, findings = tuning.step_seconds, list(tuning.findings)
    if budget is None:
        return findings
    after = REPORT + seconds_of_evaluation(problem, _count_items(datamodule), round(1 / cfg_share(cfg)))
    timed = choose_steps(budget, per_step, turns, START_UP + time.perf_counter() - began, after)
    return [_scaled(finding, timed.value / steps) for finding in findings] + [timed]
