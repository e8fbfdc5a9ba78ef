"""The column that a table's network predicts: which task it is, its labels as tensors, and predictions in its units."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bdl.data.encoding import refuse_text
from bdl.data.frame import Series, as_numbers, as_texts, holds_dates, holds_truth_values, number_hint
from bdl.data.module import Task
from bdl.errors import ConfigError

FEW = 20  # different whole numbers that are taken for classes; digits have 10


@dataclass(frozen=True)
class ClassTarget:
    """Classes by name, (n,) int64 in the order of `labels`."""

    name: str
    labels: tuple[str, ...]

    task = "classification"

    @staticmethod
    def learn(values: Series, place: str) -> ClassTarget:
        """The classes of all rows. Raises ConfigError for one class only, and for more than half as many as rows."""
        texts = as_texts(values)
        labels = sorted(texts.unique(), key=_numbers_first)
        if len(labels) == 1:
            raise ConfigError(
                f"data.target={values.name}: all {len(texts)} rows of {place} are of one class, {labels[0]!r}: give "
                "rows of another class, or choose another target"
            )
        if len(labels) > len(texts) / 2:
            numbers = as_numbers(values).notna().all()
            remedy = "data.task=regression predicts numbers" if numbers else "choose another target"
            raise ConfigError(
                f"data.target={values.name} has {len(labels)} classes in {len(texts)} rows of {place}, fewer than two "
                f"rows for a class: {remedy}"
            )
        return ClassTarget(str(values.name), tuple(labels))

    def encode(self, values: Series, place: str) -> Tensor:
        """(n,) int64."""
        return torch.from_numpy(pd.Index(self.labels).get_indexer(pd.Index(as_texts(values)))).long()


@dataclass(frozen=True)
class NumberTarget:
    """Numbers, (n, 1) float32: (value - mean) / std. Counts stay as they are, with mean 0 and std 1."""

    name: str
    mean: float
    std: float
    task: Task = "regression"

    @staticmethod
    def learn(values: Series, place: str, task: Task) -> NumberTarget:
        """From the training rows. Raises ConfigError for text, a constant target, and counts that are none."""
        name = f"data.target={values.name}"
        refuse_text(values, place, "correct them, or data.task=classification takes the values as classes")
        numbers = as_numbers(values)
        if numbers.min() == numbers.max():
            raise ConfigError(
                f"{name} is {numbers.iloc[0]:g} in all {len(numbers)} training rows of {place}: nothing can be learned "
                "about a constant; choose another target"
            )
        if task == "counts":
            _refuse_other_than_counts(numbers, place)
            return NumberTarget(str(values.name), 0.0, 1.0, task)
        return NumberTarget(str(values.name), float(numbers.mean()), float(numbers.std(ddof=0)), task)

    def encode(self, values: Series, place: str) -> Tensor:
        """(n, 1) float32. Raises ConfigError for text and infinite numbers, and counts that are none."""
        refuse_text(values, place)
        numbers = as_numbers(values)
        if self.task == "counts":
            _refuse_other_than_counts(numbers, place)
        return torch.from_numpy(((numbers - self.mean) / self.std).to_numpy(np.float32))[:, None]


Target = ClassTarget | NumberTarget


def target_to_plain(target: Target) -> dict[str, Any]:
    """The target as values that JSON can hold."""
    return {"task": target.task, **dataclasses.asdict(target)}


def target_from_plain(plain: Mapping[str, Any]) -> Target:
    """The inverse of `target_to_plain`."""
    fields = {k: v for k, v in plain.items() if k != "task"}
    if plain["task"] == "classification":
        return ClassTarget(fields["name"], tuple(fields["labels"]))
    return NumberTarget(**fields, task=plain["task"])


def find_task(values: Series, place: str) -> tuple[Task, str]:
    """The task of a target without gaps, and why in a few words.

    Text, truth values and whole numbers of at most 20 different values, each in two rows on average, are classes; other
    numbers are a regression.

    >>> find_task(pd.Series(["yes", "no", "no"], name="answer"), "table.csv")
    ('classification', '2 different texts')
    >>> find_task(pd.Series([1.5, 2.0, 3.7], name="length"), "table.csv")
    ('regression', '3 different numbers')

    Raises ConfigError for dates, and for numbers with text between them.
    """
    if holds_dates(values):
        raise ConfigError(f"data.target={values.name} holds dates or times ({values.iloc[0]}): choose another target")
    if (hint := number_hint(values)) is not None:
        raise ConfigError(
            f"data.target={values.name} holds numbers that are texts: set {hint}, or data.task=classification"
        )
    different = values.nunique()
    numbers = as_numbers(values)
    if holds_truth_values(values) or numbers.notna().mean() < 0.5:
        return "classification", f"{different} different {'truth values' if holds_truth_values(values) else 'texts'}"
    refuse_text(values, place, "correct them, or data.task=classification takes the values as classes")
    whole = (numbers == numbers.round()).all()
    if whole and 1 < different <= min(FEW, len(values) / 2):
        return "classification", f"{different} different whole numbers"
    return "regression", f"{different} different {'whole numbers' if whole else 'numbers'}"


def _refuse_other_than_counts(numbers: Series, place: str) -> None:
    bad = (numbers < 0) | (numbers != numbers.round())
    if bad.any():
        raise ConfigError(
            f"data.task=counts does not fit the target {numbers.name}: {numbers[bad].iloc[0]:g} in row "
            f"{numbers.index[bad][0] + 1} of {place} is no count ({bad.sum()} of {len(numbers)} rows): "
            "data.task=regression predicts numbers"
        )


def _numbers_first(label: str) -> tuple[int, float, str]:
    """Sorts labels that are numbers by value, before the others in the alphabet."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
