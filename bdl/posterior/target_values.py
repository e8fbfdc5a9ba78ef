"""The targets of predictions of numbers, one by one and in their own units: their scores, and what pictures show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from torch import Tensor

from bdl.posterior.evaluation import PosteriorEvaluation
from bdl.posterior.metrics import INTERVAL_LEVELS, QUANTILE_GRID, named_scores
from bdl.posterior.value_evaluation import LEVEL, ValueEvaluation

Row = Literal["one_sample", "bma"]
IN_UNITS = ("rmse", "crps", *(f"width_{100 * level:.0f}" for level in INTERVAL_LEVELS))  # scores that scale with y
ROW_NAMES: dict[Row, str] = {"one_sample": "one sample", "bma": "average of all chains"}
SHOWN = {"rmse": "RMSE", "nll": "NLL (nats)", "crps": "CRPS", "coverage_50": "in 50 % interval",
         "coverage_90": "in 90 % interval"}  # fmt: skip


@dataclass(frozen=True)
class Units:
    """The name and the units of a target: shift + scale x what the network sees."""

    name: str = "target"
    shift: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class Values:
    """One target of n items in its units, without the items that miss it, and its calibration."""

    units: Units
    y: np.ndarray  # (n,)
    mean: np.ndarray  # (n,)
    std: np.ndarray  # (n,)
    low: np.ndarray  # (n,) lower end of the central 90 % interval
    high: np.ndarray  # (n,)
    shares: Mapping[str, tuple[np.ndarray, np.ndarray]]  # name -> (q, share of y below the predicted q-quantile)


def values_of(evaluation: ValueEvaluation, units: Sequence[Units] = ()) -> list[Values]:
    """Each target: predicted by the average over all chains, and the quantiles of one sample beside it.

    units: of each target; without them the targets have the units that the network sees.
    """
    prediction, y = evaluation.bma, evaluation.y.reshape(len(evaluation.y), -1).double().numpy()
    parts = (prediction.mean, *prediction.interval(LEVEL), prediction.std)
    mean, low, high, std = (part.double().numpy() for part in parts)
    means = {ROW_NAMES[row]: evaluation.means_of(row) for row in get_args(Row)}
    grid, values = np.array(QUANTILE_GRID), []
    for j, of in enumerate(named_units(y.shape[1], units)):
        seen = ~np.isnan(y[:, j])
        data, centre, bottom, top = (of.shift + of.scale * part[seen, j] for part in (y, mean, low, high))
        shares = {name: (grid, (m["shares"][:, j] / m["seen"][j]).numpy()) for name, m in means.items()}
        values.append(Values(of, data, centre, of.scale * std[seen, j], bottom, top, shares))
    return values


def named_units(targets: int, units: Sequence[Units] = ()) -> Sequence[Units]:
    """The units of each target; numbers for names where several have none."""
    if len(units) == targets:
        return units
    return [Units()] if targets == 1 else [Units(f"target {j}") for j in range(targets)]


def target_metrics(evaluations: Mapping[str, PosteriorEvaluation], units: Sequence[Units] = ()) -> dict[str, float]:
    """`test/bma/<target>/rmse` and so on: the scores of each of several targets by itself; {} for a single target.

    They are those of `value_metrics`, in the units of the target: nll is that of its density, coverages have none.
    Evaluations are by split; one sample, `test/one_sample/...`, is the last of the first chain. `test/targets/<target>`
    counts the items that have it.
    """
    metrics: dict[str, float] = {}
    for split, evaluation in evaluations.items():
        if not isinstance(evaluation, ValueEvaluation) or evaluation.y.ndim < 2 or evaluation.y.shape[1] < 2:
            continue
        names = named_units(evaluation.y.shape[1], units)
        seen = (~evaluation.y.isnan()).sum(0).tolist()
        metrics |= {f"{split}/targets/{of.name}": count for of, count in zip(names, seen, strict=True)}
        for row in get_args(Row):
            for of, scores in zip(names, scores_of_targets(evaluation.means_of(row)), strict=True):
                scaled = {name: of.scale * value if name in IN_UNITS else value for name, value in scores.items()}
                scaled |= {name: scores[name] + math.log(of.scale) for name in ("nll", "nll_normal")}
                metrics |= {f"{split}/{row}/{of.name}/{name}": value for name, value in scaled.items()}
    return metrics


def scores_of_targets(means: Mapping[str, Tensor]) -> list[dict[str, float]]:
    """`value_metrics` of each of the k targets by itself, from `value_means`."""
    each, seen = {**means, "nll": means["nll_of_each"]}, means["seen"]
    return [named_scores({name: mean[..., j] / seen[j] for name, mean in each.items()}) for j in range(len(seen))]


def target_rows(metrics: Mapping[str, float], values: Sequence[Values]) -> list[tuple[str, list[str]]]:
    """The rows of the table of targets, of the average on the test set: items, and the scores `SHOWN`, as texts."""
    rows = []
    for of in (each.units for each in values if len(values) > 1):
        known = {name: metrics.get(f"test/bma/{of.name}/{name}", math.nan) for name in SHOWN}
        texts = [f"{100 * v:.1f} %" if name.startswith("coverage") else f"{v:.4g}" for name, v in known.items()]
        items = metrics.get(f"test/targets/{of.name}", math.nan)
        rows.append((of.name, [f"{items:,.0f}", *("–" if text.startswith("nan") else text for text in texts)]))
    return rows
