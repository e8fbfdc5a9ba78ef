"""metrics.json, report.html and the summary table of a finished run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger, WandbLogger

import bdl
from bdl.data.module import DataModule
from bdl.lightning.callbacks.start import FOLDER
from bdl.likelihoods import Likelihood
from bdl.posterior.report.numbers import Summary, diverged_fact, summarise
from bdl.posterior.report.page import write_page
from bdl.posterior.report.pictures import ReportData
from bdl.posterior.report.terminal import print_summary
from bdl.posterior.report.values import Units
from bdl.posterior.verdict import verdict
from bdl.run.dashboards import log_report
from bdl.run.progress import WorkProgress
from bdl.run.records import write_metrics


@dataclass(frozen=True)
class Outcome:
    """The steps that sampling has done, and the series recorded on the way."""

    steps: int
    trace: dict[str, torch.Tensor]
    swap_rates: torch.Tensor | None


def report_run(
    run: Path,
    net: torch.nn.Module,
    datamodule: DataModule,
    sampler: bdl.Sampler,
    outcome: Outcome,
    facts: Mapping[str, str],
    train_items: int | None,
    loss: Any = None,
    loggers: Sequence[Logger] = (),
) -> dict[str, float]:
    """Evaluate the samples on disk, write metrics.json and report.html into `run`. Returns the metrics.

    loss: of the run. A likelihood of the user's own has no other way to here. loggers: show the report too.
    """
    likelihood = loss if isinstance(loss, Likelihood) else None
    posterior, start = bdl.Posterior.load(run, net, likelihood=likelihood), load_start([run], net, likelihood)
    loaders = loaders_of(datamodule, train_items)
    ood, units = datamodule.ood(), units_of(datamodule)
    return write_report(run, posterior, loaders, outcome, facts, sampler, ood, units, start, loggers)


def write_report(
    run: Path,
    posterior: bdl.Posterior,
    loaders: Mapping[str, Any],
    outcome: Outcome,
    facts: Mapping[str, str],
    sampler: bdl.Sampler | None = None,
    ood: Any = None,
    units: Units | None = None,
    start: bdl.Posterior | None = None,
    loggers: Sequence[Logger] = (),
) -> dict[str, float]:
    """Evaluate the posterior on labelled batches by split, write metrics.json and report.html. Returns the metrics.

    sampler: of the run; None where it is no longer there. start: the deep ensemble at which its chains began.
    """
    with WorkProgress("evaluating") as progress:
        summary = summarise(posterior, loaders, outcome.trace, ood, progress, start)
    rates = outcome.swap_rates
    summary.metrics |= {} if rates is None else {f"swap_rate/{k}": r for k, r in enumerate(rates.tolist())}
    prior = posterior.target.get("prior") if sampler is None else sampler.prior
    measured = {
        **({"steps": f"{outcome.steps:,}"} if outcome.steps else {}),
        "samples": f"{posterior.samples:,} of {posterior.chains} chains",
        **diverged_fact(posterior),
        "T": f"{summary.metrics['temperature']:g}",
        **({} if math.isnan(summary.metrics["t_eff"]) else {"T_eff": f"{summary.metrics['t_eff']:.3g}"}),
        "prior": prior["type"].removeprefix("bdl.") if isinstance(prior, dict) else str(prior),
        **({"train metrics": f"on {len(loaders['train'].dataset):,} items"} if "train" in loaders else {}),
    }
    explain = "" if sampler is None else sampler.explain()
    data = publish(run, posterior, summary, {**facts, **measured}, explain, outcome.trace, units)
    log_report(loggers, run / "report.html", data, outcome.steps)
    return summary.metrics


def loaders_of(datamodule: DataModule, train_items: int | None) -> dict[str, Any]:
    """The splits of a data module, in a fixed order. Validation data stand in for test data that are not there."""
    val = {"val": datamodule.slices("val")} if datamodule.has("val") else {}
    test = val.pop("val") if val and not datamodule.has("test") else datamodule.slices("test")
    return {"test": test, "train": datamodule.slices("train", train_items), **val}


def publish(
    folder: Path,
    posterior: bdl.Posterior,
    summary: Summary,
    facts: Mapping[str, str],
    explain: str = "",
    trace: Mapping[str, torch.Tensor] | None = None,
    units: Units | None = None,
) -> ReportData:
    """Write report.html and metrics.json into the folder and print the summary. Returns what the report shows."""
    data = write_page(folder / "report.html", posterior, summary, facts, explain, trace, units)
    summary.metrics |= verdict(summary.metrics).numbers
    write_metrics(folder / "metrics.json", summary.metrics)
    print(f"report: {folder / 'report.html'}")
    print_summary(summary.metrics)
    return data


def load_start(
    runs: Sequence[Path], net: torch.nn.Module, likelihood: Likelihood | None, skip_bad: bool = False
) -> bdl.Posterior | None:
    """The deep ensembles at which the chains of all runs began; None where a run has none."""
    folders = [run / FOLDER for run in runs]
    if not all(folder.exists() for folder in folders):
        return None
    return bdl.Posterior.load(folders, net, skip_bad=skip_bad, likelihood=likelihood)


def log_metrics(trainer: L.Trainer, metrics: dict[str, float], steps: int) -> None:
    """Hand the final metrics to the loggers and close them."""
    for logger in trainer.loggers:
        logger.log_metrics({k: v for k, v in metrics.items() if math.isfinite(v)}, steps)
        logger.finalize("success")
    if any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
        import wandb

        wandb.finish()  # otherwise the next job of a sweep would log into this one's W&B run


def units_of(datamodule: DataModule) -> Units | None:
    """Name and units of the target of a regression that standardises it."""
    return None if datamodule.target_units is None else Units(*datamodule.target_units)
