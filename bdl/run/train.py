"""The story of a run, top to bottom: check, plan, tune, launch, sample, gather, evaluate, report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta

import lightning as L
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from omegaconf import DictConfig, OmegaConf

import bdl
from bdl.errors import ConfigError, Stopped
from bdl.posterior.report.numbers import side_by_side
from bdl.run.baseline import fit_baseline
from bdl.run.build import StackRun, build_stack
from bdl.run.complete import answer
from bdl.run.config import register_resolvers
from bdl.run.directory import RunDirectory, read_traces, write_trace
from bdl.run.facts import facts_of
from bdl.run.launch import given_back, launch, start_by
from bdl.run.machine import prepare_torch, small_garbage
from bdl.run.plan import Plan
from bdl.run.processes import SINGLE, ProcessInfo, StepStore, check_count, process_info
from bdl.run.tuning import tuned
from bdl.run.validate import check_config
from bdl.run.write_report import Outcome, log_metrics, report_run
from bdl.seeding import derive_seed


def train(cfg: DictConfig) -> float | None:
    """Run in this process; or launch new ones, where the run has several and no cluster has started them.

    Returns the value of `objective`, which a sweep minimises; None for a run that has not ended.
    """
    check_config(cfg)
    plan = Plan.of(cfg)
    process, compute, directory = process_info(), plan.compute, RunDirectory(plan.folder, plan.hash)
    if process.launched:
        check_count(process, compute.per_machine * compute.machines)
    if directory.metrics is not None:
        return run(plan, process)
    if compute.machines > 1 and not process.launched:
        raise ConfigError(f"trainer.num_nodes={compute.machines}: let torchrun or srun start the processes")
    count = max(1 if process.launched else compute.per_machine, plan.stacks.carriers)
    with given_back(), directory.owned() if process.is_main else nullcontext():
        plan = tuned(plan, process)
        if count == 1:
            return run(plan, process)
        launch(count, run_in_new_process, plan, HydraConfig.get(), start=start_by(compute.accelerator))
        return objective_value(directory.metrics, plan.output.objective)


def run_in_new_process(plan: Plan, hydra_cfg: DictConfig) -> None:
    """The work of a process that `launch` starts: Hydra's global state first, then its part of the run."""
    register_resolvers()
    setup_globals()
    HydraConfig.instance().set_config(OmegaConf.create({"hydra": hydra_cfg}))
    run(plan, process_info())


def run(plan: Plan, process: ProcessInfo = SINGLE) -> float | None:
    """The part of one process: the whole run, one rank of a data-parallel chain, or some of several stacks."""
    prepare_torch(plan.compute.threads, plan.compute.tf32, max(plan.compute.per_machine, plan.stacks.carriers))
    directory = RunDirectory(plan.folder, plan.hash)
    if directory.metrics is not None:
        if process.is_main:
            answer(directory)
        return objective_value(directory.metrics, plan.output.objective)
    independent = process.world_size > 1 and plan.compute.strategy != "ddp"
    store = StepStore(process) if independent else None  # all have read the folder now, so any process may write to it
    started = time.perf_counter()
    stacks = plan.numbers(process)
    mine = stacks[process.rank :: process.world_size] if independent else stacks
    first, outcomes = sample_stacks(plan, directory, mine, len(stacks), process)
    steps = first.plan.steps
    outcome = outcomes[0] if len(stacks) == 1 else gather_outcomes(store, directory, stacks, mine, outcomes, steps)
    if not process.is_main:
        return None
    if outcome.steps < steps:
        slowest = f" in the slowest of {len(stacks)} stacks" if len(stacks) > 1 else ""
        print(f"stopped at step {outcome.steps} of {steps}{slowest}; the same command resumes it")
        return None
    return finish(plan, first, directory, outcome, process, started)


def sample_stacks(
    plan: Plan, directory: RunDirectory, numbers: range, total: int, process: ProcessInfo
) -> tuple[StackRun, list[Outcome]]:
    """Sample the stacks of this process, one after the other. Returns the first of them, and the outcomes of all.

    The time limit is that of all stacks together: a stack for which no time is left does not begin.
    """
    first, outcomes, limit = None, [], None
    for number in numbers:
        if limit is not None and (remaining := limit.time_remaining()) is not None:
            if remaining <= 0:
                break
            limit = bdl.callbacks.TimeLimit(timedelta(seconds=remaining))
        if total > 1 and process.is_main:
            print(f"stack {number} ({total} in all, {process.world_size} at a time)", flush=True)
        L.seed_everything(derive_seed("torch", plan.seed, number), verbose=False)
        stack = build_stack(plan, directory, number, process, limit)
        outcomes.append(sample_stack(stack, directory, plan.checkpoint(number), process))
        first, limit = first or stack, stack.callbacks.limit
    assert first is not None
    return first, outcomes


def sample_stack(
    stack: StackRun, directory: RunDirectory, checkpoint: str = "last", process: ProcessInfo = SINGLE
) -> Outcome:
    """Sample, from the checkpoint if there is one. Raises Stopped if a signal asked for a stop."""
    for logger in stack.trainer.loggers:
        logger.log_hyperparams(stack.settings)
    path = directory.checkpoint(checkpoint)
    if path is not None and process.is_main:
        print(f"resuming from {path}")
    with small_garbage():
        stack.trainer.fit(stack.module, stack.data, ckpt_path=path, weights_only=True)
    save, sampler = stack.callbacks.save, stack.module.sampler
    if save.signum is not None:
        raise Stopped(save.signum, f"stopped by signal {save.signum}; the same command resumes from {save.path}")
    return Outcome(sampler.steps, stack.callbacks.monitor.trace(), sampler.swap_rates)


def gather_outcomes(
    store: StepStore | None,
    directory: RunDirectory,
    stacks: Sequence[int],
    mine: Sequence[int],
    outcomes: Sequence[Outcome],
    steps: int | float,
) -> Outcome:
    """Join the outcomes of all stacks, in the main process once all are done. The others return their first.

    mine: the stacks of this process, of which outcomes has those that began. steps: those of a whole run. Before its
    end the stacks stand at different steps, so the joint outcome is the least number of steps alone.
    """
    for stack, outcome in zip(mine, outcomes, strict=False):
        rates = {} if outcome.swap_rates is None else {"swap_rates": outcome.swap_rates}
        write_trace(directory.path, stack, outcome.trace | rates)
    done = min(outcome.steps for outcome in outcomes) if len(outcomes) == len(mine) else 0
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
    plan: Plan, stack: StackRun, directory: RunDirectory, outcome: Outcome, process: ProcessInfo, started: float
) -> float | None:
    """Evaluate the samples, report them and return the objective. started: `time.perf_counter()` before the build."""
    sampled = time.perf_counter() - started
    module, facts = stack.module, facts_of(plan, stack.data, process)
    stack.net.to(stack.trainer.strategy.root_device)
    if stack.plan.baseline is not None:
        baseline = stack.plan.baseline.build()
        fit_baseline(baseline, plan.folder, stack.net, stack.data, module.loss, plan.seed)
        facts["approximation"] = str(baseline)
    # A kill after metrics.json, which marks a run as complete, must not leave it without timing.json.
    directory.write_timing(outcome.steps, sampled, time.perf_counter() - started)
    metrics = report_run(
        directory.path, stack.net, stack.data, module.sampler, outcome, facts, plan.output.train_items, module.loss,
        stack.trainer.loggers,
    )  # fmt: skip
    log_metrics(stack.trainer, metrics, outcome.steps)
    directory.write_timing(outcome.steps, sampled, time.perf_counter() - started)
    return objective_value(metrics, plan.output.objective)


def objective_value(metrics: dict[str, float] | None, objective: str | None) -> float | None:
    """The metric that a sweep optimises; for None, the NLL of the average on the validation or else the test split."""
    if metrics is None:
        return None
    name = objective or ("val/bma/nll" if "val/bma/nll" in metrics else "test/bma/nll")
    if name not in metrics:
        raise ConfigError(f"objective={name} is no metric of this run, which is complete: choose one of metrics.json")
    return metrics[name]
