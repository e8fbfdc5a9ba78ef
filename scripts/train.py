"""Samples the posterior of a network, keeps the samples, evaluates them and writes a report: see conf/train.yaml."""

from __future__ import annotations

import logging
import math
import os
import resource
import sys
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
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import WandbLogger
from omegaconf import DictConfig, OmegaConf

import bdl
from bdl.config import identity, register_resolvers, run_name
from bdl.errors import BdlWarning, ConfigError, one_line_errors
from bdl.lightning.compiling import compile_if_possible
from bdl.posterior.present import print_summary, write_page
from bdl.posterior.summary import summarise
from bdl.rundir import RunDirectory, write_json, write_metrics

register_resolvers()

LAW_OF_DATA = ("_target_", "classes", "augment", "val_fraction", "split_seed", "fold")


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(cfg: DictConfig) -> None:
    with one_line_errors():  # here, or Hydra adds a line of its own
        run(cfg)


class Data(Protocol):
    """What train.py asks of a data module, besides Lightning's own methods."""

    num_data: int
    num_classes: int

    def slices(self, split: str) -> Any: ...

    def train_dataloader(self) -> Any: ...

    def val_dataloader(self) -> Any: ...

    def test_dataloader(self) -> Any: ...


def run(cfg: DictConfig) -> None:
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(f"{missing[0]} has no value: choose a configuration that gives one, or set it")
    torch.set_num_threads(cfg.threads or os.cpu_count() or 1)
    torch.set_float32_matmul_precision("high" if cfg.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = cfg.tf32  # on by default, unlike that of matrix products
    L.seed_everything(cfg.seed, verbose=False)
    directory = RunDirectory(cfg.run_dir, cfg)
    if directory.metrics is not None:
        print(f"{directory.path} holds this run already, complete; another seed or hydra.run.dir makes a new one")
        print_summary(directory.metrics)
        return
    started = time.perf_counter()
    datamodule = instantiate(cfg.data, **({"chains": None} if cfg.shared_batches else {}))
    complete(cfg, datamodule)
    module, net = build_module(cfg, datamodule)
    callbacks = build_callbacks(cfg, datamodule, directory)
    trainer = build_trainer(cfg, callbacks)
    for logger in trainer.loggers:
        logger.log_hyperparams(identity(cfg))
    if directory.checkpoint is not None:
        print(f"going on from {directory.checkpoint}")
    trainer.fit(module, datamodule, ckpt_path=directory.checkpoint, weights_only=True)
    exit_if_interrupted(callbacks.save)
    if module.sampler.steps < cfg.steps:
        print(f"stopped at step {module.sampler.steps} of {cfg.steps}; the same command goes on")
        return
    sampled = time.perf_counter() - started
    net.to(trainer.strategy.root_device)
    metrics = evaluate(cfg, directory, module, net, datamodule, callbacks.monitor.trace())
    for logger in trainer.loggers:
        logger.log_metrics({k: v for k, v in metrics.items() if math.isfinite(v)}, module.sampler.steps)
        logger.finalize("success")
    close_loggers(trainer)
    write_timing(directory, module.sampler.steps, sampled, time.perf_counter() - started)


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
    if cfg.chains < 1:
        raise ConfigError(f"chains must be at least 1, got {cfg.chains}")


def build_module(cfg: DictConfig, datamodule: Data) -> tuple[bdl.BayesianModule, torch.nn.Module]:
    """The module that is sampled, and one plain copy of the network for the posterior."""
    net = instantiate(cfg.model, _convert_="all")
    x, y = next(iter(datamodule.slices("test")))
    try:
        classes = net.eval()(x[:2]).shape[-1]
    except RuntimeError as error:
        raise ConfigError(
            f"the model does not take inputs of shape {tuple(x.shape[1:])}: {str(error).splitlines()[0]}"
        ) from error
    if datamodule.num_classes > classes:
        raise ConfigError(f"the model has {classes} outputs for {datamodule.num_classes} classes: change model.sizes")
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
    save: bdl.SaveLast

    def all(self) -> list[L.Callback]:
        return [getattr(self, f.name) for f in fields(self)]


def build_callbacks(cfg: DictConfig, datamodule: Data, directory: RunDirectory) -> Callbacks:
    keep = instantiate(cfg.collect.keep)
    val = datamodule.val_dataloader()
    options = {k: v for k, v in cfg.collect.items() if k != "keep"}
    data: Any = OmegaConf.to_container(cfg.data, resolve=True)
    data = {k: v for k, v in data.items() if k in LAW_OF_DATA}
    target = {"model": OmegaConf.to_container(cfg.model, resolve=True), "data": data}
    return Callbacks(
        bdl.Schedule(**{name: instantiate(cfg.schedule[name]) for name in ("lr", "temperature", "zeta")}),
        bdl.CollectSamples(keep, run_dir=cfg.run_dir, overwrite=True, target=target, **options),
        bdl.ModelAverage(keep, val or datamodule.test_dataloader(), name="val" if val else "test"),
        bdl.Monitor(cfg.monitor_every),
        LambdaCallback(on_train_start=lambda *_: directory.write_config()),
        bdl.callbacks.StepProgress(),
        bdl.SaveLast(Path(cfg.run_dir) / "checkpoints", every=cfg.checkpoint_every),
    )


def build_trainer(cfg: DictConfig, callbacks: Callbacks) -> L.Trainer:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning.*")
    warnings.filterwarnings("default", category=BdlWarning)  # raised from a LightningModule, it is ours all the same
    logger = instantiate(cfg.logger) if cfg.logger.get("_target_") else False
    arguments = dict(
        callbacks=callbacks.all(), logger=logger, default_root_dir=cfg.run_dir,
        enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
    )  # fmt: skip
    try:
        return instantiate(cfg.trainer, **arguments)
    except InstantiationException as error:
        cause = str(error.__cause__ or error).strip()
        raise ConfigError(f"the trainer can't be had here: {cause} Choose another, trainer=cpu say") from error


def exit_if_interrupted(save: bdl.SaveLast) -> None:
    if save.signum is not None:
        print(f"bdl: stopped by signal {save.signum}; the same command goes on from {save.path}", file=sys.stderr)
        sys.exit(128 + save.signum)


def evaluate(
    cfg: DictConfig,
    run: RunDirectory,
    module: bdl.BayesianModule,
    net: torch.nn.Module,
    datamodule: Data,
    trace: dict[str, torch.Tensor],
) -> dict[str, float]:
    """metrics.json, report.html and the summary table, from the samples on disk."""
    posterior = bdl.Posterior.load(run.path, net)
    loaders = {split: datamodule.slices(split).to(next(net.parameters()).device) for split in ("test", "train")}
    ood = getattr(datamodule, "ood", lambda: None)()  # of images
    summary = summarise(posterior, loaders, trace, ood=ood)
    rates = module.sampler.swap_rates
    summary.metrics |= {} if rates is None else {f"swap_rate/{k}": r for k, r in enumerate(rates.tolist())}
    choices = HydraConfig.get().runtime.choices
    facts = {
        "title": f"{run_name(choices)}, seed {cfg.seed}",
        **{k: str(choices[k]) for k in ("data", "model", "sampler", "schedule")},
        "N": f"{datamodule.num_data:,}",
        "batch": str(getattr(datamodule, "batch_size", cfg.data.batch_size)),
        "steps": f"{module.sampler.steps:,}",
        "samples": f"{posterior.samples:,} of {posterior.chains} chains",
        "T": f"{summary.metrics['temperature']:g}",
        "T_eff": f"{summary.metrics['t_eff']:.3g}",
        "prior": str(module.sampler.prior),
    }
    write_page(run.path / "report.html", posterior, summary, facts, module.sampler.explain(), trace)
    write_metrics(run.path / "metrics.json", summary.metrics)
    print_summary(summary.metrics)
    print(f"report: {run.path / 'report.html'}")
    return summary.metrics


def close_loggers(trainer: L.Trainer) -> None:
    """Without it the next job of a sweep would log into this one's W&B run."""
    if any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
        import wandb

        wandb.finish()


def write_timing(run: RunDirectory, steps: int, sampling: float, total: float) -> None:
    """Apart from metrics.json, which is reproducible to the bit. Memory is the peak of this process, in MiB."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
    timing = {
        "seconds": total,
        "seconds_sampling": sampling,
        "steps_per_second": steps / sampling,
        "peak_memory_mib": memory,
    }
    write_json(run.path / "timing.json", timing)


if __name__ == "__main__":
    with one_line_errors():
        main()
