"""The numbers of a report: the metrics of metrics.json, the convergence table, warnings, and how scores are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.display import Progress
from bdl.errors import ConfigError
from bdl.posterior.calibrated import Calibration, CalibrationRequest, sentence
from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.diagnostics import ConvergenceRow, convergence_rows, mixing, rhat, trace_error
from bdl.posterior.energy_histogram import EnergyHistogram, weighting_metrics
from bdl.posterior.evaluation import PosteriorEvaluation
from bdl.posterior.judgements import predicts_numbers
from bdl.posterior.ood import detection, named_detection
from bdl.posterior.predict import Posterior
from bdl.posterior.traces import TraceColumns
from bdl.posterior.weights import energy_spreads

AVERAGES = {
    "constant": "a constant",
    "start": "start: deep ensemble",
    "one_sample": "one sample",
    "chain_bma": "one chain's average",
    "bma": "all chains' average",
    "bma_weighted": "all chains' average, importance-weighted",
    "bma_stacked": "all chains' average, stacked",
    "bma_scaled": "all chains' average, temperature-scaled",
}
CLASS_SCORES = {"accuracy": "error %", "nll": "NLL (nats)", "ece": "ECE", "brier": "Brier"}
TOKEN_SCORES = {"accuracy": "error %", "nll": "NLL (nats)", "perplexity": "perplexity", "ece": "ECE"}
VALUE_SCORES = {"rmse": "RMSE", "nll": "NLL (nats)", "crps": "CRPS", "coverage_90": "in 90 % interval"}
_MEASURED = ("kinetic_temperature", "configurational_temperature")  # they scatter from row to row
_CHAIN = ("noise_ratio", "t_eff", *_MEASURED)
_ENERGIES = {"energy_full": "energy, all data (nats)", "energy_batch": "energy, batch estimate (nats)"}
_RANKS = ("worst", "second worst", "third worst")


@dataclass
class Summary:
    """Everything that a report says in numbers and words."""

    metrics: dict[str, float]
    evaluations: dict[str, PosteriorEvaluation]  # by split
    convergence: list[ConvergenceRow]
    warnings: list[str] = field(default_factory=list)
    calibration: Calibration | None = None  # fitted on the split "val"
    class_names: Sequence[str] = ()  # empty where they are not known
    class_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # see `DataModule.class_columns`
    command: str = ""  # that makes the run; empty where it is not known
    folder: str = ""  # of the run; empty for an evaluation
    seconds: float = math.nan  # of the run


def summarise(
    posterior: Posterior,
    loaders: Mapping[str, Iterable[Any]],
    trace: TraceColumns | None = None,
    ood: Iterable[Any] | None = None,
    progress: Progress | None = None,
    start: Posterior | None = None,
    calibrate: CalibrationRequest | None = None,
) -> Summary:
    """Evaluate the posterior.

    Args:
        posterior: its samples are read once for all loaders.
        loaders: labelled batches by split, "test" or "train". R-hat, ESS and the Monte Carlo error come from the first.
        trace: the trace of the chains; without it noise_ratio and all temperatures but T are NaN.
        ood: out-of-distribution items. `ood/...` says how well scores of uncertainty separate them from the first
            split, see `bdl.ood`; `ood/bma/...` is by the average's entropy, `ood/one_sample/auroc` by a sample's.
        progress: called while the samples are evaluated, as `Posterior.evaluate_all` calls it.
        start: the deep ensemble at which the chains began; `test/start/...` are the scores of its average.
        calibrate: what to fit on the split "val" and to score on "test".

    Raises StoreError if a sample cannot be read.
    """
    evaluations = posterior.evaluate_all(
        {**loaders, **({} if ood is None else {"ood": ood})}, progress, ood is not None
    )
    outside = evaluations.pop("ood", None)
    metrics, warnings = without_scores(posterior, evaluations, trace)
    for split, evaluation in evaluations.items():
        metrics |= {f"{split}/{name}": value for name, value in evaluation.metrics().items()}
    first = next(iter(evaluations.values()))
    if isinstance(first, ClassEvaluation) and isinstance(outside, ClassEvaluation):
        metrics |= _detection(first, outside)
    metrics |= {} if start is None else _start(start, loaders, evaluations)
    calibration, of_calibration = (None, {}) if calibrate is None else calibrate.fit(evaluations)
    metrics |= of_calibration
    return Summary(metrics, evaluations, _convergence(posterior, first), warnings, calibration)


def without_scores(
    posterior: Posterior, evaluations: Mapping[str, PosteriorEvaluation], trace: TraceColumns | None = None
) -> tuple[dict[str, float], list[str]]:
    """The metrics but the scores of averages, which take the longest, and warnings: a verdict without test data.

    For the arguments see `summarise`; evaluations: by split.
    """
    first = next(iter(evaluations.values()))
    metrics, warnings = of_chains(posterior, first.quantities, first.features, first.repeat_error(), trace)
    for split, evaluation in evaluations.items():
        metrics[f"{split}/draw/nll"] = -float(evaluation.log_probs.mean())
        seen = evaluations["train"].y if "train" in evaluations and split != "train" else None
        metrics |= {f"{split}/{name}": value for name, value in evaluation.against_constant(seen).items()}
        metrics[f"{split}/items"] = evaluation.items
    return metrics, warnings


def of_chains(
    posterior: Posterior,
    quantities: np.ndarray,
    features: np.ndarray,
    error: Mapping[str, float],
    trace: TraceColumns | None = None,
) -> tuple[dict[str, float], list[str]]:
    """What the verdict reads of the chains, whatever they predict, and warnings.

    quantities, features: (chains, draws, ...), see `mixing`. error: what `repeat_error` says of them.
    """
    metrics: dict[str, float] = {"samples": posterior.samples, "chains": posterior.chains}  # without unreadable files
    metrics |= {"approximation": 1.0} if posterior.target.get("approximation") else {}  # see bdl.contrib.baselines
    metrics |= {"diverged_chains": len(posterior.diverged)} if posterior.diverged else {}
    energies = next(iter(_energy_draws(posterior).values()), None)
    metrics |= {**mixing(quantities, energies, features), **error}
    metrics |= {} if posterior.stacking is None else posterior.stacking.metrics
    metrics |= _temperatures(posterior, trace)
    return metrics, _importance(posterior, metrics)


def calibration_fact(summary: Summary) -> dict[str, str]:
    """What the report says of a calibration; {} without a calibration."""
    return {"calibration": text} if (text := sentence(summary.metrics, summary.class_names)) else {}


def _detection(first: ClassEvaluation, outside: ClassEvaluation) -> dict[str, float]:
    """How well scores tell the items of two evaluations apart; `ood/bma/...` is by the average's entropy."""
    pairs = zip(first.one_sample, outside.one_sample, strict=True)
    one = [detection(*(torch.special.entr(p.double()).sum(1) for p in pair))["auroc"] for pair in pairs]
    by_score = named_detection(first.strangeness, outside.strangeness)
    named = {f"ood/{name.replace('entropy/', 'bma/')}": value for name, value in by_score.items()}
    return {"ood/one_sample/auroc": float(np.mean(one)), **named}


def diverged_fact(posterior: Posterior) -> dict[str, str]:
    """What the report says of the chains that diverged; {} where all are sound."""
    steps = [f"{chain}" if step is None else f"{chain} at step {step:,}" for chain, step in posterior.diverged]
    return {"diverged": f"chain {', '.join(steps)}: all their samples up to there are left out"} if steps else {}


def row_label(row: str, metrics: Mapping[str, float]) -> str:
    """The heading of a row of `AVERAGES`."""
    return f"{AVERAGES[row]} of {metrics['start/members']:.0f}" if row == "start" else AVERAGES[row]


def score_headings(metrics: Mapping[str, float]) -> dict[str, str]:
    """The scores that a table shows, and their headings: for numbers, for tokens of a text, or for classes."""
    if predicts_numbers(metrics):
        return VALUE_SCORES
    return TOKEN_SCORES if any(name.endswith("/perplexity") for name in metrics) else CLASS_SCORES


def shown_score(score: str, value: float) -> str:
    """A score as text: accuracy as the error in %, a coverage in %."""
    if math.isnan(value):
        return "–"
    if score.startswith("coverage"):
        return f"{100 * value:.1f} %"
    digits = 4 if value == 0 else max(4, 1 - math.floor(math.log10(abs(value))))
    return f"{100 * (1 - value):.2f}" if score == "accuracy" else f"{value:.{digits}f}"


def _temperatures(posterior: Posterior, trace: TraceColumns | None) -> dict[str, float]:
    """Configured T and lr of the last sample; means over chains and over the kept part of the run for the rest.

    Where T changes, and where weights lead to a target, a temperature is the last sample's T, or the target's, times
    the mean of the temperature's ratios to T, row by row. `temperature/moves` is then the T of the chains.
    `temperature/change` is the largest T of a sample over the smallest one.
    """
    records = posterior.records
    metrics = {"temperature": float(np.mean(records[-1].temperature)), "lr": float(np.mean(records[-1].lr))}
    if (target := posterior.target_temperature) is not None and posterior.kind == "importance":
        metrics |= {"temperature/moves": metrics["temperature"], "temperature": target}
    of_samples = [float(np.mean(record.temperature)) for record in records]
    metrics["temperature/change"] = max(of_samples) / min(of_samples) if min(of_samples) > 0 else math.nan
    if not trace:
        return metrics | dict.fromkeys((*_CHAIN, *(f"{name}_se" for name in _MEASURED)), math.nan)
    kept = (trace["step"] >= records[0].step) & (trace["temperature"] > 0)
    rows, t = {name: trace[name][kept] for name in _CHAIN}, trace["temperature"][kept]
    if "temperature/moves" in metrics or bool((t != t[:1]).any()):
        rows |= {name: rows[name] * (metrics["temperature"] / t).unsqueeze(-1) for name in ("t_eff", *_MEASURED)}
    metrics |= {name: _weighted_mean(values, trace["lr"][kept]) for name, values in rows.items()}
    metrics |= {f"{name}_se": trace_error(rows[name].numpy()) for name in _MEASURED}
    optional = {name: _weighted_mean(trace[name][kept], trace["lr"][kept]) for name in ("elbo",) if name in trace}
    for name in ("acceptance", "energy_error"):
        if name in trace:  # already a running mean, so the last value counts
            optional[name] = float(trace[name][-1].mean())
    return metrics | {name: value for name, value in optional.items() if not math.isnan(value)}


def _start(
    ensemble: Posterior, loaders: Mapping[str, Iterable[Any]], evaluations: Mapping[str, PosteriorEvaluation]
) -> dict[str, float]:
    """The scores of the average over the members of the ensemble.

    `start/gain_se` is the standard error of the difference between its NLL and the posterior's, item by item.
    """
    metrics: dict[str, float] = {"start/members": ensemble.samples}
    for split, evaluation in ensemble.evaluate_all(loaders).items():
        of_average = {k: v for k, v in evaluation.metrics(["bma"]).items() if k.startswith("bma/")}
        metrics |= {f"{split}/start/{name.removeprefix('bma/')}": value for name, value in of_average.items()}
        gain = evaluation.losses() - evaluations[split].losses()
        metrics[f"{split}/start/gain_se"] = float(gain.std() / math.sqrt(len(gain))) if len(gain) > 1 else math.nan
    return metrics


def _importance(posterior: Posterior, metrics: dict[str, float]) -> list[str]:
    """Add the metrics of importance weights to `metrics`; returns warnings about these weights."""
    spread, error = energy_spreads(posterior.keyed())
    metrics |= {"energy/spread": spread, "energy/batch_error": error}
    if all(r.zeta == 0 for r in posterior.records):
        return []
    histograms = EnergyHistogram.read_all(posterior.stores[0], posterior.records[0].stack)
    metrics |= weighting_metrics(histograms)
    if not histograms and not any(any(record.log_weight or ()) for record in posterior.records):
        metrics |= {"weighting/acted": 0.0, "weight_ess": math.nan}
        return [
            "the weighting never acted: the pilot that finds its bins did not end, because the energies kept drifting, "
            "or T or zeta kept changing; run longer, or give low and high"
        ]
    try:
        weights = posterior.weights("importance")
    except ConfigError as refusal:
        metrics["weight_ess"] = math.nan
        return [str(refusal)]
    biased = math.nan if weights.biased is None else float(weights.biased)
    metrics |= {"weight_ess": weights.ess, "weights_biased": biased}
    return [] if weights.biased is False else [weights.note]


def _convergence(posterior: Posterior, evaluation: PosteriorEvaluation) -> list[ConvergenceRow]:
    """R-hat and ESS of the energies, of the mean log-probability, and of the items with the largest R-hat."""
    log_p = evaluation.log_probs  # (chains, draws, points)
    named = {"mean test log-probability": log_p.mean(-1)}
    values = rhat(log_p)
    if np.isfinite(values).any():
        worst_first = np.argsort(-np.nan_to_num(values, nan=-1))
        for rank, i in zip(_RANKS, worst_first, strict=False):
            named[f"log-probability of a test item, {rank} mixed"] = log_p[..., i]
    return convergence_rows(named | {_ENERGIES[name]: draws for name, draws in _energy_draws(posterior).items()})


def _energy_draws(posterior: Posterior) -> dict[str, np.ndarray]:
    """(chains, draws) the finite energies of the samples, full-data energies before batch energies."""
    draws = {name: posterior.recorded(name) for name in _ENERGIES}
    finite = {name: values[:, np.isfinite(values).all(0)] for name, values in draws.items()}
    return {name: values for name, values in finite.items() if values.shape[1]}


def _weighted_mean(values: Tensor, lr: Tensor) -> float:
    """Mean of the finite values (n, C), weighted by lr (n,): the variance of injected noise is proportional to lr."""
    weight = lr.unsqueeze(-1) * values.isfinite()
    return float((weight * values.nan_to_num()).sum() / weight.sum()) if bool((weight > 0).any()) else math.nan
