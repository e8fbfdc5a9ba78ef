"""The baseline of a run: its training goes to a folder of its own, and its draws take the place of samples."""

from __future__ import annotations

from pathlib import Path

import torch

import bdl
from bdl.baselines.base import FOLDER, Baseline
from bdl.batch import Reader
from bdl.data.module import DataModule
from bdl.likelihoods import Likelihood, Loss
from bdl.run.progress import WorkProgress
from bdl.run.recipe import Recipe


def folder_of_training(run: Path, baseline: Recipe[Baseline] | None) -> Path:
    """Where the run keeps the states of its chains: under a baseline they are what it is fitted on."""
    return run if baseline is None else run / FOLDER


def check_baseline(baseline: Recipe[Baseline], net: torch.nn.Module, data: DataModule, loss: Loss) -> None:
    """Raise ConfigError before the training for a network, a loss or data that do not fit the baseline."""
    inputs, _ = Reader(net)(next(iter(data.slices("train"))))
    baseline.build().check(net, inputs, loss if isinstance(loss, Likelihood) else None, data.has("val"))


def fit_baseline(baseline: Baseline, run: Path, net: torch.nn.Module, data: DataModule, loss: Loss, seed: int) -> None:
    """Write the draws of the baseline to the run's samples; those of a run that was killed are written anew."""
    trained = bdl.Posterior.load(run / FOLDER, net, likelihood=loss if isinstance(loss, Likelihood) else None)
    val = data.slices("val") if data.has("val") else None
    with WorkProgress("drawing") as progress:
        baseline.fit(
            trained, run, train=data.slices("train"), val=val, seed=seed, overwrite=True, progress=progress
        )  # fmt: skip
