"""The parts of a run, built from their sections of the configuration: data, network, module, callbacks, trainer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from importlib.util import find_spec
from typing import Any

import lightning as L
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import LambdaCallback
from omegaconf import DictConfig, OmegaConf

import bdl
from bdl.data.module import DataModule, as_data_module
from bdl.engine.choose import Compile, choose_gradient
from bdl.engine.gradient import Autograd
from bdl.errors import BdlWarning, ConfigError
from bdl.frozen import matching
from bdl.run.machine import compile_if_possible
from bdl.run.processes import SINGLE, ProcessInfo
from bdl.run.progress import WorkProgress
from bdl.start import Trained

OURS = ("concurrent", "max_time", "start_epochs")  # settings of the trainer that bdl reads and Lightning does not know
LAW_OF_DATA = ("_target_", "classes", "augment", "val_fraction", "split_seed", "fold")  # recorded in target.json


@dataclass(frozen=True)
class Callbacks:
    config: L.Callback  # first: what a killed run leaves says whose it is
    schedule: bdl.Schedule
    collect: bdl.CollectSamples
    average: bdl.ModelAverage
    monitor: bdl.Monitor
    start: bdl.callbacks.EnsembleStart | None  # writes after config.yaml, which says whose ensemble it is
    progress: bdl.callbacks.StepProgress
    limit: bdl.callbacks.TimeLimit
    save: bdl.SaveLast

    def __iter__(self) -> Iterator[L.Callback]:
        callbacks = (getattr(self, field.name) for field in fields(self))
        return (callback for callback in callbacks if callback is not None)


def build_data(
    data: DictConfig, shared_batches: bool, ranks_of_one_chain: ProcessInfo = SINGLE, warn: bool = True
) -> DataModule:
    """The data module. Each of several ranks of one chain gets its part of every batch."""
    with warnings.catch_warnings():
        if not warn:  # another process says the same
            warnings.simplefilter("ignore", BdlWarning)
        shared = {"chains": None} if shared_batches and "chains" in data else {}
        datamodule = as_data_module(instantiate(data, **shared))
    if ranks_of_one_chain.world_size > 1:
        datamodule.shard(ranks_of_one_chain.rank, ranks_of_one_chain.world_size)
    return datamodule


def count_steps(trainer: DictConfig, datamodule: DataModule) -> int | float:
    """The sampler's steps in a run: trainer.max_steps, or those of trainer.max_epochs where it is -1."""
    if trainer.max_steps >= 0:
        return trainer.max_steps
    batches = len(datamodule.train_dataloader())
    return trainer.max_epochs * -(-batches // trainer.accumulate_grad_batches)


def build_net(model: DictConfig, datamodule: DataModule, outputs: int) -> torch.nn.Module:
    """The network. Raises ConfigError if it does not fit the inputs of the data, or has too few outputs."""
    net = instantiate(model, _convert_="all")
    x, _ = datamodule.items("train", 2)
    try:
        found = net.eval()(x).shape[-1]
    except RuntimeError as error:
        raise ConfigError(
            f"the model, {model._target_}, does not take inputs of shape {tuple(x.shape[1:])}: choose another model or "
            f"change its sizes ({str(error).splitlines()[0]})"
        ) from error
    classes = datamodule.num_classes
    if found < outputs or found > outputs and not classes:
        key = "model.num_classes" if "num_classes" in model else "model.sizes"
        wanted = f"{classes} classes" if classes else f"a likelihood that needs {outputs}"
        raise ConfigError(f"the model has {found} outputs for {wanted}: change {key}")
    return net.train()


def build_stack(cfg: DictConfig, net: torch.nn.Module, stack: int) -> bdl.ChainStack:
    """The chains: fresh copies of the network, or copies of saved weights, which become those of the network too.

    Raises ConfigError for a frozen part that would be random, and for what `CheckpointStart.load` refuses.
    """
    start = instantiate(cfg.start) if cfg.get("start") else None
    only: Any = OmegaConf.to_container(OmegaConf.create({"only": cfg.sampler.get("only")}))["only"]  # type: ignore[call-overload]
    saved = isinstance(start, bdl.CheckpointStart)
    if saved:
        start.load(net)
    if only is not None:
        names = [name for name, _ in net.named_parameters()]
        random = matching(names, list(start.skip), "start.skip") if saved and start.skip else set()
        random = sorted((random if saved else set(names)) - matching(names, only, "sampler.only"))
        if random:
            raise ConfigError(
                f"sampler.only={only} would freeze {random[0]} at random values: start=checkpoint start.path=... loads "
                "the weights of the frozen part, all of which the file must hold"
            )
    return bdl.ChainStack(
        net, cfg.chains, only=only, start="given" if saved else "fresh", frozen=cfg.sampler.get("frozen", "eval"),
        seed=cfg.seed, stack=stack, shared=cfg.shared_batches,
    )  # fmt: skip


def build_module(stack: bdl.ChainStack, sampler: DictConfig, loss: DictConfig, compiled: Compile) -> bdl.BayesianModule:
    build_sampler, likelihood = instantiate(sampler, _convert_="all"), instantiate(loss)
    if compiled is True and isinstance(choose_gradient(stack, likelihood, compiled=False), Autograd):
        compile_if_possible(stack)
    return bdl.BayesianModule(stack, build_sampler, loss=likelihood, compile=compiled)


def build_schedule(schedule: DictConfig) -> bdl.Schedule:
    return bdl.Schedule(**{name: instantiate(schedule[name]) for name in ("lr", "temperature", "zeta")})


def build_collector(collect: DictConfig, keep: Any, run_dir: str, target: dict[str, Any]) -> Any:
    options = {str(key): value for key, value in collect.items() if key != "keep"}
    return bdl.CollectSamples(keep, run_dir=run_dir, overwrite=True, target=target, **options)


def build_start(cfg: DictConfig, target: dict[str, Any], verbose: bool) -> bdl.callbacks.EnsembleStart | None:
    """The training of the chains before they are sampled; None unless `start` trains them."""
    if cfg.get("start") is None or cfg.start.get("_target_") == "bdl.CheckpointStart":
        return None

    def report(trained: Trained) -> None:
        loss, members = float(trained.val_loss.mean()), len(trained.val_loss)
        print(f"start: {members} members, {trained.epochs} epochs, mean validation loss {loss:.4g}", flush=True)

    start, show = instantiate(cfg.start), {"progress": partial(WorkProgress, "start"), "report": report}
    return bdl.callbacks.EnsembleStart(start, cfg.run_dir, cfg.stack, target, **(show if verbose else {}))


def law_of(model: DictConfig, data: DictConfig, datamodule: DataModule) -> dict[str, Any]:
    """What target.json records besides the sampler's law: the model, the settings and the identity of the data."""
    of_data: Any = OmegaConf.to_container(data, resolve=True)
    of_data = {key: value for key, value in of_data.items() if key in LAW_OF_DATA} | datamodule.identity()
    return {"model": OmegaConf.to_container(model, resolve=True), "data": of_data}


def check_same_data(datamodule: DataModule, posterior: bdl.Posterior) -> None:
    """Raise ConfigError if the data are no longer those that the posterior was sampled with."""
    recorded = posterior.target.get("data") or {}
    for key, value in datamodule.identity().items():
        if recorded.get(key) != value:
            raise ConfigError(
                f"data.path is no longer the table or folder of this run: its {key} is {value}, and was "
                f"{recorded.get(key)}; restore it"
            )


def build_average(keep: Any, datamodule: DataModule) -> bdl.ModelAverage:
    """The running average of predictions on the validation split, or on the test split where there is none."""
    validation = datamodule.val_dataloader()
    loader = validation or datamodule.test_dataloader()
    return bdl.ModelAverage(keep, loader, name="val" if validation else "test")


def write_config_at_start(write_config: Any) -> L.Callback:
    """Call `write_config(device)` when training starts, in the main process."""
    return LambdaCallback(
        on_train_start=lambda trainer, module: write_config(module.device) if trainer.is_global_zero else None
    )


def build_trainer(
    trainer: DictConfig, logger: DictConfig | None, run_dir: str, callbacks: Callbacks, process: ProcessInfo = SINGLE
) -> L.Trainer:
    """The Trainer of one stack. logger: None for none."""
    silence_lightning(process)
    if not process.is_main:
        callbacks.progress.disable()
    strategy = trainer.get("strategy", "auto")
    independent = strategy == "chains" or strategy != "ddp" and process.world_size > 1
    arguments = (
        dict(
            callbacks=list(callbacks), logger=False if logger is None else build_logger(logger),
            default_root_dir=run_dir, enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
        )
        | (single_device(trainer, process) if independent else {})
    )  # fmt: skip
    settings: Any = OmegaConf.to_container(trainer, resolve=True)
    try:
        return instantiate({key: value for key, value in settings.items() if key not in OURS}, **arguments)
    except InstantiationException as error:
        cause = str(error.__cause__ or error).strip()
        raise ConfigError(
            f"the trainer is not available on this machine: {cause} Choose another, e.g. trainer=cpu"
        ) from error


def silence_lightning(process: ProcessInfo) -> None:
    """Hide Lightning's messages and warnings. One process prints bdl's own."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning.*")
    # This filter must follow: a warning raised from a LightningModule counts as Lightning's.
    warnings.filterwarnings("default" if process.is_main else "ignore", category=BdlWarning)


def build_logger(logger: DictConfig) -> Any:
    """Lightning's logger, or False for none. Raises ConfigError where an extra of bdl is missing."""
    target = logger.get("_target_")
    if not target:
        return False
    if target.endswith("TensorBoardLogger") and not (find_spec("tensorboard") or find_spec("tensorboardX")):
        raise ConfigError("logger=tensorboard needs the package tensorboard: pip install 'bdl[tensorboard]'")
    return instantiate(logger)


def single_device(trainer: DictConfig, process: ProcessInfo) -> dict[str, Any]:
    """Arguments of a Trainer for one of several independent stacks: to Lightning, it is a run on a single device."""
    on_cpu = trainer.accelerator == "cpu" or not torch.cuda.is_available()
    device = process.local_rank // trainer.get("concurrent", 1)
    plugins = LightningEnvironment()
    return {"strategy": "auto", "devices": 1 if on_cpu else [device], "num_nodes": 1, "plugins": plugins}
