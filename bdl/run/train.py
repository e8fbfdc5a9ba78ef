"""The story of a run, top to bottom: check, plan, tune, launch, sample, gather, evaluate, report, refit."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

import bdl
from bdl.data.module import DataModule
from bdl.data.tensors import TensorDataModule
from bdl.disk.owner import owner_of
from bdl.errors import BdlWarning, ConfigError, Stopped, StoreError
from bdl.interrupts import explained, signal_in_words
from bdl.law.measure import measure_law
from bdl.lean import L
from bdl.lightning.trainer import fit
from bdl.likelihoods import Loss
from bdl.posterior.calibrated import CalibrationRequest
from bdl.posterior.report.terminal import print_summary
from bdl.posterior.simple_models import losses_of_simple_models
from bdl.run.build import StackRun, build_stack
from bdl.run.config import register_resolvers
from bdl.run.console import WorkProgress
from bdl.run.directory import OWNER, RunDirectory
from bdl.run.jobs import NOTE, noted
from bdl.run.launch import given_back, launch, start_by
from bdl.run.machine import prepare_torch, small_garbage
from bdl.run.objective import check_objective, objective_value
from bdl.run.outcome import Outcome, gather_outcomes
from bdl.run.plan import Plan, ReportPlan, RunRequest
from bdl.run.processes import SINGLE, ProcessInfo, StepStore, check_count, process_info
from bdl.run.records import METRICS, TIMING, is_calibrated, read_config, read_seconds, read_units
from bdl.run.run_data import RunData
from bdl.run.section import own_likelihood
from bdl.run.stacking import ChainWeights
from bdl.run.stored import altered
from bdl.run.tuning import tuned
from bdl.run.typed import after_table, calibration
from bdl.run.validate import check_config
from bdl.run.write_report import ReportRequest, TargetWords, facts_of, find_splits, log_metrics, write_report
from bdl.seeding import derive_seed


def train(cfg: DictConfig) -> float | None:
    """Sample and judge a run; with refit=all, sample all rows afterwards.

    Returns the value of `objective`, which a sweep minimises; None for a run that has not ended.
    """
    check_config(cfg)
    check_objective(cfg.objective)
    request, process = RunRequest(cfg, HydraConfig.get()), process_info()
    plan = request.draft
    if plan.refit and process.world_size > 1:
        raise ConfigError("refit=all needs processes that bdl starts itself, and others have started these")
    objective = carry_out(request, process)
    if plan.refit and plan.directory().metrics is not None:
        again = request.of_all_rows(read_config(plan.folder).get("found"))
        print(f"refit: {again.draft.folder} is sampled from all rows; scores are those of {plan.folder}", flush=True)
        carry_out(again, process)
    one, table = HydraConfig.get().mode != RunMode.MULTIRUN, plan.choices["data"] in ("csv", "parquet")
    if process.is_main and one and table and (plan.folder / METRICS).exists():  # the table itself may be gone by now
        timing, refit = plan.folder / TIMING, plan.refit or cfg.data.all_rows or cfg.get("calibrate") is not None
        seconds = read_seconds(timing) if timing.exists() else None
        print(*after_table(plan.report.command, plan.folder, refit, seconds), sep="\n", flush=True)
    return objective


def carry_out(request: RunRequest, process: ProcessInfo) -> float | None:
    """Run in this process; or launch new ones, where the run has several and no cluster has started them."""
    plan = request.draft
    compute, report, directory = plan.compute, plan.report, plan.directory()
    if process.launched:
        check_count(process, compute.per_machine * compute.machines)
    if (metrics := directory.metrics) is not None:
        if process.is_main:
            answer(directory, metrics, report.calibrate)
        return objective_value(metrics, report.objective)
    if compute.machines > 1 and not process.launched:
        raise ConfigError(f"trainer.num_nodes={compute.machines}: let torchrun or srun start the processes")
    count = max(1 if process.launched else compute.per_machine, plan.stacks.carriers)
    data = RunData(process.is_main)
    with given_back(), owned(directory, request) if process.is_main else contextlib.nullcontext():
        if count > 1:
            data.read(plan.data(plan.stacks.first))  # before tuning and the stacks are divided among processes
        plan = tuned(request, process, data)
        if count == 1:
            return run(plan, process, data)
        start = start_by(compute.accelerator)
        with data.handed_over(start):
            launch(count, run_in_new_process, plan, request.hydra, data, start=start, patience=compute.patience)
        return objective_value(directory.metrics, report.objective)


@contextlib.contextmanager
def owned(directory: RunDirectory, request: RunRequest) -> Iterator[None]:
    """This process owns the folder, which says so to `bdl status`."""
    with directory.owned(), noted(directory.path / NOTE, request.hydra.overrides.task):
        yield


def run_in_new_process(plan: Plan, hydra: HydraConf, data: RunData) -> None:
    """The work of a process that `launch` starts: Hydra's global state first, then its part of the run."""
    register_resolvers()
    setup_globals()
    HydraConfig.instance().set_config(OmegaConf.create({"hydra": hydra}))
    run(plan, process_info(), data)


def run(plan: Plan, process: ProcessInfo = SINGLE, data: RunData | None = None) -> float | None:
    """The part of one process: the whole run, one rank of a data-parallel chain, or some of several stacks."""
    compute, processes = plan.compute, max(plan.compute.per_machine, plan.stacks.carriers)
    prepare_torch(compute.threads, compute.tf32, processes, compute.compiled)
    directory = plan.directory()
    independent = process.world_size > 1 and plan.compute.strategy != "ddp"
    store = StepStore(process) if independent else None  # all have read the folder now, so any process may write to it
    started, resumed = time.perf_counter(), any((directory.path / "checkpoints").glob("*.ckpt"))
    stacks = plan.numbers(process)
    mine = stacks[process.rank :: process.world_size] if independent else stacks
    first, outcomes = sample_stacks(plan, directory, mine, len(stacks), process, data)
    steps = first.plan.motion.steps
    outcome = outcomes[0] if len(stacks) == 1 else gather_outcomes(store, directory, stacks, mine, outcomes, steps)
    if not process.is_main:
        return None
    if outcome.steps < steps:
        slowest = f" in the slowest of {len(stacks)} stacks" if len(stacks) > 1 else ""
        print(f"stopped at step {outcome.steps} of {steps}{slowest}; the same command resumes it")
        return None
    kept = f"all samples are kept in {directory.path}, and the same command makes the report"
    with small_garbage(), explained(lambda: kept):
        metrics = finish(plan, first, directory, outcome, process, started, resumed)
    return objective_value(metrics, plan.report.objective)


def answer(directory: RunDirectory, metrics: dict[str, float], calibrate: CalibrationRequest | None) -> None:
    """Say that the run is complete, and print its metrics. Warns of files that are not as the run left them."""
    with contextlib.suppress(StoreError, PermissionError):  # who may not write here gets the answer all the same
        owner = owner_of(directory.path / OWNER)
        if owner is not None and owner.is_dead():
            with directory.owned():  # sweeps what a command left that was killed at its very end
                pass
    for name, fault in altered(directory.path).items():
        again = "; remove it, and the same command makes it again" if name == METRICS else ""
        warnings.warn(f"{directory.path / name} {fault}{again}", BdlWarning, stacklevel=2)
    print(f"{directory.path} already holds this run, complete; another seed or hydra.run.dir makes a new one")
    print_summary(metrics, units=read_units(directory.path))
    if calibrate is not None and not is_calibrated(directory.path, calibrate):
        print(f"it is not calibrated so: {calibration(directory.path, calibrate)} does it")


def sample_stacks(
    plan: Plan, directory: RunDirectory, numbers: range, total: int, process: ProcessInfo, data: RunData | None = None
) -> tuple[StackRun, list[Outcome]]:
    """Sample the stacks of this process, one after the other. Returns the first of them, and the outcomes of all.

    The time limit is that of all stacks together: a stack for which no time is left does not begin.
    """
    first, outcomes, limit, data = None, [], None, data or RunData(process.is_main)
    for number in numbers:
        if limit is not None and (remaining := limit.time_remaining()) is not None:
            if remaining <= 0:
                break
            limit = bdl.callbacks.TimeLimit(timedelta(seconds=remaining))
        if total > 1 and process.is_main:
            print(f"stack {number} ({total} in all, {process.world_size} at a time)", flush=True)
        L.seed_everything(derive_seed("torch", plan.seed, number), verbose=False)
        stack = build_stack(plan, directory, number, process, limit, data)
        outcomes.append(sample_stack(stack, directory, process))
        first, limit = first or stack, stack.callbacks.limit
    assert first is not None
    return first, outcomes


def sample_stack(stack: StackRun, directory: RunDirectory, process: ProcessInfo = SINGLE) -> Outcome:
    """Sample, from the checkpoint if there is one. Raises Stopped if a signal asked for a stop."""
    for logger in stack.trainer.loggers:
        logger.log_hyperparams(dict(stack.plan.settings))
    path = directory.checkpoint(stack.plan.keeping.checkpoint)
    if path is not None and process.is_main:
        print(f"resuming from {path}")
    with small_garbage():
        fit(stack.trainer, stack.module, stack.data, path)
    save, sampler = stack.callbacks.save, stack.module.sampler
    if save.signum is not None:
        raise Stopped(
            save.signum, f"stopped by {signal_in_words(save.signum)}; the same command resumes from {save.path}"
        )
    return Outcome(sampler.steps, stack.callbacks.monitor.trace(), sampler.swap_rates)


def finish(
    plan: Plan,
    stack: StackRun,
    directory: RunDirectory,
    outcome: Outcome,
    process: ProcessInfo,
    started: float,
    resumed: bool,
) -> dict[str, float]:
    """Evaluate the samples and report them. Returns the metrics.

    started: `time.perf_counter()` before the build. resumed: whether an earlier call has made some steps, so that
    the time of all is not known.
    """
    sampled, facts = time.perf_counter() - started, facts_of(plan, stack.data, process)
    stack.net.to(stack.trainer.strategy.root_device)
    if stack.plan.baseline is not None:
        facts["approximation"] = fit_baseline(stack, directory)
    # A kill after metrics.json, which marks a run as complete, must not leave it without timing.json.
    directory.write_timing(outcome.steps, sampled, time.perf_counter() - started)
    request = report_of(stack, directory.path, outcome, facts, plan.report)
    metrics = write_report(replace(request, command=plan.report.command, seconds=math.nan if resumed else sampled))
    log_metrics(stack.trainer, metrics, outcome.steps)
    directory.write_timing(outcome.steps, sampled, time.perf_counter() - started)
    return metrics


def report_of(
    stack: StackRun, run: Path, outcome: Outcome, facts: Mapping[str, str], plan: ReportPlan
) -> ReportRequest:  # fmt: skip
    """The report of all samples in the folder of a run, by the network and the data of its first stack."""
    data, promises = stack.data, stack.callbacks.promises
    posterior = bdl.Posterior.opened(run, stack.net, likelihood=own_likelihood(stack.module.loss))
    held_out, items = data.has("test") or data.has("val"), plan.train_items
    return ReportRequest(
        run,
        posterior,
        find_splits(data, None, items) if held_out else {"train": data.slices("train", items)},
        outcome,
        facts,
        stack.module.sampler,
        data.ood(),
        TargetWords.of(data),
        stack.trainer.loggers,
        None if promises is None else promises.promised,
        None if plan.calibrate is None else plan.calibrate.on(data.groups),
        {} if stack.plan.baseline else law_of(stack, posterior, outcome.steps),
        simple=simple_of(data, stack.module.loss),
        chain_weights=ChainWeights(plan.weights, data),
    )


def simple_of(data: DataModule, loss: Loss) -> dict[str, Tensor]:
    """Losses of simple models on the test rows of a table; {} for other data."""
    if not (isinstance(data, TensorDataModule) and len(data.input_shape) == 1 and data.has("test")):
        return {}
    return losses_of_simple_models(loss, data.items("train"), data.items("test"))


def law_of(stack: StackRun, posterior: bdl.Posterior, steps: int) -> dict[str, float]:
    """What exact gradients say of the samples; {} where batches are divided among devices, or have no order."""
    module, data = stack.module, stack.data
    if module.sampler.host.group is not None:
        return {}
    try:
        batches = data.slices("train")
    except ConfigError:  # items without an order
        return {}
    with WorkProgress("measuring the temperature") as progress:
        return measure_law(posterior, module.sampler, module.loss, batches, steps, data.batch_size, progress=progress)


def fit_baseline(stack: StackRun, directory: RunDirectory) -> str:
    """Write the draws of the baseline in the place of samples; those of a run that was killed are replaced.

    Returns what the baseline is, in words.
    """
    plan, data = stack.plan, stack.data
    assert plan.baseline is not None
    baseline, folder = plan.baseline.build(), directory.path / plan.keeping.folder
    trained = bdl.Posterior.opened(folder, stack.net, likelihood=own_likelihood(stack.module.loss))
    val = data.slices("val") if data.has("val") else None
    with WorkProgress("drawing") as progress:
        train = data.slices("train")
        baseline.fit(
            trained, directory.path, train=train, val=val, seed=plan.chains.seed, overwrite=True, progress=progress
        )
    return str(baseline)
