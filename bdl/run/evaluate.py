"""One posterior from the samples of one or several runs: metrics, report, summary. See conf/evaluate.yaml."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

import bdl
from bdl.data.module import DataModule, as_data_module
from bdl.disk.files import write_atomically
from bdl.display import count_of
from bdl.errors import BdlWarning, ConfigError
from bdl.posterior.calibrated import CalibrationRequest
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.metrics import agreement, read_probabilities
from bdl.posterior.ood import detection
from bdl.posterior.report.numbers import Summary, summarise
from bdl.run.config import plain
from bdl.run.console import WorkProgress
from bdl.run.directory import output_folder, refuse_links_of
from bdl.run.records import EVALUATION, METRICS, folders_of, read_metrics
from bdl.run.section import Section, check_calibration
from bdl.run.stacking import stack_chains, take_back
from bdl.run.stored import load_runs
from bdl.run.write_report import TargetWords, facts_of_samples, load_start, publish

OF_LAW = ("temperature/direction", "temperature/thermostat", "energy/along", "energy/gaussian", "energy/continuation")


def evaluate(cfg: DictConfig) -> None:
    """Merge the runs, evaluate their samples, write metrics.json and report.html."""
    runs = folders_of(cfg.runs)
    if not runs:
        raise ConfigError("runs is empty: runs=[outputs/a,outputs/b] names at least one run directory")
    out = output_folder(cfg.out or None, runs[0] / EVALUATION, "the scores and the report")
    for run in runs:
        refuse_links_of(run)
    posterior, config = load_runs(runs, cfg.trust, cfg.device, cfg.skip_bad)
    data = recorded_data(config, posterior)
    warn_of_other_rows(config, data)
    if cfg.weights is not None:
        stacking = stack_chains(posterior, data) if cfg.weights == "stacking" else take_back(posterior)
        print("weights of the chains:", "uniform" if stacking is None else stacking.words)
    start = load_start(runs, posterior, cfg.skip_bad)
    calibrate = CalibrationRequest.of(plain(cfg.get("calibrate")))
    splits, shifts = list(cfg.splits), [bdl.data.Shift(name, cfg.severity) for name in cfg.shifts]
    if calibrate is not None:
        check_calibration(calibrate, posterior.likelihood, data)
        calibrate = calibrate.on(data.groups)
        splits = list(dict.fromkeys(["test", *splits, "val"]))
    loaders = {split: data.slices(split, cfg.train_items if split == "train" else None) for split in splits}
    with WorkProgress("evaluating") as progress:
        shifted = {f"shift/{shift.name}": shift.of(data.slices("test")) for shift in shifts}
        summary = summarise(posterior, loaders, ood=data.ood(), progress=progress, start=start, calibrate=calibrate)
    summary.metrics |= chain_temperatures(runs) | scores_under_shifts(posterior, summary, shifted)
    if "test" in summary.evaluations:
        compare_with_reference(summary, cfg.reference, out / "probs-test.npy" if cfg.save_probs else None)
    facts = {
        "title": f"{count_of(len(runs), 'run')}, merged" if len(runs) > 1 else runs[0].name,
        "runs": ", ".join(str(run) for run in runs),
        "N": f"{data.num_data:,}",
        **facts_of_samples(posterior, summary),
    }
    publish(out, posterior, summary, facts, TargetWords.of(data))


def recorded_data(config: DictConfig, posterior: bdl.Posterior) -> DataModule:
    """The data of a run. Raises ConfigError if they are no longer those that the posterior was sampled with."""
    section: Section[DataModule] = Section.of(config.data)
    if section.target.startswith("bdl.data."):  # a table with fewer rows than a batch has changed it
        section = section.having(batch_size=None)
    data = as_data_module(section.build())
    recorded = posterior.target.get("data") or {}
    for key, value in data.identity().items():
        if recorded.get(key) != value:
            raise ConfigError(
                f"data.path is no longer the table or folder of this run: its {key} is {value}, and was "
                f"{recorded.get(key)}; restore it"
            )
    return data


def warn_of_other_rows(config: DictConfig, data: DataModule) -> None:
    """Warn of held-out items or labels that are not those with which the run began."""
    recorded = OmegaConf.select(config, "provenance.rows") or {}
    if other := [split for split, now in data.checksums().items() if recorded.get(split, now) != now]:
        warnings.warn(
            f"the {' and '.join(other)} items or their labels are not those of the run: its data have changed since it "
            "was sampled, and these scores are not to be compared with those of its report", BdlWarning, 2,
        )  # fmt: skip


def scores_under_shifts(
    posterior: bdl.Posterior, summary: Summary, shifted: Mapping[str, Iterable[Any]]
) -> dict[str, float]:
    """`shift/<name>/...`: scores of the average on each loader; auroc says how well entropy tells it from the test set.

    Raises ConfigError without test items of classes.
    """
    if not shifted:
        return {}
    test = summary.evaluations.get("test")
    if not isinstance(test, ClassEvaluation):
        raise ConfigError("shifts= compares with the test set of a run that predicts classes: keep test in splits")
    found = {}
    for name, loader in shifted.items():
        evaluation = posterior.evaluate(loader)
        assert isinstance(evaluation, ClassEvaluation)  # the same network and likelihood
        entropies = [torch.special.entr(each.bma.double()).sum(1) for each in (test, evaluation)]
        scores = {**evaluation.scores(evaluation.bma), "auroc": detection(*entropies)["auroc"]}
        found |= {f"{name}/{score}": value for score, value in scores.items()}
        print(
            f"{name}: accuracy {{accuracy:.4f}}, NLL {{nll:.4f}}, ECE {{ece:.4f}}, AUROC {{auroc:.3f}}".format(**scores)
        )
    return found


def compare_with_reference(summary: Summary, reference: str | None, save: Path | None) -> None:
    """Compare the probabilities of the test items with those in the file `reference`; write them to the file `save`."""
    test = summary.evaluations["test"]
    if not isinstance(test, ClassEvaluation):
        if reference is not None or save is not None:
            raise ConfigError("reference= and save_probs= are about class probabilities, and this run predicts numbers")
        return
    probs = test.bma
    if reference is not None:
        scores = agreement(probs, read_probabilities(reference))
        summary.metrics |= {f"test/bma/{name}": value for name, value in scores.items()}
        print("{agreement:.2%} agreement with the reference, total variation {total_variation:.4f}".format(**scores))
    if save is not None:
        content = io.BytesIO()
        np.save(content, probs.numpy())
        write_atomically(save, content.getvalue())


def chain_temperatures(runs: Sequence[Path]) -> dict[str, float]:
    """What the finished runs measured of temperatures and energies: means over runs, and the extremes of directions."""
    finished = [read_metrics(run / METRICS) for run in runs if (run / METRICS).exists()]
    measured = ("kinetic_temperature", "configurational_temperature")
    names = ("noise_ratio", "t_eff", *measured, *(f"{name}_se" for name in measured))
    means = {name: float(np.mean([m.get(name, math.nan) for m in finished])) for name in names} if finished else {}
    return means | (_of_law(finished) if finished else {})


def _of_law(finished: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The metrics of `bdl.law.measure` that all runs have. The hottest direction is that of the hottest run."""
    known = [{k: v for k, v in m.items() if k.startswith(OF_LAW) and v is not None} for m in finished]
    shared = [k for k in known[0] if all(k in m for m in known)]
    found = {k: float(np.mean([m[k] for m in known])) for k in shared}
    found |= {k: math.hypot(*(m[k] for m in known)) / len(known) for k in shared if k.endswith("_se")}
    for name, extreme in (("hottest", max), ("coldest", min)):
        key = f"temperature/directions/{name}"
        if key in shared:
            run = extreme(known, key=lambda m: m[key])
            found |= {k: run[k] for k in (key, f"{key}_se")}
    return found
