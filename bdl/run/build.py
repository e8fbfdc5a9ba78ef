"""One stack of a run, built from its plan: network, chains, module, callbacks, trainer."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy

import bdl
from bdl.batch import Reader
from bdl.data.module import DataModule
from bdl.display import count_of
from bdl.engine.choose import choose_gradient, fuses
from bdl.engine.gradient import Autograd
from bdl.errors import ConfigError, printable
from bdl.frozen import matching
from bdl.lean import L
from bdl.lightning.host import find_sampler
from bdl.lightning.trainer import assemble, silence_lightning
from bdl.likelihoods import Loss
from bdl.run.arrivals import Arrivals
from bdl.run.console import WorkProgress
from bdl.run.directory import RunDirectory
from bdl.run.machine import compile_if_possible
from bdl.run.plan import Compute, Plan, Strategy
from bdl.run.processes import SINGLE, ProcessInfo
from bdl.run.run_data import RunData
from bdl.run.sampler_settings import SamplerSettings
from bdl.run.section import Section, count_outputs, own_likelihood
from bdl.run.stack_plan import ChainsPlan, StackPlan, TargetPlan
from bdl.samplers.priors.blocks import chosen_blocks
from bdl.schedules import EveryStep, Keep
from bdl.start import Trained
from bdl.tune.optimiser import is_optimiser


@dataclass(frozen=True)
class Callbacks:
    """In the order in which the Trainer calls them."""

    config: L.Callback  # first: what a killed run leaves says whose it is
    schedule: bdl.Schedule
    promises: bdl.callbacks.Promises | None  # decides at the end of the burn-in, before a state is kept
    collect: bdl.CollectSamples
    average: bdl.ModelAverage | None
    monitor: bdl.Monitor
    start: bdl.callbacks.EnsembleStart | None  # writes after config.yaml, which says whose ensemble it is
    progress: bdl.callbacks.StepProgress
    limit: bdl.callbacks.TimeLimit
    save: bdl.SaveLast
    arrivals: Arrivals | None  # of one chain on several devices

    def __iter__(self) -> Iterator[L.Callback]:
        return (callback for callback in vars(self).values() if callback is not None)


@dataclass(frozen=True)
class StackRun:
    """One stack, built: everything that sampling needs."""

    plan: StackPlan
    data: DataModule
    net: torch.nn.Module  # one plain copy of the network, for the posterior
    module: bdl.BayesianModule  # the network's chains, which are sampled
    callbacks: Callbacks
    trainer: L.Trainer


def build_stack(
    plan: Plan,
    directory: RunDirectory,
    number: int,
    process: ProcessInfo = SINGLE,
    limit: bdl.callbacks.TimeLimit | None = None,
    run_data: RunData | None = None,
) -> StackRun:
    """Build data, network, module, callbacks and trainer of one stack.

    Without a limit, that of the plan holds; without `run_data` the data are read. The first stack alone is logged, and
    speaks.
    """
    speaks, compute = process.is_main and number == plan.stacks.first, plan.compute
    data = (run_data or RunData(speaks)).build(plan.data(number), compute.strategy, process, warn=speaks)
    if speaks and data.overview is not None:
        print(printable(f"data: {data.overview}"), flush=True)
    stack = plan.of_stack(number, data)
    net = build_net(stack.target, data)
    chains, loss = build_chains(stack.chains, stack.motion.sampler, net), stack.target.loss.build()
    if compute.compiled is True and not fuses_kernels(compute, chains, loss):
        if isinstance(choose_gradient(chains, loss, compiled=False), Autograd):
            compile_if_possible(chains)
    module = bdl.BayesianModule(chains, stack.motion.sampler, loss=loss, compile=compute.compiled)
    if stack.baseline is not None:
        inputs, _ = Reader(net)(next(iter(data.slices("train"))))
        stack.baseline.build().check(net, inputs, own_likelihood(loss), data.has("val"))
    limit = limit or bdl.callbacks.TimeLimit(compute.max_time)
    arrivals = Arrivals(process.rank) if compute.strategy == "ddp" and process.world_size > 1 else None
    callbacks = build_callbacks(stack, data, directory, limit, speaks, arrivals)
    trainer = build_trainer(compute, plan.report.logger if speaks else None, directory.path, callbacks, process)
    return StackRun(stack, data, net, module, callbacks, trainer)


def fuses_kernels(compute: Compute, chains: bdl.ChainStack, loss: Loss) -> bool:
    """Whether `torch.compile` fuses the kernels of a graph under compile=true, in place of the calls of the network."""
    on_gpu = compute.accelerator != "cpu" and torch.cuda.is_available()
    return on_gpu and compute.strategy != "ddp" and fuses(chains, loss, compute.compiled, torch.device("cuda"))


def build_net(target: TargetPlan, data: DataModule) -> torch.nn.Module:
    """The network. Raises ConfigError if it does not fit the inputs of the data, or has too few outputs."""
    model, outputs = target.model, count_outputs(target.loss.build(), data)
    net = model.build()
    x, _ = data.items("train", 2)
    try:
        width = net.eval()(x).shape[-1]
    except RuntimeError as error:
        raise ConfigError(
            f"the model, {model.target}, does not take inputs of shape {tuple(x.shape[1:])}: choose another model or "
            f"change its sizes ({str(error).splitlines()[0]})"
        ) from error
    classes = data.num_classes
    if width < outputs or width > outputs and not classes:
        key = "model.num_classes" if "num_classes" in model.node else "model.sizes"
        wanted = f"{classes} classes" if classes else f"a likelihood that needs {outputs}"
        raise ConfigError(f"the model has {width} outputs for {wanted}: change {key}")
    return net.train()


def build_chains(plan: ChainsPlan, sampler: SamplerSettings, net: torch.nn.Module) -> bdl.ChainStack:
    """The chains: fresh copies of the network, or copies of saved weights, which become those of the network too.

    A network that brings trained weights is copied as it is.

    Raises ConfigError for a frozen part that would be random, and for what `CheckpointStart.load` refuses.
    """
    start, only = None if plan.start is None else plan.start.build(), sampler.only
    names, trained = [name for name, _ in net.named_parameters()], isinstance(net, bdl.models.Logits) and net.trained
    fresh = [] if trained else names
    if isinstance(start, bdl.CheckpointStart):
        start.load(net)
        fresh = matching(names, list(start.skip), "start.skip") if start.skip else []
    if only is not None and (random := sorted(set(fresh) - matching(names, only, "sampler.only"))):
        raise ConfigError(
            f"sampler.only={only} would freeze {random[0]} at random values: start=checkpoint start.path=... loads "
            "the weights of the frozen part, all of which the file must hold"
        )
    refuse_random_centre(sampler, sorted(matching(names, only, "sampler.only")), fresh)
    return bdl.ChainStack(
        net, plan.count, only=only, start="given" if trained or isinstance(start, bdl.CheckpointStart) else "fresh",
        frozen=sampler.frozen, seed=plan.seed, stack=plan.stack, shared=plan.shared_batches,
    )  # fmt: skip


def refuse_random_centre(sampler: SamplerSettings, sampled: Sequence[str], fresh: Container[str]) -> None:
    """Raise ConfigError for a prior centred where the chains begin, if a parameter that has it begins at random.

    Each stack would otherwise have a prior of its own.
    """
    for name, block in zip(sampled, chosen_blocks(sampler.blocks, sampled), strict=True):
        if name in fresh and (block.prior or sampler.prior).needs_start:
            raise ConfigError(
                f"sampler.prior.mean=start: {name} begins at random values, other ones in every chain: "
                "start=checkpoint start.path=... gives it one start, sampler.blocks a prior of its own"
            )


def build_callbacks(
    stack: StackPlan, data: DataModule, directory: RunDirectory, limit: bdl.callbacks.TimeLimit, speaks: bool,
    arrivals: Arrivals | None = None,
) -> Callbacks:  # fmt: skip
    keeping, functions = stack.keeping, {name: f and f.build() for name, f in stack.motion.schedule.items()}
    rows = data.checksums() if speaks else {}
    keep, run = keeping.rule.build(), f"{directory.hash}, stack {stack.chains.stack}"

    def record(trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            directory.write_config(stack.settings, stack.name, module.device, data.preprocessing(), speaks, rows)
        if speaks and (replicas := find_sampler(trainer).replicas) is not None:
            print(replicas.describe(), flush=True)

    samples, target = directory.path / keeping.folder, dict(stack.target.record)
    collect = bdl.CollectSamples(keep, samples, overwrite=True, target=target, **keeping.collect)
    average = build_average(keep, data)
    promises = build_promises(stack, [collect] if average is None else [collect, average])
    if promises is not None and promises.may_lower:
        functions["lr"] = None  # the same at every step, but for what the promises change
    return Callbacks(
        LambdaCallback(on_train_start=record),
        bdl.Schedule(**functions),
        promises,
        collect,
        average,
        bdl.Monitor(keeping.monitor_every),
        build_start(stack, directory.path, speaks),
        bdl.callbacks.StepProgress(folder=directory.path),
        limit,
        bdl.SaveLast(directory.path / "checkpoints", keeping.checkpoint_every, keeping.checkpoint, run=run),
        arrivals,
    )


def build_average(keep: Keep, data: DataModule) -> bdl.ModelAverage | None:
    """The average on the validation split, or else on the test split; None where no items are held out."""
    held_out = {"val": data.val_dataloader(), "test": data.test_dataloader()}
    return next((bdl.ModelAverage(keep, loader, name=name) for name, loader in held_out.items() if loader), None)


def nothing_to_tune(stack: StackPlan, strategy: Strategy = "auto") -> str | None:
    """Why there is nothing to tune; None where there is."""
    sampler, start = stack.motion.sampler, stack.chains.start
    if sampler.dynamics.variational:
        return "Bayes by Backprop, whose optimiser adapts its step"
    if sampler.only is not None or start is not None and start.target == "bdl.CheckpointStart":
        return "a part of a network or saved weights, from which no trial starts"
    if strategy == "ddp":
        return "trainer=ddp, whose batches are divided among devices"
    return None


def build_promises(
    stack: StackPlan, keepers: Sequence[bdl.CollectSamples | bdl.ModelAverage]
) -> bdl.callbacks.Promises | None:
    """What holds the stack to the promises of tuning; None where there are none, and where samples follow cycles."""
    motion, number, keep = stack.motion, stack.chains.stack, keepers[0].keep
    promise, sampler, lr = motion.promise, motion.sampler, motion.schedule["lr"]
    movable = None if promise is None else promise.may_move
    optimises = is_optimiser(sampler.dynamics, float(sampler.temperature))
    if promise is None or movable is None or optimises or not isinstance(keep, EveryStep) or nothing_to_tune(stack):
        return None
    fixed = {"_target_": "bdl.schedules.Constant", "value": sampler.lr}
    lowers = "lr" in movable and (lr is None or lr.node == fixed)  # no schedule moves it meanwhile
    named = f"stack {number}: " if number else ""
    return bdl.callbacks.Promises(
        keepers, lowers, "burn_in" in movable, lambda line: print(f"{named}{line}", flush=True), promise.cool
    )


def build_start(stack: StackPlan, folder: Path, speaks: bool) -> bdl.callbacks.EnsembleStart | None:
    """The training of the chains before they are sampled; None unless `start` trains them."""
    start = None if stack.chains.start is None else stack.chains.start.build()
    if start is None or isinstance(start, bdl.CheckpointStart):
        return None

    def report(trained: Trained) -> None:
        loss, members = float(trained.val_loss.mean()), len(trained.val_loss)
        who, how_long = count_of(members, "member"), count_of(trained.epochs, "epoch")
        print(f"start: {who}, {how_long}, mean validation loss {loss:.4g}", flush=True)

    shown = {"progress": partial(WorkProgress, "start"), "report": report} if speaks else {}
    return bdl.callbacks.EnsembleStart(start, folder, stack.chains.stack, dict(stack.target.record), **shown)


def build_trainer(
    compute: Compute, logger: Section[Logger] | None, folder: Path, callbacks: Callbacks, process: ProcessInfo
) -> L.Trainer:
    """The Trainer of one stack. Raises ConfigError for settings that this machine or its packages cannot carry out.

    To Lightning, each of several independent stacks is a run on a single device.
    """
    silence_lightning(process.is_main)
    tensorboard = logger is not None and logger.target.endswith("TensorBoardLogger")
    if tensorboard and not (find_spec("tensorboard") or find_spec("tensorboardX")):
        raise ConfigError("logger=tensorboard needs the package tensorboard: pip install 'bdl[tensorboard]'")
    if not process.is_main:
        callbacks.progress.disable()
    single: dict[str, Any] = {}
    if compute.strategy == "chains" or compute.strategy != "ddp" and process.world_size > 1:
        on_cpu = compute.accelerator == "cpu" or not torch.cuda.is_available()
        devices = 1 if on_cpu else [process.local_rank // compute.concurrent]
        single = {"strategy": "auto", "devices": devices, "num_nodes": 1, "plugins": LightningEnvironment()}
    elif compute.strategy == "ddp" and compute.patience is not None:  # which ends the run first, with a name
        single = {"strategy": DDPStrategy(timeout=timedelta(seconds=max(1800.0, 2 * compute.patience)))}
    refusal = "the trainer is not available on this machine, choose another, e.g. trainer=cpu"
    built = False if logger is None else logger.build()
    return assemble(callbacks, folder, built, refusal, **{**compute.trainer, **single})
