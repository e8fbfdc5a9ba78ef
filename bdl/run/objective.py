"""Objective: the metric that a sweep optimises, whose name is checked before the first step."""

from __future__ import annotations

from collections.abc import Mapping

from bdl.errors import ConfigError, did_you_mean
from bdl.posterior.report.numbers import AVERAGES

SPLITS = ("train", "val", "test")
SCORES = (  # of an average on a split
    "accuracy", "accuracy_se", "aleatoric", "auc", "aurc", "average_precision", "balanced_accuracy", "brier",
    "brier_reliability", "brier_resolution", "brier_uncertainty", "claim", "coverage_50", "coverage_90",
    "coverage_at_5_risk", "crps", "ece", "ece_adaptive", "entropy", "epistemic", "gain_se", "least", "mean_iou",
    "nll", "nll_normal", "nll_se", "perplexity", "quantile_error", "rmse", "rmse_se", "weighted_nll", "width_50",
    "width_90",
)  # fmt: skip


def check_objective(name: str | None) -> None:
    """Raise ConfigError for `<split>/<row>/<score>` that no run has. Other names are looked up in a judged run."""
    if name is None:
        return
    parts = name.split("/")
    if len(parts) == 1 and name in SCORES:
        raise ConfigError(f"objective={name} says neither where nor of what: write objective=test/bma/{name}")
    if len(parts) != 3 or parts[0] not in SPLITS and parts[1] not in AVERAGES:
        return
    split, row, score = parts
    if row in AVERAGES or did_you_mean(row, AVERAGES):
        for what, word, known in (("split", split, SPLITS), ("average", row, AVERAGES), ("score", score, SCORES)):
            if word not in known:
                raise ConfigError(
                    f"objective={name}: no run has {'an' if what == 'average' else 'a'} {what} "
                    f"{word}{did_you_mean(word, known)}: write one such as val/bma/nll"
                )


def objective_value(metrics: Mapping[str, float] | None, objective: str | None) -> float | None:
    """The metric that a sweep optimises; for None, the NLL of the average on the validation or else the test split."""
    if metrics is None:
        return None
    name = objective or ("val/bma/nll" if "val/bma/nll" in metrics else "test/bma/nll")
    if name not in metrics and objective is not None:
        raise ConfigError(f"objective={name} is no metric of this run, which is complete: choose one of metrics.json")
    return metrics.get(name)  # None where no rows are held out
