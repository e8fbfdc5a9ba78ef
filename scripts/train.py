"""Samples the posterior of a network, keeps the samples, evaluates them and writes a report: see conf/train.yaml."""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through: bdl prints them as one line

import hydra
import lightning as L
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import WandbLogger
from omegaconf import DictConfig, OmegaConf

import bdl
from bdl.errors import BdlWarning, ConfigError, Stopped
from bdl.posterior.report.numbers import side_by_side, summarise
from bdl.posterior.report.page import write_page
from bdl.posterior.report.terminal import print_summary
from bdl.run.config import identity, register_resolvers, run_name
from bdl.run.console import one_line_errors
from bdl.run.directory import RunDirectory, write_metrics
from bdl.run.machine import allow_tf32, compile_if_possible, keep_freed_memory, leave_new_memory_unfilled
from bdl.run.processes import ALONE, Attendance, Place, check_count, count_processes, find_place, launch
from bdl.run.validate import check_values
from bdl.seeding import derive_seed

register_resolvers()

OURS = ("concurrent", "max_time")  # of the trainer's settings, which Lightning does not see
LAW_OF_DATA = ("_target_", "classes", "augment", "val_fraction", "split_seed", "fold")


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(cfg: DictConfig) -> None:
    with one_line_errors():  # here, or Hydra adds a line of its own
        start(cfg)


def start(cfg: DictConfig) -> None:
    """Run here; or in new processes, where the trainer has several devices and no cluster has started one for each."""
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(f"{missing[0]} has no value: choose a configuration that gives one, or set it")
    check_values(cfg)
    place, count = find_place(), processes_per_machine(cfg)
    wanted = count * cfg.trainer.get("num_nodes", 1)
    if place.started:
        check_count(place, wanted)
    if place.started or wanted == 1 or RunDirectory(cfg.run_dir, cfg).metrics is not None:
        run(cfg, place)
    elif wanted > count:
        raise ConfigError(f"trainer.num_nodes={cfg.trainer.num_nodes}: let torchrun or srun start the processes")
    else:
        launch(count, run_in_place, cfg, HydraConfig.get())


def run_in_place(cfg: DictConfig, hydra_cfg: DictConfig) -> None:
    """What a new process does."""
    setup_globals()
    HydraConfig.instance().set_config(OmegaConf.create({"hydra": hydra_cfg}))
    run(cfg, find_place())


def processes_per_machine(cfg: DictConfig) -> int:
    devices = cfg.trainer.get("devices", 1)
    if cfg.trainer.get("strategy") in ("ddp", "chains"):
        return count_processes(cfg.trainer.accelerator, devices, cfg.trainer.get("concurrent", 1))
    if devices != 1 and not (OmegaConf.is_list(devices) and len(devices) == 1):
        raise ConfigError(
            f"trainer.devices={devices}: trainer=ddp runs one chain on several devices, trainer=chains independent ones"
        )
    return 1


class Data(Protocol):
    """What train.py asks of a data module, besides Lightning's own methods."""

    num_data: int
    num_classes: int

    def slices(self, split: str, items: int | None = None) -> Any: ...

    def train_dataloader(self) -> Any: ...

    def val_dataloader(self) -> Any: ...

    def test_dataloader(self) -> Any: ...


def run(cfg: DictConfig, place: Place = ALONE) -> None:
    """One process's part: all there is, or one chain shared with others (ddp), or a stack of its own (chains)."""
    set_up_torch(cfg)
    separate = place.size > 1 and cfg.trainer.strategy == "chains"
    name = f"last-{cfg.stack + place.rank}" if separate and not place.first else "last"
    directory = RunDirectory(cfg.run_dir, cfg, name)
    OmegaConf.resolve(cfg.logger)  # before N is filled in, which changes the hash that names a W&B run
    if directory.metrics is not None:
        if place.first:
            print(f"{directory.path} holds this run already, complete; another seed or hydra.run.dir makes a new one")
            print_summary(directory.metrics)
        return
    attendance = Attendance(place) if separate else None  # once all have looked at the folder, anyone may write
    cfg.stack += place.rank if separate else 0
    L.seed_everything(derive_seed("torch", cfg.seed, cfg.stack), verbose=False)
    started = time.perf_counter()
    datamodule = instantiate(cfg.data, **({"chains": None} if cfg.shared_batches else {}))
    if place.size > 1 and not separate:
        shard(datamodule, place)
    complete(cfg, datamodule)
    module, net = build_module(cfg, datamodule)
    callbacks = build_callbacks(cfg, datamodule, directory)
    trainer = build_trainer(cfg, callbacks, place)
    sample(cfg, trainer, module, datamodule, directory, callbacks.save, place)
    outcome = Outcome(module.sampler.steps, callbacks.monitor.trace(), module.sampler.swap_rates)
    if attendance is not None:
        outcome = meet(attendance, directory, cfg.stack, outcome)
    if not place.first:
        return
    if outcome.steps < cfg.steps:
        print(f"stopped at step {outcome.steps} of {cfg.steps}; the same command goes on")
        return
    sampled = time.perf_counter() - started
    net.to(trainer.strategy.root_device)
    metrics = evaluate(cfg, directory, module, net, datamodule, outcome, place)
    for logger in trainer.loggers:
        logger.log_metrics({k: v for k, v in metrics.items() if math.isfinite(v)}, outcome.steps)
        logger.finalize("success")
    close_loggers(trainer)
    directory.write_timing(outcome.steps, sampled, time.perf_counter() - started)


def set_up_torch(cfg: DictConfig) -> None:
    keep_freed_memory()
    torch.set_num_threads(cfg.threads or max(1, (os.cpu_count() or 1) // processes_per_machine(cfg)))
    allow_tf32(cfg.tf32)
    leave_new_memory_unfilled()


def sample(
    cfg: DictConfig,
    trainer: L.Trainer,
    module: bdl.BayesianModule,
    datamodule: Any,
    directory: RunDirectory,
    save: bdl.SaveLast,
    place: Place,
) -> None:
    """Raises Stopped when a signal has asked for a stop."""
    for logger in trainer.loggers:
        logger.log_hyperparams(identity(cfg))
    checkpoint = directory.checkpoint
    if checkpoint is not None and place.first:
        print(f"going on from {checkpoint}")
    trainer.fit(module, datamodule, ckpt_path=checkpoint, weights_only=True)
    if save.signum is not None:
        raise Stopped(save.signum, f"stopped by signal {save.signum}; the same command goes on from {save.path}")


@dataclass(frozen=True)
class Outcome:
    """How far sampling came, and what was seen on the way."""

    steps: int
    trace: dict[str, torch.Tensor]
    swap_rates: torch.Tensor | None


def meet(attendance: Attendance, directory: RunDirectory, stack: int, own: Outcome) -> Outcome:
    """The first process waits for the others and puts the outcomes of all stacks together; the others go."""
    rates = {} if own.swap_rates is None else {"swap_rates": own.swap_rates}
    directory.write_trace(stack, own.trace | rates)
    attendance.tell(own.steps)
    if not attendance.place.first:
        return own
    steps = min(attendance.wait())
    traces = directory.read_traces(range(stack, stack + attendance.place.size))
    each = [trace.pop("swap_rates") for trace in traces if "swap_rates" in trace]
    return Outcome(steps, side_by_side(traces), torch.stack(each).mean(0) if each else None)


def shard(datamodule: Data, place: Place) -> None:
    """Give this process its part of every batch."""
    loader = datamodule.train_dataloader()
    if not hasattr(loader, "shard"):
        raise ConfigError(f"trainer=ddp deals out the batches of a loader of bdl.data, got {type(loader).__name__}")
    loader.shard(place.rank, place.size)


def complete(cfg: DictConfig, datamodule: Data) -> None:
    """Fill in what is derived from the data: N, and the number of steps of a run counted in epochs."""
    num_data = datamodule.num_data
    if cfg.sampler.num_data not in (None, num_data):
        raise ConfigError(
            f"sampler.num_data = {cfg.sampler.num_data}, but the training data have {num_data} items: leave it null"
        )
    cfg.sampler.num_data = num_data
    if cfg.trainer.max_steps < 0:
        batches = len(datamodule.train_dataloader())
        cfg.steps = cfg.trainer.max_epochs * -(-batches // cfg.trainer.accumulate_grad_batches)


def build_module(cfg: DictConfig, datamodule: Data) -> tuple[bdl.BayesianModule, torch.nn.Module]:
    """The module that is sampled, and one plain copy of the network for the posterior."""
    net = instantiate(cfg.model, _convert_="all")
    x, y = next(iter(datamodule.slices("test")))
    try:
        classes = net.eval()(x[:2]).shape[-1]
    except RuntimeError as error:
        raise ConfigError(
            f"the model, {cfg.model._target_}, does not take inputs of shape {tuple(x.shape[1:])}, choose another or "
            f"change its sizes: {str(error).splitlines()[0]}"
        ) from error
    if datamodule.num_classes > classes:
        key = "model.num_classes" if "num_classes" in cfg.model else "model.sizes"
        raise ConfigError(f"the model has {classes} outputs for {datamodule.num_classes} classes: change {key}")
    stack = bdl.ChainStack(net.train(), cfg.chains, seed=cfg.seed, stack=cfg.stack, shared=cfg.shared_batches)
    if cfg.compile:
        compile_if_possible(stack)
    module = bdl.BayesianModule(stack, instantiate(cfg.sampler, _convert_="all"), loss=instantiate(cfg.loss))
    return module, net


@dataclass(frozen=True)
class Callbacks:
    schedule: bdl.Schedule
    collect: bdl.CollectSamples
    average: bdl.ModelAverage
    monitor: bdl.Monitor
    config: L.Callback  # after the checks of those above, so that a refused run leaves no config.yaml
    progress: bdl.callbacks.StepProgress
    limit: bdl.callbacks.TimeLimit
    save: bdl.SaveLast

    def all(self) -> list[L.Callback]:
        return [getattr(self, f.name) for f in fields(self)]


def build_callbacks(cfg: DictConfig, datamodule: Data, directory: RunDirectory) -> Callbacks:
    keep = instantiate(cfg.collect.keep)
    val, name = datamodule.val_dataloader(), run_name(HydraConfig.get().runtime.choices)
    options = {k: v for k, v in cfg.collect.items() if k != "keep"}
    data: Any = OmegaConf.to_container(cfg.data, resolve=True)
    data = {k: v for k, v in data.items() if k in LAW_OF_DATA}
    target = {"model": OmegaConf.to_container(cfg.model, resolve=True), "data": data}
    whose = f"{directory.hash}, stack {cfg.stack}"
    return Callbacks(
        bdl.Schedule(**{name: instantiate(cfg.schedule[name]) for name in ("lr", "temperature", "zeta")}),
        bdl.CollectSamples(keep, run_dir=cfg.run_dir, overwrite=True, target=target, **options),
        bdl.ModelAverage(keep, val or datamodule.test_dataloader(), name="val" if val else "test"),
        bdl.Monitor(cfg.monitor_every),
        LambdaCallback(
            on_train_start=lambda trainer, module: (
                directory.write_config(name, module.device) if trainer.is_global_zero else None
            )
        ),
        bdl.callbacks.StepProgress(),
        bdl.callbacks.TimeLimit(cfg.trainer.max_time),
        bdl.SaveLast(Path(cfg.run_dir) / "checkpoints", cfg.checkpoint_every, directory.name, run=whose),
    )


def build_trainer(cfg: DictConfig, callbacks: Callbacks, place: Place = ALONE) -> L.Trainer:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning.*")
    # Raised from a LightningModule, it is ours all the same; one process says it.
    warnings.filterwarnings("default" if place.first else "ignore", category=BdlWarning)
    if not place.first:
        callbacks.progress.disable()
    logger = instantiate(cfg.logger) if cfg.logger.get("_target_") and place.first else False
    alone: dict[str, Any] = {}
    if cfg.trainer.get("strategy") == "chains":  # nobody's rank counts but the device's
        on_cpu = cfg.trainer.accelerator == "cpu" or not torch.cuda.is_available()
        device = place.local_rank // cfg.trainer.concurrent
        alone = {"strategy": "auto", "devices": 1 if on_cpu else [device], "num_nodes": 1}
        alone["plugins"] = LightningEnvironment()
    arguments = alone | dict(
        callbacks=callbacks.all(), logger=logger, default_root_dir=cfg.run_dir,
        enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
    )  # fmt: skip
    try:
        settings: Any = OmegaConf.to_container(cfg.trainer, resolve=True)
        return instantiate({k: v for k, v in settings.items() if k not in OURS}, **arguments)
    except InstantiationException as error:
        cause = str(error.__cause__ or error).strip()
        raise ConfigError(f"the trainer can't be had here: {cause} Choose another, trainer=cpu say") from error


def evaluate(
    cfg: DictConfig,
    run: RunDirectory,
    module: bdl.BayesianModule,
    net: torch.nn.Module,
    datamodule: Data,
    outcome: Outcome,
    place: Place,
) -> dict[str, float]:
    """metrics.json, report.html and the summary table, from the samples on disk."""
    posterior = bdl.Posterior.load(run.path, net)
    loaders = {"test": datamodule.slices("test"), "train": datamodule.slices("train", cfg.train_items)}
    ood = getattr(datamodule, "ood", lambda: None)()  # of images
    summary = summarise(posterior, loaders, outcome.trace, ood=ood)
    rates = outcome.swap_rates
    summary.metrics |= {} if rates is None else {f"swap_rate/{k}": r for k, r in enumerate(rates.tolist())}
    choices = HydraConfig.get().runtime.choices
    shared = place.size > 1 and cfg.trainer.strategy == "ddp"
    facts = {
        "title": f"{run_name(choices)}, seed {cfg.seed}",
        **{k: str(choices[k]) for k in ("data", "model", "sampler", "schedule")},
        "N": f"{datamodule.num_data:,}",
        "batch": str(getattr(datamodule, "batch_size", cfg.data.batch_size)) + (" per device" if shared else ""),
        "devices": f"{place.size}, {cfg.trainer.strategy}" if place.size > 1 else "1",
        "steps": f"{outcome.steps:,}",
        "samples": f"{posterior.samples:,} of {posterior.chains} chains",
        "T": f"{summary.metrics['temperature']:g}",
        "T_eff": f"{summary.metrics['t_eff']:.3g}",
        "prior": str(module.sampler.prior),
        "train metrics": f"of {len(loaders['train'].dataset):,} items",
    }
    write_page(run.path / "report.html", posterior, summary, facts, module.sampler.explain(), outcome.trace)
    write_metrics(run.path / "metrics.json", summary.metrics)
    print_summary(summary.metrics)
    print(f"report: {run.path / 'report.html'}")
    return summary.metrics


def close_loggers(trainer: L.Trainer) -> None:
    """Without it the next job of a sweep would log into this one's W&B run."""
    if any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
        import wandb

        wandb.finish()


if __name__ == "__main__":
    with one_line_errors():
        main()
