"""metrics.json, report.html and the summary table of a finished run, and what W&B and TensorBoard show of it."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from PIL import Image

import bdl
from bdl.data.module import DataModule, as_data_module, in_order
from bdl.data.ordered import counts_of
from bdl.display import count_of
from bdl.errors import ConfigError
from bdl.lean import L
from bdl.posterior.calibrated import CalibrationRequest, to_plain
from bdl.posterior.class_evaluation import class_metrics
from bdl.posterior.report.numbers import Summary, calibration_fact, diverged_fact, summarise
from bdl.posterior.report.page import score_table, write_page
from bdl.posterior.report.pictures import Picture, ReportData, pictures_of
from bdl.posterior.report.terminal import print_summary
from bdl.posterior.report.text import Pieces
from bdl.posterior.simple_models import compared
from bdl.posterior.target_values import Units, target_metrics
from bdl.posterior.trained import START
from bdl.posterior.verdict import verdict
from bdl.run.console import WorkProgress
from bdl.run.outcome import Outcome
from bdl.run.plan import Plan
from bdl.run.processes import ProcessInfo
from bdl.run.records import CALIBRATION, METRICS, REFIT, read_metrics, write_json, write_metrics
from bdl.run.stacking import ChainWeights
from bdl.tune.kept import PROMISES, Promised, broken_promises

LabelledData = L.LightningDataModule | Mapping[str, Iterable[Any]] | Iterable[Any] | None
SPLITS = ("test", "train", "val")


@dataclass(frozen=True)
class TargetWords:
    """How a report names the targets of the data."""

    units: Sequence[Units] = ()  # of each target of a regression that standardises them
    pieces: Pieces | None = None  # the text of each token
    class_names: Sequence[str] = ()
    class_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, data: DataModule) -> TargetWords:
        units = [Units(*each) for each in data.target_units or ()]
        return cls(units, data.pieces, data.class_names, data.class_columns)


@dataclass(frozen=True)
class ReportRequest:
    """What a report judges, what it says besides, and who shows it."""

    run: Path  # the folder that gets the files
    posterior: bdl.Posterior
    splits: Mapping[str, Any]  # labelled batches by split
    outcome: Outcome
    facts: Mapping[str, str]  # shown as they are, in this order; `title` becomes the title
    sampler: bdl.Sampler | None = None  # None where it is gone
    ood: Iterable[Any] | None = None
    words: TargetWords = TargetWords()
    loggers: Sequence[Logger] = ()  # show the report too
    promised: Promised | None = None  # by tuning: the report says what the samples do not keep
    calibrate: CalibrationRequest | None = None  # fitted on the validation split, and written to calibration.json
    law: Mapping[str, float] = field(default_factory=dict)  # what `bdl.law.measure.measure_law` says of the samples
    command: str = ""  # the command that makes the run
    seconds: float = math.nan  # of the run
    simple: Mapping[str, torch.Tensor] = field(default_factory=dict)  # losses of simple models on the test rows
    chain_weights: ChainWeights | None = None  # None: uniform, or what the run has stored


def write_report(request: ReportRequest) -> dict[str, float]:
    """Evaluate the posterior on labelled batches by split, write metrics.json and report.html. Returns the metrics."""
    run, outcome, sampler = request.run, request.outcome, request.sampler
    start = load_start([run], request.posterior)
    with WorkProgress("evaluating") as progress:
        summary = summarise(
            request.posterior, request.splits, outcome.trace, request.ood, progress, start, request.calibrate
        )
    summary.command, summary.seconds, summary.folder = request.command, request.seconds, str(run)
    summary.metrics |= {**request.law, **compared(request.simple, summary.evaluations)}
    if request.chain_weights is not None:
        request.chain_weights.add_to(summary, request.posterior)
    summary.metrics |= {"temperature/thermostat": 1.0} if sampler is not None and sampler.dynamics.thermostat else {}
    if request.promised is not None:
        _judge_promises(summary, request.promised)
    rates = outcome.swap_rates
    summary.metrics |= {} if rates is None else {f"swap_rate/{k}": r for k, r in enumerate(rates.tolist())}
    facts = {**request.facts, **_measured_facts(request, summary)}
    rungs = [] if sampler is None or sampler.replicas is None else sampler.replicas.ladder.tolist()
    summary.metrics |= {f"ladder/{k}": factor for k, factor in enumerate(rungs)}
    explain = "" if sampler is None else sampler.explain()
    data = publish(run, request.posterior, summary, facts, request.words, explain, outcome.trace)
    log_report(request.loggers, run / "report.html", data, outcome.steps)
    return summary.metrics


def _judge_promises(summary: Summary, promised: Promised) -> None:
    """Say in the summary, and print, what tuning has promised and the samples do not keep."""
    broken = broken_promises(summary.metrics, promised)
    summary.metrics |= {f"tune/kept/{name}": float(name not in broken) for name in PROMISES}
    summary.warnings += broken.values()
    print(*broken.values(), sep="\n", end="\n" if broken else "")


def _measured_facts(request: ReportRequest, summary: Summary) -> dict[str, str]:
    """What the report says of the samples, after the facts that were known before."""
    posterior, sampler, splits, steps = request.posterior, request.sampler, request.splits, request.outcome.steps
    prior = posterior.target.get("prior") if sampler is None else sampler.prior
    t_eff = summary.metrics["t_eff"]
    return {
        **({"steps": f"{steps:,}"} if steps else {}),
        **facts_of_samples(posterior, summary),
        **({} if math.isnan(t_eff) else {"T_eff": f"{t_eff:.3g}, the mean over directions"}),
        "prior": prior["type"].removeprefix("bdl.") if isinstance(prior, dict) else str(prior),
        **({"train metrics": f"on {counts_of(splits['train'])[-1]:,} items"} if "train" in splits else {}),
    }


def facts_of_samples(posterior: bdl.Posterior, summary: Summary) -> dict[str, str]:
    """What every report says of the samples."""
    moves = summary.metrics.get("temperature/moves")
    return {
        "samples": f"{posterior.samples:,} of {count_of(posterior.chains, 'chain')}",
        **diverged_fact(posterior),
        "T": f"{summary.metrics['temperature']:g}" + ("" if moves is None else f"; the chains move at T = {moves:g}"),
        **({} if posterior.stacking is None else {"weights of chains": posterior.stacking.words}),
    }


def publish(
    folder: Path,
    posterior: bdl.Posterior,
    summary: Summary,
    facts: Mapping[str, str],
    words: TargetWords,
    explain: str = "",
    trace: Mapping[str, torch.Tensor] | None = None,
) -> ReportData:
    """Write report.html and metrics.json into the folder and print the summary. Returns what the report shows."""
    summary.class_names, summary.class_columns = words.class_names, words.class_columns
    facts = {**facts, **calibration_fact(summary)}
    summary.metrics |= target_metrics(summary.evaluations, words.units)
    summary.metrics |= class_metrics(summary.evaluations, words.class_names, words.class_columns)
    if summary.calibration is not None:
        write_json(folder / CALIBRATION, to_plain(summary.calibration))
    page = folder / "report.html"
    data = write_page(page, posterior, summary, facts, explain, trace, words.units, words.pieces)
    summary.metrics |= verdict(summary.metrics).numbers
    write_metrics(folder / METRICS, summary.metrics)
    print(f"report: {page}")
    print_summary(summary.metrics, summary.seconds, summary.class_names, words.units)
    return data


def load_start(runs: Sequence[Path], posterior: bdl.Posterior, skip_bad: bool = False) -> bdl.Posterior | None:
    """The deep ensembles at which the chains of all runs began; None where a run has none."""
    folders = [run / START for run in runs]
    if not all(folder.exists() for folder in folders):
        return None
    start = bdl.Posterior.opened(folders, posterior.net, skip_bad=skip_bad, likelihood=posterior.given_likelihood)
    start.read = posterior.read  # the module that holds the network may say how batches are read
    return start


def log_metrics(trainer: L.Trainer, metrics: dict[str, float], steps: int) -> None:
    """Hand the final metrics to the loggers and close them."""
    for logger in trainer.loggers:
        logger.log_metrics({k: v for k, v in metrics.items() if math.isfinite(v)}, steps)
        logger.finalize("success")
    if any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
        import wandb

        wandb.finish()  # otherwise the next job of a sweep would log into this one's W&B run


def find_splits(data: LabelledData, trainer: L.Trainer | None, train_items: int | None) -> dict[str, Any]:
    """Loaders by split; "test" stands first.

    Args:
        data: a data module, a dict of loaders by split, or one loader, which is then the test split. None means the
            data of the trainer. Where there are no test data, validation data take their place.
        trainer: the one that trained the module; None if it is no longer there.
        train_items: number of training items, evenly spaced; None for all.

    Raises ConfigError where there are neither test nor validation data, and for a split of another name.
    """
    if data is None and trainer is not None:
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        data = datamodule or {"val": trainer.val_dataloaders, "train": trainer.train_dataloader}
    if isinstance(data, L.LightningDataModule):
        module = as_data_module(data)
        loaders = {"test": module.test_dataloader(), "val": module.val_dataloader(), "train": module.train_dataloader()}
        data = {split: loader for split, loader in loaders.items() if loader}
    given = dict(data) if isinstance(data, Mapping) else {"test": data}
    if unknown := sorted(given.keys() - set(SPLITS)):
        raise ConfigError(f"{unknown[0]!r} is no split of the data: name the loaders test, val and train")
    found = {name: loader for name in SPLITS if (loader := given.get(name)) is not None}
    if "test" not in found and "val" not in found:
        raise ConfigError(
            "the report has no test data: pass a loader of labelled batches, a dict such as {'test': loader}, or a "
            "data module with a test_dataloader or a val_dataloader"
        )
    if "test" not in found:
        found = {"test": found.pop("val"), **found}
    train = in_order(found.pop("train", None), train_items)
    return found if train is None else {"test": found.pop("test"), "train": train, **found}


def facts_of(plan: Plan, data: DataModule, process: ProcessInfo) -> dict[str, str]:
    """What the report says of the settings, in the order in which it says it."""
    strategy, stacks = plan.compute.strategy, plan.stacks
    several = strategy != "auto" and process.world_size > 1
    found = plan.found.get("settings", {}).get("sampler.dynamics")
    sampler = plan.choices["sampler"] if found is None else found["_target_"].rpartition(".")[2].lower()
    return {
        "title": f"{plan.name}, seed {plan.seed}",
        "data": data.name or plan.choices["data"],
        **target_fact(data),
        "model": plan.choices["model"],
        "sampler": sampler,
        "schedule": plan.choices["schedule"],
        "N": f"{data.num_data:,}",
        **({} if data.held_out is None else {"held out": data.held_out}),
        **_scores(plan, data),
        "batch": str(data.batch_size) + (" per device" if several and strategy == "ddp" else ""),
        "devices": f"{process.world_size}, {strategy}" if several else "1",
        **({"stacks": f"{stacks.count} of {count_of(stacks.chains, 'chain')}"} if stacks.count > 1 else {}),
    }


def _scores(plan: Plan, data: DataModule) -> dict[str, str]:
    """Whose the scores of the report are, where a run has a refit, is one, or holds no item out."""
    if plan.refit:
        return {"refit": f"{REFIT}/ is sampled from all rows, for predictions; the scores are of this run, without it"}
    if data.has("test") or data.has("val"):
        return {}
    if (run := plan.report.judged) is None:
        return {"scores": "of training items: none is held out"}
    m = read_metrics(run / METRICS)
    judged = ", ".join(f"{n} {m[k]:.4g}" for n in ("rmse", "accuracy", "nll") if (k := f"test/bma/{n}") in m)
    return {"scores": f"of rows that this run has seen; on held-out rows those of {run.name} stand: {judged}"}


def target_fact(data: DataModule) -> dict[str, str]:
    """What a report says of a table's target: its name, its task, what 1 is in the units of the metrics, its values."""
    target = (data.preprocessing() or {}).get("target")
    if target is None:
        return {}
    parts = target.get("parts", [target])  # of several targets, or the only one
    units = {p["name"]: f", standardised: 1 is {p['std']:.4g}" if p.get("std", 1) != 1 else "" for p in parts}
    words = [f"{name} ({target['task']}{unit})" for name, unit in units.items()]
    words += [part["words"] for part in parts if part.get("words")]
    return {"target" if len(parts) == 1 else "targets": "; ".join(words)}


def log_report(loggers: Iterable[Logger], report: Path, data: ReportData, steps: int) -> None:
    """Hand the report to those of the loggers that show pages or pictures.

    report: the HTML file that shows the data.
    """
    shown = [logger for logger in loggers if isinstance(logger, WandbLogger | TensorBoardLogger)]
    pictures = pictures_of(data) if shown else []  # drawn again, as bitmaps: neither of the two shows SVG
    judged = verdict(data.metrics, data.histogram, data.warnings).line
    for logger in shown:
        if isinstance(logger, WandbLogger):
            _to_wandb(logger, report, data, pictures)
            logger.experiment.summary["verdict"] = judged
            continue
        for p in pictures:
            logger.experiment.add_image(f"pictures/{p.title}", np.asarray(_bitmap(p)), steps, dataformats="HWC")
        logger.experiment.add_text("verdict", judged, steps)
        logger.experiment.flush()


def _to_wandb(logger: WandbLogger, report: Path, data: ReportData, pictures: list[Picture]) -> None:
    import wandb

    heading, rows = score_table(data.metrics)
    table: Any = wandb.Table(columns=heading, data=rows)  # type: ignore[arg-type]
    shown = {"report": wandb.Html(report.read_text(), inject=False), "scores": table}
    shown |= {f"pictures/{p.title}": wandb.Image(_bitmap(p), caption=f"{p.lead} {p.caption}".strip()) for p in pictures}
    logger.experiment.log(shown)


def _bitmap(picture: Picture) -> Image.Image:
    """The picture on white."""
    drawn = Image.open(io.BytesIO(picture.png)).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
