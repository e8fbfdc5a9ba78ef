"""What `tune=auto` and `budget` do before a run begins: find what was not given, print it, and record it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

import bdl
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.data.module import DataModule
from bdl.errors import ConfigError
from bdl.run import build
from bdl.run.config import fill_in
from bdl.run.derived import count_carriers, count_stacks, seconds_of
from bdl.run.from_data import count_outputs, fill_in_from_data
from bdl.run.launch import start_by
from bdl.run.machine import find_device, prepare_torch
from bdl.run.processes import ProcessInfo
from bdl.run.records import read_config
from bdl.samplers.dynamics.base import Transition
from bdl.tune.budget import (
    FEWEST,
    choose_every,
    choose_samples,
    choose_steps,
    seconds_of_evaluation,
    seconds_per_step,
)
from bdl.tune.burn_in import MOST
from bdl.tune.find import describe_untuned, find_settings
from bdl.tune.finding import Finding
from bdl.tune.trial import Problem

KEYS = {
    "batch_size": ("data.batch_size",),
    "prior": ("sampler.prior.precision",),
    "lr": ("sampler.lr",),
    "friction": ("sampler.dynamics.friction",),
    "burn_in": ("collect.keep.burn_in",),
    "steps": ("length", "trainer.max_steps"),
    "every": ("collect.keep.every",),
}
START_UP, REPORT = 5.0, 8.0  # seconds before the configuration is read and to write a report, of a small run
MOST_IMAGES = 4096  # training images that trials look at; the rows of a table are all looked at
START_SHARE = 0.1  # steps of the trials' deep ensemble, as a share of the run's
FEWEST_STEPS = 2000  # of the ensemble, where no budget bounds them: the curvature rises while it trains
FEWEST_EPOCHS = 5  # of the ensemble in any case
CPU = torch.device("cpu")


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
    findings = _aside(cfg, _find, cfg, given_names(cfg, HydraConfig.get().overrides.task), began)
    seconds = time.perf_counter() - began
    if process.is_main:
        for finding in findings:
            print(finding)
        print(f"tune: took {seconds:.1f} s", flush=True)
    settings = {key: finding.value for finding in findings for key in KEYS[finding.name]}
    reasons = [str(finding) for finding in findings]
    return fill_in(cfg, found={"settings": settings, "reasons": reasons, "seconds": round(seconds, 1)})


def _aside(cfg: DictConfig, work: Callable[..., list[Finding]], *arguments: Any) -> list[Finding]:
    """The result of the work, which a copy of this process does where this one will fork.

    What the work loads may leave threads behind, and a process that has them cannot fork those of its stacks.
    """
    if count_carriers(cfg) == 1 or start_by(cfg.trainer.get("accelerator")) != "fork":
        return work(*arguments)
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(work, *arguments).result()


def given_names(cfg: DictConfig, overrides: Sequence[str]) -> set[str]:
    """The settings that the user has given, by name: those of `KEYS` that the command line sets, and their groups."""
    typed = {override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".") for override in overrides}
    groups = {"prior": ("sampler.prior",), "friction": ("sampler.dynamics",)}
    groups |= dict.fromkeys(("burn_in", "every"), ("collect", "collect.keep"))
    given = {name for name, keys in KEYS.items() if typed & {*keys, *groups.get(name, ())}}
    given |= set() if "batch_size" in cfg.data else {"batch_size"}  # a loader that the user has made decides it
    given |= {"prior"} if any(key.startswith("sampler.prior.") for key in typed) else set()
    return given | (
        {"burn_in", "every"} if cfg.schedule.get("cycle") is not None else set()
    )  # it keeps by its own rule


def _find(cfg: DictConfig, given: set[str], began: float) -> list[Finding]:
    """Everything that is to be found, in the order in which it is printed."""
    if cfg.budget is not None and "steps" in given:
        raise ConfigError(f"budget={cfg.budget} and length both say how many steps there are: give one of them")
    budget = None if cfg.budget is None else seconds_of(cfg.budget)
    datamodule = build.build_data(cfg.data, cfg.shared_batches, warn=False)
    loader = datamodule.train_dataloader()
    if budget is not None and not isinstance(loader, TensorBatches | WorkerBatches):  # steps of a trial are faster
        raise ConfigError(
            f"budget={cfg.budget} can time the loaders of bdl.data alone, got {type(loader).__name__}: set length, or "
            "make the data a bdl.data.TensorDataModule"
        )
    turns = -(-count_stacks(cfg) // count_carriers(cfg))
    cfg = fill_in(cfg, chains=cfg.chains // count_stacks(cfg))
    cfg = fill_in_from_data(cfg, datamodule, build.count_steps(cfg.trainer, datamodule))
    sampler, problem = instantiate(cfg.sampler, _convert_="all").keywords, _problem(cfg, datamodule)
    steps, per_step, start, findings = int(cfg.steps), 0.0, 0.0, []
    if budget is not None:
        per_step = seconds_per_step(problem, sampler["dynamics"])
        steps = max(FEWEST, int(budget / (per_step * turns)))
    if cfg.tune and (reason := _no_sampler(cfg, sampler["dynamics"])):
        print(f"tune: there is nothing to find for {reason}")
    elif cfg.tune:
        if (line := describe_untuned(sampler["dynamics"])) is not None:
            print(line)
        training = max(START_SHARE * steps, FEWEST_STEPS if budget is None else 0)
        start = _train(cfg, problem, datamodule, training)
        tuning = find_settings(
            problem.stack, problem.loss, problem.items, _items(datamodule, "val"), sampler["dynamics"],
            num_data=datamodule.num_data, temperature=float(cfg.sampler.temperature), steps=steps,
            given=_values(given, cfg, datamodule, sampler), seed=cfg.seed, compiled=cfg.compile,
        )  # fmt: skip
        per_step, findings = tuning.step_seconds, list(tuning.findings)
    if budget is None:
        return findings
    per_sample, wanted = turns * seconds_of_evaluation(problem, _count_items(cfg, datamodule)), _count_samples(cfg)
    samples = wanted if "every" in given else choose_samples(budget, per_sample, wanted)
    before = START_UP + time.perf_counter() - began + turns * start
    timed = choose_steps(budget, per_step, turns, before, REPORT + samples * per_sample)
    findings = [_shortened(finding, timed.value) for finding in findings] + [timed]
    if samples < wanted:
        burn_in = fill_in(cfg, steps=timed.value).collect.keep.burn_in
        burn_in = {finding.name: finding.value for finding in findings}.get("burn_in", burn_in)
        findings.append(choose_every(timed.value, burn_in, samples, wanted))
    return findings


def _problem(cfg: DictConfig, datamodule: DataModule) -> Problem:
    """The first stack of the run on its device, with the training items, or an even part of many images."""
    device = torch.device("cpu") if cfg.trainer.get("accelerator") == "cpu" else find_device(None)
    loss = instantiate(cfg.loss)
    net = build.build_net(cfg.model, datamodule, count_outputs(loss, datamodule))
    stack = bdl.ChainStack(net, cfg.chains, seed=cfg.seed, stack=cfg.stack, shared=cfg.shared_batches).to(device)
    items = _items(datamodule, "train", device)
    assert items is not None
    return Problem(
        stack, loss, items, datamodule.num_data, datamodule.batch_size, float(cfg.sampler.temperature), cfg.seed,
        cfg.compile,
    )  # fmt: skip


def _items(datamodule: DataModule, split: str, device: torch.device = CPU) -> tuple[Tensor, Tensor] | None:
    """The items of a split as the network sees them; None where there are none."""
    if split == "val" and not datamodule.has("val"):
        return None
    x, y = datamodule.items(split, None if len(datamodule.input_shape) == 1 else MOST_IMAGES)
    return x.to(device), y.to(device)


def _train(cfg: DictConfig, problem: Problem, datamodule: DataModule, steps: float) -> float:
    """Where the run begins at a deep ensemble, train the stack as one, for so many steps or up to its early stop.

    Returns the seconds that the run's own training is expected to take: as many epochs, or twice as many where the end
    was not in sight.
    """
    if cfg.get("start") is None:
        return 0.0
    start = instantiate(cfg.start)
    epochs = max(FEWEST_EPOCHS, round(steps * start.batch_size / datamodule.num_data))
    val = datamodule.val_dataloader() or None
    began = time.perf_counter()
    trained = replace(start, epochs=min(start.epochs, epochs)).train(
        problem.stack, datamodule.train_dataloader(), problem.loss, val, compiled=cfg.compile
    )
    seconds = time.perf_counter() - began
    return seconds if trained.epochs < epochs else 2 * seconds


def _values(given: set[str], cfg: DictConfig, datamodule: DataModule, sampler: dict[str, Any]) -> dict[str, Any]:
    """The values of the given settings, as `find_settings` takes them."""
    values = {
        "batch_size": datamodule.batch_size, "prior": sampler["prior"], "lr": sampler["lr"],
        "friction": sampler["dynamics"].friction, "burn_in": cfg.collect.keep.burn_in,
    }  # fmt: skip
    return {name: value for name, value in values.items() if name in given}


def _no_sampler(cfg: DictConfig, dynamics: Transition) -> str | None:
    """Why there is nothing to tune; None where there is."""
    if not dynamics.noisy or dynamics.variational or not cfg.sampler.temperature > 0:
        return "an optimiser"
    if cfg.sampler.exchange is not None:
        return "replica exchange, whose rungs have temperatures of their own"
    if cfg.sampler.get("only") is not None or (cfg.get("start") or {}).get("_target_") == "bdl.CheckpointStart":
        return "a part of a network or saved weights, from which no trial starts"
    if cfg.trainer.get("strategy") == "ddp":
        return "trainer=ddp, whose batches are divided among devices"
    return None


def _shortened(finding: Finding, steps: int) -> Finding:
    """A burn-in that is no longer than the largest share of this number of steps; other findings as they are."""
    return replace(finding, value=min(finding.value, round(MOST * steps))) if finding.name == "burn_in" else finding


def _count_items(cfg: DictConfig, datamodule: DataModule) -> int:
    """Items that the report predicts."""
    train = datamodule.num_data
    return datamodule.count("val") + datamodule.count("test") + min(train, cfg.train_items or train)


def _count_samples(cfg: DictConfig) -> int:
    """Samples of one chain, by the keeping of a run without cycles."""
    keep = cfg.collect.keep
    return max(1, (int(cfg.steps) - keep.burn_in) // keep.every)
