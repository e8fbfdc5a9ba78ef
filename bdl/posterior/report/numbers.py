"""The numbers of a posterior: metrics.json, and what a reader should be warned of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl.errors import ConfigError
from bdl.posterior.diagnostics import Row, ess, rhat, summary
from bdl.posterior.evaluation import Evaluation
from bdl.posterior.metrics import ood_auroc
from bdl.posterior.predict import Posterior
from bdl.posterior.weights import energy_spreads

Trace = Mapping[str, Tensor]  # of the chain, as Monitor has it: step (n,), the rest (n,) or (n, C)
_CHAIN = ("noise_ratio", "t_eff", "kinetic_temperature")


@dataclass
class Summary:
    """Everything a report says."""

    metrics: dict[str, float]
    evaluations: dict[str, Evaluation]  # by split
    convergence: list[Row]
    warnings: list[str] = field(default_factory=list)


def summarise(
    posterior: Posterior,
    loaders: Mapping[str, Iterable[Any]],
    trace: Trace | None = None,
    ood: Iterable[Any] | None = None,
) -> Summary:
    """Evaluate the posterior on labelled loaders by split name ("test", "train"); the first gives the convergence.

    ood: items from elsewhere, told from those of the first loader by their entropy: `ood/bma/auroc`, ...
    """
    evaluations = posterior.evaluate_all({**loaders, **({} if ood is None else {"ood": ood})})
    outside = evaluations.pop("ood", None)
    first = next(iter(evaluations.values()))
    metrics: dict[str, float] = {"samples": posterior.samples, "chains": posterior.chains}  # of what could be read
    for split, evaluation in evaluations.items():
        metrics |= {f"{split}/{name}": value for name, value in evaluation.metrics().items()}
    if outside is not None:
        metrics |= _ood(first, outside)
    rhats, sizes = rhat(first.log_probs), ess(first.log_probs)
    metrics |= {"rhat/max": _or_nan(np.nanmax, rhats), "ess/min": _or_nan(np.nanmin, sizes)}
    metrics |= _temperatures(posterior, trace)
    warnings = _importance(posterior, metrics)
    return Summary(metrics, evaluations, _convergence(posterior, first), warnings)


def side_by_side(traces: Sequence[Trace]) -> dict[str, Tensor]:
    """One trace of the chains of several stacks that ran under one schedule."""
    columns = {name: [trace[name] for trace in traces] for name in traces[0]}
    return {name: parts[0] if parts[0].ndim == 1 else torch.cat(parts, 1) for name, parts in columns.items()}


def _temperatures(posterior: Posterior, trace: Trace | None) -> dict[str, float]:
    """T of the law meant at the last sample; what the chains showed while samples were kept, means over chains."""
    records = posterior.records
    found = {"temperature": float(np.mean(records[-1].temperature)), "lr": float(np.mean(records[-1].lr))}
    if not trace:
        return found | dict.fromkeys(_CHAIN, math.nan)
    chosen = (trace["step"] >= records[0].step) & (trace["temperature"] > 0)
    found |= {name: _weighted_mean(trace[name][chosen], trace["lr"][chosen]) for name in _CHAIN}
    some = {name: _weighted_mean(trace[name][chosen], trace["lr"][chosen]) for name in ("elbo",) if name in trace}
    if "acceptance" in trace:  # a running mean already: the last one
        some["acceptance"] = float(trace["acceptance"][-1].mean())
    return found | {name: value for name, value in some.items() if not math.isnan(value)}


def _ood(inside: Evaluation, outside: Evaluation) -> dict[str, float]:
    one = [ood_auroc(p, q) for p, q in zip(inside.one_sample, outside.one_sample, strict=True)]
    return {"ood/one_sample/auroc": float(np.mean(one)), "ood/bma/auroc": ood_auroc(inside.bma, outside.bma)}


def _importance(posterior: Posterior, metrics: dict[str, float]) -> list[str]:
    spread, error = energy_spreads(posterior.keyed())
    metrics |= {"energy/spread": spread, "energy/batch_error": error}
    if all(r.zeta == 0 for r in posterior.records):
        return []
    try:
        weights = posterior.weights("importance")
    except ConfigError as refusal:
        metrics["weight_ess"] = math.nan
        return [str(refusal)]
    metrics |= {
        "weight_ess": weights.ess,
        "weights_biased": math.nan if weights.biased is None else float(weights.biased),
    }
    return [] if weights.biased is False else [weights.note]


def _convergence(posterior: Posterior, evaluation: Evaluation) -> list[Row]:
    """R-hat and ESS of energies and of the mean and the worst mixed test log-probabilities."""
    log_p = evaluation.log_probs
    named = {"mean test log-probability": log_p.mean(-1)}
    values = rhat(log_p)
    if np.isfinite(values).any():
        for rank, i in enumerate(np.argsort(-np.nan_to_num(values, nan=-1))[:3], 1):
            named[f"log-probability of a test item, {('worst', 'second worst', 'third worst')[rank - 1]} mixed"] = (
                log_p[..., i]
            )
    dataset = posterior.to_arviz()["posterior"].dataset
    for name, label in (("energy_full", "energy, all data (nats)"), ("energy_batch", "energy, batch estimate (nats)")):
        draws = np.asarray(dataset[name])
        draws = draws[:, np.isfinite(draws).all(0)]
        if draws.shape[1]:
            named[label] = draws
    return summary(named)


def _weighted_mean(values: Tensor, lr: Tensor) -> float:
    """Mean of values (n, C), steps weighted by lr, as their noise is: steps of lr near 0 move nothing."""
    weight = lr.unsqueeze(-1) * values.isfinite()
    return float((weight * values.nan_to_num()).sum() / weight.sum()) if bool((weight > 0).any()) else math.nan


def _or_nan(reduce: Any, values: np.ndarray) -> float:
    return float(reduce(values)) if np.isfinite(values).any() else math.nan
