"""The baseline of a run: its training goes to a folder of its own, and its draws take the place of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

import bdl
from bdl.baselines.base import FOLDER
from bdl.batch import Reader
from bdl.data.module import DataModule
from bdl.likelihoods import Likelihood
from bdl.run.progress import WorkProgress


def folder_of_training(cfg: DictConfig) -> str:
    """Where the run keeps the states of its chains: under a baseline they are what it is fitted on."""
    return cfg.run_dir if cfg.get("baseline") is None else str(Path(cfg.run_dir) / FOLDER)


def check_baseline(baseline: DictConfig, net: torch.nn.Module, datamodule: DataModule, loss: Any) -> None:
    """Raise ConfigError before the training for a network, a loss or data that do not fit the baseline."""
    inputs, _ = Reader(net)(next(iter(datamodule.slices("train"))))
    likelihood = loss if isinstance(loss, Likelihood) else None
    instantiate(baseline).check(net, inputs, likelihood, datamodule.has("val"))


def fit_baseline(cfg: DictConfig, net: torch.nn.Module, datamodule: DataModule, loss: Any) -> None:
    """Write the draws of the baseline to the run's samples; those of a run that was killed are written anew."""
    likelihood = loss if isinstance(loss, Likelihood) else None
    trained = bdl.Posterior.load(folder_of_training(cfg), net, likelihood=likelihood)
    val = datamodule.slices("val") if datamodule.has("val") else None
    with WorkProgress("drawing") as progress:
        instantiate(cfg.baseline).fit(
            trained, cfg.run_dir, train=datamodule.slices("train"), val=val, seed=cfg.seed, overwrite=True,
            progress=progress,
        )  # fmt: skip
