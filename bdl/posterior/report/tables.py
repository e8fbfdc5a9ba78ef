"""The rows of two tables of a report: the scores of each class, and the scores on out-of-distribution items."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.evaluation import PosteriorEvaluation

OOD_SCORES = {"bma": "entropy", "mutual_information": "mutual information", "energy": "energy of the logits"}
CLASSES_IN_TABLE = 100  # more classes make no table


def class_rows(evaluation: PosteriorEvaluation, names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The rows of the table of classes, and their means; [] for tokens, for numbers, and for very many classes."""
    if not isinstance(evaluation, ClassEvaluation) or evaluation.tokens:
        return []
    scores = evaluation.class_scores()
    count = len(scores.items)
    if count > CLASSES_IN_TABLE or evaluation.likelihood.outputs == "labels":
        return []
    named = list(names) if len(names) == count else [str(k) for k in range(count)]
    parts = [scores.recall, scores.precision, scores.iou, scores.auc, scores.ap]
    rows = [
        (name, [f"{items:,.0f}", *(shown_share(part[k]) for part in parts)])
        for k, (name, items) in enumerate(zip(named, scores.items.tolist(), strict=True))
    ]
    means = [shown_share(part.nanmean()) for part in parts]
    return [*rows, ("mean", [f"{scores.items.sum():,.0f}", *means])]


def shown_share(value: Any) -> str:
    return "–" if math.isnan(value) else f"{float(value):.3f}"


def ood_rows(m: Mapping[str, float]) -> list[tuple[str, list[str]]]:
    """The rows of the table of out-of-distribution scores: AUROC, AUPR and false alarms in %."""
    return [
        (
            label,
            [f"{m[f'ood/{name}/auroc']:.4f}", f"{m[f'ood/{name}/aupr']:.4f}", f"{100 * m[f'ood/{name}/fpr95']:.1f} %"],
        )
        for name, label in OOD_SCORES.items()
        if not math.isnan(m[f"ood/{name}/auroc"])
    ]
