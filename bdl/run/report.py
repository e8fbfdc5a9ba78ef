"""metrics.json, report.html and the summary table of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import bdl
from bdl.likelihoods import Likelihood
from bdl.posterior.report.numbers import Summary, summarise
from bdl.posterior.report.page import write_page
from bdl.posterior.report.terminal import print_summary
from bdl.posterior.report.values import Units
from bdl.posterior.verdict import verdict
from bdl.run.directory import write_metrics
from bdl.run.progress import WorkProgress


@dataclass(frozen=True)
class Outcome:
    """The steps that sampling has done, and the series recorded on the way."""

    steps: int
    trace: dict[str, torch.Tensor]
    swap_rates: torch.Tensor | None


def report(
    run: Path,
    net: torch.nn.Module,
    datamodule: Any,
    sampler: bdl.Sampler,
    outcome: Outcome,
    facts: Mapping[str, str],
    train_items: int | None,
    loss: Any = None,
) -> dict[str, float]:
    """Evaluate the samples on disk, write metrics.json and report.html into `run`. Returns the metrics.

    loss: of the run. A likelihood of the user's own has no other way to here.
    """
    posterior = bdl.Posterior.load(run, net, likelihood=loss if isinstance(loss, Likelihood) else None)
    loaders = {"test": datamodule.slices("test"), "train": datamodule.slices("train", train_items)}
    if datamodule.val_dataloader():
        loaders["val"] = datamodule.slices("val")
    with WorkProgress("evaluating") as progress:
        summary = summarise(posterior, loaders, outcome.trace, out_of_distribution(datamodule), progress)
    rates = outcome.swap_rates
    summary.metrics |= {} if rates is None else {f"swap_rate/{k}": r for k, r in enumerate(rates.tolist())}
    measured = {
        "steps": f"{outcome.steps:,}",
        "samples": f"{posterior.samples:,} of {posterior.chains} chains",
        "T": f"{summary.metrics['temperature']:g}",
        "T_eff": f"{summary.metrics['t_eff']:.3g}",
        "prior": str(sampler.prior),
        "train metrics": f"on {len(loaders['train'].dataset):,} items",
    }
    publish(run, posterior, summary, {**facts, **measured}, sampler.explain(), outcome.trace, units_of(datamodule))
    return summary.metrics


def publish(
    folder: Path,
    posterior: bdl.Posterior,
    summary: Summary,
    facts: Mapping[str, str],
    explain: str = "",
    trace: Mapping[str, torch.Tensor] | None = None,
    units: Units | None = None,
) -> None:
    """Write report.html and metrics.json into the folder and print the summary."""
    write_page(folder / "report.html", posterior, summary, facts, explain, trace, units)
    summary.metrics |= verdict(summary.metrics).numbers
    write_metrics(folder / "metrics.json", summary.metrics)
    print(f"report: {folder / 'report.html'}")
    print_summary(summary.metrics)


def units_of(datamodule: Any) -> Units | None:
    """Name and units of the target, for data modules that standardise it: `target_units`, (name, shift, scale)."""
    units = getattr(datamodule, "target_units", None)
    return None if units is None else Units(*units)


def out_of_distribution(datamodule: Any) -> Any:
    """A loader of items from another distribution, for data modules that have one."""
    return getattr(datamodule, "ood", lambda: None)()
