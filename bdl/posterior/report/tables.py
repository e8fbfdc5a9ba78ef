"""The rows of three tables of a report: scores of each class, of columns of classes, and out of distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bdl.posterior.class_evaluation import ClassEvaluation
from bdl.posterior.class_scores import ClassScores
from bdl.posterior.evaluation import PosteriorEvaluation
from bdl.posterior.report.numbers import CLASS_SCORES, shown_score

OOD_SCORES = {"bma": "entropy", "mutual_information": "mutual information", "energy": "energy of the logits"}
CLASSES_IN_TABLE = 100  # more classes make no table


def class_rows(
    evaluation: PosteriorEvaluation, names: Sequence[str], columns: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> list[tuple[str, list[str]]]:
    """The rows of the table of classes, and their means; [] for tokens, for numbers, and for very many classes.

    columns: the names of the classes by column, where there are several.
    """
    if not isinstance(evaluation, ClassEvaluation) or evaluation.tokens:
        return []
    if columns:
        each = zip(columns.items(), evaluation.class_scores(), strict=True)
        return [(f"{name}: {row}", texts) for (name, of), one in each for row, texts in _class_rows(one, of)]
    return [] if evaluation.likelihood.outputs == "labels" else _class_rows(evaluation.class_scores()[0], names)


def _class_rows(scores: ClassScores, names: Sequence[str]) -> list[tuple[str, list[str]]]:
    count = len(scores.items)
    if count > CLASSES_IN_TABLE:
        return []
    named = list(names) if len(names) == count else [str(k) for k in range(count)]
    parts = [scores.recall, scores.precision, scores.iou, scores.auc, scores.ap]
    rows = [
        (name, [f"{items:,.0f}", *(shown_share(part[k]) for part in parts)])
        for k, (name, items) in enumerate(zip(named, scores.items.tolist(), strict=True))
    ]
    means = [shown_share(part.nanmean()) for part in parts]
    return [*rows, ("mean", [f"{scores.items.sum():,.0f}", *means])]


def column_rows(metrics: Mapping[str, float], columns: Iterable[str]) -> list[tuple[str, list[str]]]:
    """The rows of the table of columns of classes, of the average on the test set: items, and `CLASS_SCORES`."""
    return [
        (
            name,
            [
                f"{metrics.get(f'test/targets/{name}', math.nan):,.0f}",
                *(shown_score(s, metrics.get(f"test/bma/{name}/{s}", math.nan)) for s in CLASS_SCORES),
            ],
        )
        for name in columns
    ]


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
