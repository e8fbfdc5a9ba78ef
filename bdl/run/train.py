"""The story of a run, top to bottom: check, launch, build, sample, gather, evaluate, report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

import bdl
from bdl.data.module import DataModule
from bdl.errors import ConfigError, Stopped
from bdl.posterior.report.numbers import side_by_side
from bdl.run import build
from bdl.run.baseline import check_baseline, fit_baseline, folder_of_training
from bdl.run.build import Callbacks
from bdl.run.complete import answer
from bdl.run.config import config_hash, fill_in, register_resolvers, run_name
from bdl.run.derived import choose_precision, count_carriers, count_stacks, found_values
from bdl.run.directory import RunDirectory, read_traces, write_trace
from bdl.run.from_data import count_outputs, fill_in_from_data, settings_of, target_fact
from bdl.run.launch import given_back, launch, start_by
from bdl.run.machine import prepare_torch, small_garbage
from bdl.run.processes import (
    SINGLE,
    ProcessInfo,
    StepStore,
    check_count,
    process_info,
    processes_per_machine,
)
from bdl.run.tuning import tuned
from bdl.run.validate import check_config
from bdl.run.write_report import Outcome, log_metrics, report_run
from bdl.seeding import derive_seed


def train(cfg: DictConfig) -> float | None:
    """Run in this process; or launch new ones, where the run has several and no cluster has started them.

    Returns the value of `objective`, which a sweep minimises; None for a run that has not ended.
    """
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(f"{missing[0]} has no value: choose a configuration that gives one, or set it")
    check_config(cfg)
    process, devices = process_info(), processes_per_machine(cfg.trainer)
    expected = devices * cfg.trainer.get("num_nodes", 1)
    if process.launched:
        check_count(process, expected)
    count = max(1 if process.launched else devices, count_carriers(cfg))
    directory = RunDirectory(cfg.run_dir, config_hash(cfg))
    if directory.metrics is not None:
        return run(cfg, process)
    if expected > devices and not process.launched:
        raise ConfigError(f"trainer.num_nodes={cfg.trainer.num_nodes}: let torchrun or srun start the processes")
    with given_back(), directory.owned() if process.is_main else nullcontext():
        cfg = tuned(cfg, process)
        if count == 1:
            return run(cfg, process)
        launch(count, run_in_new_process, cfg, HydraConfig.get(), start=start_by(cfg.trainer.accelerator))
        return objective_value(directory.metrics, cfg.objective)


def run_in_new_process(cfg: DictConfig, hydra_cfg: DictConfig) -> None:
    """The work of a process that `launch` starts: Hydra's global state first, then its part of the run."""
    register_resolvers()
    setup_globals()
    HydraConfig.instance().set_config(OmegaConf.create({"hydra": hydra_cfg}))
    run(cfg, process_info())


def run(cfg: DictConfig, process: ProcessInfo = SINGLE) -> float | None:
    """The part of one process: the whole run, one rank of a data-parallel chain, or some of several stacks."""
    prepare_torch(cfg.threads, cfg.tf32, max(processes_per_machine(cfg.trainer), count_carriers(cfg)))
    directory = RunDirectory(cfg.run_dir, config_hash(cfg))
    if directory.metrics is not None:
        if process.is_main:
            answer(directory)
        return objective_value(directory.metrics, cfg.objective)
    independent = process.world_size > 1 and cfg.trainer.get("strategy") != "ddp"
    store = StepStore(process) if independent else None  # all have read the folder now, so any process may write to it
    started = time.perf_counter()
    stacks = all_stacks(cfg, process)
    own = stacks[process.rank :: process.world_size] if independent else stacks
    parts, outcomes = sample_stacks(cfg, directory, own, len(stacks), process)
    outcome = outcomes[0] if len(stacks) == 1 else gather_outcomes(store, directory, stacks, own, outcomes, parts.steps)
    if not process.is_main:
        return None
    if outcome.steps < parts.steps:
        slowest = f" in the slowest of {len(stacks)} stacks" if len(stacks) > 1 else ""
        print(f"stopped at step {outcome.steps} of {parts.steps}{slowest}; the same command resumes it")
        return None
    return finish(cfg, parts, directory, outcome, process, started)


def all_stacks(cfg: DictConfig, process: ProcessInfo) -> range:
    """The numbers of all stacks of the run: one per process under trainer=chains, otherwise those of `stacks`."""
    count = process.world_size if cfg.trainer.get("strategy") == "chains" else count_stacks(cfg)
    return range(cfg.stack, cfg.stack + count)


def sample_stacks(
    cfg: DictConfig, directory: RunDirectory, own: range, total: int, process: ProcessInfo
) -> tuple[Parts, list[Outcome]]:
    """Sample the stacks of this process, one after the other. Returns the parts of the first one, and the outcomes.

    The time limit is that of all stacks together: a stack for which no time is left does not begin.
    """
    parts, outcomes, limit = None, [], None
    for stack in own:
        if limit is not None and (remaining := limit.time_remaining()) is not None:
            if remaining <= 0:
                break
            limit = bdl.callbacks.TimeLimit(timedelta(seconds=remaining))
        if total > 1 and process.is_main:
            print(f"stack {stack} ({total} in all, {process.world_size} at a time)", flush=True)
        L.seed_everything(derive_seed("torch", cfg.seed, stack), verbose=False)
        of_stack = build_parts(cfg, directory, stack, process, limit)
        limit, monitor = of_stack.callbacks.limit, of_stack.callbacks.monitor
        sample(of_stack, directory.checkpoint(checkpoint_name(cfg, stack)), process)
        outcomes.append(Outcome(of_stack.module.sampler.steps, monitor.trace(), of_stack.module.sampler.swap_rates))
        parts = parts or of_stack
    assert parts is not None
    return parts, outcomes


def checkpoint_name(cfg: DictConfig, stack: int) -> str:
    return "last" if stack == cfg.stack else f"last-{stack}"


@dataclass(frozen=True)
class Parts:
    """Everything that sampling needs, and the number of steps to do."""

    settings: dict[str, Any]  # as config.yaml records them
    steps: int | float
    datamodule: DataModule
    net: torch.nn.Module  # one plain copy of the network, for the posterior
    module: bdl.BayesianModule  # the network's chains, which are sampled
    callbacks: Callbacks
    trainer: L.Trainer


def build_parts(
    cfg: DictConfig,
    directory: RunDirectory,
    stack: int,
    process: ProcessInfo = SINGLE,
    limit: bdl.callbacks.TimeLimit | None = None,
) -> Parts:
    """Build data, network, module, callbacks and trainer of one stack.

    The data decide N, and the steps of a run in epochs. Without a limit, the configuration's time limit holds.
    """
    chains, precision = cfg.chains // count_stacks(cfg), choose_precision(cfg)
    given, cfg = cfg, fill_in(cfg, stack=stack, chains=chains, trainer__precision=precision, **found_values(cfg))
    ranks_of_one_chain = process if cfg.trainer.get("strategy") == "ddp" else SINGLE
    first = process.is_main and stack == given.stack
    datamodule = build.build_data(cfg.data, cfg.shared_batches, ranks_of_one_chain, warn=first)
    if first and datamodule.overview is not None:
        print(f"data: {datamodule.overview}", flush=True)
    steps = build.count_steps(cfg.trainer, datamodule)
    cfg = fill_in_from_data(cfg, datamodule, steps)
    settings = settings_of(given, cfg)
    net = build.build_net(cfg.model, datamodule, count_outputs(instantiate(cfg.loss), datamodule))
    chains = build.build_stack(cfg, net, stack)
    module = build.build_module(chains, cfg.sampler, cfg.loss, cfg.compile)
    limit = limit or bdl.callbacks.TimeLimit(cfg.trainer.max_time)
    if cfg.get("baseline") is not None:
        check_baseline(cfg.baseline, net, datamodule, module.loss)
    callbacks = build_callbacks(cfg, datamodule, directory, settings, checkpoint_name(given, stack), limit, first)
    # The W&B id is the hash of the configuration as given. Only the first stack is logged.
    logger = given.logger if first else None
    trainer = build.build_trainer(cfg.trainer, logger, cfg.run_dir, callbacks, process)
    return Parts(settings, steps, datamodule, net, module, callbacks, trainer)


def build_callbacks(
    cfg: DictConfig, datamodule: DataModule, directory: RunDirectory, settings: dict[str, Any], checkpoint: str,
    limit: bdl.callbacks.TimeLimit, verbose: bool,
) -> Callbacks:  # fmt: skip
    keep = instantiate(cfg.collect.keep)
    name = run_name(HydraConfig.get().runtime.choices)
    run_and_stack = f"{directory.hash}, stack {cfg.stack}"
    about_data = datamodule.preprocessing()
    law = build.law_of(cfg.model, cfg.data, datamodule)
    return Callbacks(
        build.write_config_at_start(lambda device: directory.write_config(settings, name, device, about_data, verbose)),
        build.build_schedule(cfg.schedule),
        build.build_collector(cfg.collect, keep, folder_of_training(cfg), law),
        build.build_average(keep, datamodule),
        bdl.Monitor(cfg.monitor_every),
        build.build_start(cfg, law, verbose),
        bdl.callbacks.StepProgress(),
        limit,
        bdl.SaveLast(Path(cfg.run_dir) / "checkpoints", cfg.checkpoint_every, checkpoint, run=run_and_stack),
    )


def sample(parts: Parts, checkpoint: Path | None, process: ProcessInfo = SINGLE) -> None:
    """Sample, from the checkpoint if there is one. Raises Stopped if a signal asked for a stop."""
    for logger in parts.trainer.loggers:
        logger.log_hyperparams(parts.settings)
    if checkpoint is not None and process.is_main:
        print(f"resuming from {checkpoint}")
    with small_garbage():
        parts.trainer.fit(parts.module, parts.datamodule, ckpt_path=checkpoint, weights_only=True)
    save = parts.callbacks.save
    if save.signum is not None:
        raise Stopped(save.signum, f"stopped by signal {save.signum}; the same command resumes from {save.path}")


def gather_outcomes(
    store: StepStore | None,
    directory: RunDirectory,
    stacks: Sequence[int],
    own: Sequence[int],
    outcomes: Sequence[Outcome],
    steps: int | float,
) -> Outcome:
    """Join the outcomes of all stacks, in the main process once all are done. The others return their first.

    own: the stacks of this process, of which outcomes has those that began. steps: those of a whole run. Before its end
    the stacks stand at different steps, so the joint outcome is the least number of steps alone.
    """
    for stack, outcome in zip(own, outcomes, strict=False):
        rates = {} if outcome.swap_rates is None else {"swap_rates": outcome.swap_rates}
        write_trace(directory.path, stack, outcome.trace | rates)
    done = min(outcome.steps for outcome in outcomes) if len(outcomes) == len(own) else 0
    if store is not None:
        store.set(done)
        if not store.process.is_main:
            return outcomes[0]
        done = min(store.wait())
    if done < steps:
        return Outcome(done, {}, None)
    traces = read_traces(directory.path, stacks)
    swap_rates = [trace.pop("swap_rates") for trace in traces if "swap_rates" in trace]
    return Outcome(done, side_by_side(traces), torch.stack(swap_rates).mean(0) if swap_rates else None)


def finish(
    cfg: DictConfig, parts: Parts, directory: RunDirectory, outcome: Outcome, process: ProcessInfo, started: float
) -> float | None:
    """Evaluate the samples, report them and return the objective. started: `time.perf_counter()` before the build."""
    sampled = time.perf_counter() - started
    parts.net.to(parts.trainer.strategy.root_device)
    facts = describe(cfg, parts, process)
    module = parts.module
    if cfg.get("baseline") is not None:
        fit_baseline(cfg, parts.net, parts.datamodule, module.loss)
        facts["approximation"] = str(instantiate(cfg.baseline))
    # A kill after metrics.json, which marks a run as complete, must not leave it without timing.json.
    directory.write_timing(outcome.steps, sampled, time.perf_counter() - started)
    metrics = report_run(
        directory.path, parts.net, parts.datamodule, module.sampler, outcome, facts, cfg.train_items, module.loss,
        parts.trainer.loggers,
    )  # fmt: skip
    log_metrics(parts.trainer, metrics, outcome.steps)
    directory.write_timing(outcome.steps, sampled, time.perf_counter() - started)
    return objective_value(metrics, cfg.objective)


def describe(cfg: DictConfig, parts: Parts, process: ProcessInfo) -> dict[str, str]:
    """What the report says of the configuration."""
    choices = HydraConfig.get().runtime.choices
    strategy, stacks = cfg.trainer.get("strategy", "auto"), count_stacks(cfg)
    several = strategy in ("ddp", "chains") and process.world_size > 1
    batch = str(parts.datamodule.batch_size)
    return {
        "title": f"{run_name(choices)}, seed {cfg.seed}",
        "data": parts.datamodule.name or choices["data"],
        **target_fact(parts.datamodule),
        **{k: str(choices[k]) for k in ("model", "sampler", "schedule")},
        "N": f"{parts.datamodule.num_data:,}",
        "batch": batch + (" per device" if several and strategy == "ddp" else ""),
        "devices": f"{process.world_size}, {strategy}" if several else "1",
        **({"stacks": f"{stacks} of {cfg.chains // stacks} chains"} if stacks > 1 else {}),
    }


def objective_value(metrics: dict[str, float] | None, objective: str | None) -> float | None:
    """The metric that a sweep optimises; for None, the NLL of the average on the validation or else the test split."""
    if metrics is None:
        return None
    name = objective or ("val/bma/nll" if "val/bma/nll" in metrics else "test/bma/nll")
    if name not in metrics:
        raise ConfigError(f"objective={name} is no metric of this run, which is complete: choose one of metrics.json")
    return metrics[name]
