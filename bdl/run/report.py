"""`bdl.report` and the callback `bdl.Report`: the report of a run of any Trainer, or of any loop that left samples."""

from __future__ import annotations

from pathlib import Path

import lightning as L
import torch
from torch import nn

import bdl
from bdl.data.module import DataModule
from bdl.errors import ConfigError
from bdl.lightning.blocks import StepCallback
from bdl.lightning.host import find_sampler
from bdl.likelihoods import Likelihood, likelihood_of
from bdl.posterior.report.numbers import side_by_side
from bdl.run.directory import read_traces, write_trace
from bdl.run.law import own_likelihood
from bdl.run.write_report import LabelledData, Outcome, find_splits, units_of, write_report


def report(
    run_dir: str | Path,
    module: nn.Module,
    data: LabelledData = None,
    *,
    likelihood: Likelihood | None = None,
    train_items: int | None = None,
) -> dict[str, float]:
    """Evaluate the samples of a run; write its metrics.json and report.html and print a summary. Returns the metrics.

    It is the report of `train.py`. Temperatures come from the run's `Monitor`: of the Trainer that the module still
    belongs to, or as `bdl.Report` has left them in the folder; otherwise they are unknown, and the report says so.

    Args:
        run_dir: the folder that `CollectSamples` or `SampleStore.append` wrote to.
        module: the network that was sampled, or the module that holds it.
        data: a data module, a loader of labelled test batches, or a dict of loaders named test, val and train. None
            takes those of the module's Trainer. Validation data stand in for test data that are not there.
        likelihood: what the outputs mean, where the run's loss does not say so.
        train_items: number of training items, evenly spaced, for the training metrics; None for all.

    Raises StoreError for a folder without samples, or with those of another network; ConfigError without test data.
    """
    run, trainer = Path(run_dir), _trainer_of(module)
    likelihood = likelihood or own_likelihood(getattr(module, "loss", None))
    posterior = bdl.Posterior.load(run, module, likelihood=likelihood)
    splits = find_splits(data, trainer, train_items)
    sampler = None if trainer is None else find_sampler(trainer)
    outcome = _outcome(run, posterior, trainer, sampler)
    datamodule = data if isinstance(data, L.LightningDataModule) or trainer is None else trainer.datamodule  # type: ignore[attr-defined]
    facts = _facts(run, module, posterior, sampler)
    units = units_of(datamodule) if isinstance(datamodule, DataModule) else None
    loggers = [] if trainer is None else trainer.loggers
    return write_report(run, posterior, splits, outcome, facts, sampler, units=units, loggers=loggers)


class Report(StepCallback):
    """Writes `bdl.report` into the folder of `CollectSamples` when `fit` ends, unless a signal ended it.

    Args:
        data, likelihood, train_items: see `bdl.report`.

    Raises ConfigError at the start of training without a `CollectSamples`, or if neither the module's `loss` nor
    `likelihood` says what the outputs mean.
    """

    def __init__(
        self, data: LabelledData = None, *, likelihood: Likelihood | None = None, train_items: int | None = None
    ):
        self.data, self.likelihood, self.train_items = data, likelihood, train_items
        self.metrics: dict[str, float] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._folder(trainer)
        loss = getattr(pl_module, "loss", None)
        if self.likelihood is None and likelihood_of(loss) is None:
            raise ConfigError(
                f"bdl.Report does not know what the outputs of {type(pl_module).__name__} mean: pass likelihood=, such "
                "as bdl.CategoricalNLL() for classes, bdl.BernoulliNLL() for labels or bdl.HeteroscedasticNLL() for "
                "numbers"
            )

    def must_see(self, step: int) -> bool:
        return False

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        stopped = any(isinstance(c, bdl.SaveLast) and c.signum is not None for c in trainer.callbacks)  # type: ignore[attr-defined]
        if stopped or not trainer.is_global_zero:
            return
        run = self._folder(trainer)
        write_trace(run, find_sampler(trainer).stack, _trace(trainer))
        self.metrics = report(run, pl_module, self.data, likelihood=self.likelihood, train_items=self.train_items)
        for logger in trainer.loggers:
            logger.log_metrics({k: v for k, v in self.metrics.items() if v == v}, find_sampler(trainer).steps)

    def _folder(self, trainer: L.Trainer) -> Path:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, bdl.CollectSamples):
                return Path(callback.run_dir or trainer.default_root_dir)
        raise ConfigError("bdl.Report needs samples: add bdl.CollectSamples(keep) to the Trainer's callbacks")


def _trainer_of(module: nn.Module) -> L.Trainer | None:
    """The Trainer that the module belongs to, None if there is none or it never trained."""
    try:
        trainer = module.trainer if isinstance(module, L.LightningModule) else None
    except RuntimeError:  # Lightning's answer of a module without one
        return None
    return trainer if trainer is not None and trainer.optimizers else None


def _trace(trainer: L.Trainer) -> dict[str, torch.Tensor]:
    monitors = [c for c in trainer.callbacks if isinstance(c, bdl.Monitor)]  # type: ignore[attr-defined]
    return monitors[0].trace() if monitors else {}


def _outcome(run: Path, posterior: bdl.Posterior, trainer: L.Trainer | None, sampler: bdl.Sampler | None) -> Outcome:
    if trainer is not None and sampler is not None:
        return Outcome(sampler.steps, _trace(trainer), sampler.swap_rates)
    traces = read_traces(run, sorted({r.stack for r in posterior.records}))
    return Outcome(posterior.records[-1].step, side_by_side(traces) if traces else {}, None)


def _facts(run: Path, module: nn.Module, posterior: bdl.Posterior, sampler: bdl.Sampler | None) -> dict[str, str]:
    facts = {"title": run.name, "module": type(module).__name__, "network": type(posterior.net).__name__}
    if sampler is not None:
        facts["sampler"] = type(sampler.dynamics).__name__
    return {**facts, "N": f"{posterior.target['num_data']:,}"}
