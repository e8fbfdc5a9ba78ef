"""The column that a table's network predicts: which task it is, its labels as tensors, and predictions in its units."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bdl.advice import override, takes
from bdl.data.dates import holds_dates
from bdl.data.far import FAR
from bdl.data.kinds import finite_numbers, of_each, perhaps_gaps, standardisation, standardised
from bdl.data.target_law import find_law
from bdl.data.units import looks_like_numbers
from bdl.data.values import Series, Task, as_numbers, as_texts, holds_truth_values, is_text, number_hint
from bdl.display import count_of
from bdl.errors import BdlWarning, ConfigError

FEW = 20  # different whole numbers that may be classes; digits have 10


@dataclass(frozen=True)
class ClassTarget:
    """Classes by name, (n,) int64 in the order of `labels`."""

    name: str
    labels: tuple[str, ...]

    task: ClassVar[Task] = "classification"

    @staticmethod
    def learn(values: Series, place: str) -> ClassTarget:
        """The classes of all rows. Raises ConfigError for a single class, and for fewer than two rows a class."""
        texts, name = as_texts(values), override("data.target", str(values.name))
        labels = sorted(texts.unique(), key=_numbers_first)
        if len(labels) == 1:
            raise ConfigError(
                f"{name}: all {len(texts)} rows of {place} are of one class, {labels[0]!r}: give "
                "rows of another class, or choose another target"
            )
        if len(labels) > len(texts) / 2:
            numbers = as_numbers(values).notna().all()
            remedy = "data.task=regression predicts numbers" if numbers else "choose another target"
            raise ConfigError(
                f"{name} has {len(labels)} classes in {len(texts)} rows of {place}, fewer than two "
                f"rows for a class: {remedy}"
            )
        return ClassTarget(str(values.name), tuple(labels))

    def encode(self, values: Series, place: str) -> Tensor:
        """(n,) int64, -1 for a value that is none of the classes, or missing."""
        return torch.from_numpy(pd.Index(self.labels).get_indexer(pd.Index(as_texts(values)))).long()


@dataclass(frozen=True)
class NumberTarget:
    """Numbers, (n, 1) float32: (value - mean) / std. Counts stay as they are, with mean 0 and std 1.

    Under a law with masses at points, or of positive numbers, `mean` is the place from which it measures.

    center: the mean of the training values where that is not `mean`; or else None.
    loss: the likelihood that fits the values in these units, as its `_target_` and arguments; {} for that of the task.
    """

    name: str
    mean: float
    std: float
    task: Task = "regression"
    center: float | None = None
    loss: Mapping[str, Any] = field(default_factory=dict)
    words: str | None = field(default=None, compare=False)  # what a run says of the values

    @staticmethod
    def learn(
        values: Series,
        place: str,
        task: Task,
        asked: str | None = None,
        every: Series | None = None,
        missing: Sequence[str] = ("?",),
    ) -> NumberTarget:
        """From the training rows.

        Args:
            asked: the class of the likelihood that the user chose, such as "bdl.GammaNLL"; None: one that fits.
            every: the values of all rows; the likelihood takes them too.
            missing: the words that mean a missing value already.

        Raises ConfigError for text, a constant target, numbers that are no counts, and a likelihood that does not fit.
        """
        known = None if every is None else _numbers(every, place, task, missing)  # it names all words
        numbers = _numbers(values, place, task, missing)
        if numbers.min() == numbers.max():
            raise ConfigError(
                f"{override('data.target', str(values.name))} is {numbers.iloc[0]:g} in all {len(numbers)} training "
                f"rows of {place}: nothing can be learned about a constant; choose another target"
            )
        if task == "counts":
            return NumberTarget(str(values.name), 0.0, 1.0, task)
        (moments,) = of_each(standardisation, [numbers], place)
        whole = numbers if known is None else known
        law = find_law(numbers.to_numpy(np.float64), whole.to_numpy(np.float64), asked, str(values.name), moments)
        center = None if law.origin == moments[0] else moments[0]
        return NumberTarget(str(values.name), law.origin, law.scale, task, center, law.loss, law.words)

    @property
    def min_std(self) -> float:
        """Standard deviation of the noise that rounding leaves, in units of `std`; 0 where it does not matter."""
        return self.loss.get("min_std", 0.0)

    def encode(self, values: Series, place: str) -> Tensor:
        """(n, 1) float32. Raises ConfigError for text, for infinite and far too large numbers, and as `learn` does."""
        numbers = _numbers(values, place, self.task)
        (scaled,) = of_each(lambda numbers: standardised(numbers, self.mean, self.std), [numbers], place)
        return torch.from_numpy(scaled.astype(np.float32))[:, None]

    def warn_of_far(self, mean: Tensor, std: Tensor, rows: int, place: str) -> None:
        """Warn of predictions (n, 1), in the target's units, beyond all that the training rows have.

        Of N numbers none is farther from their mean than std sqrt(N - 1). Counts have no such bound here.

        rows: N, how many training rows there were.
        """
        center = self.mean if self.center is None else self.center
        far = torch.maximum((mean - center).abs(), std)[:, 0]  # (n,)
        bound = self.std * max(FAR, math.sqrt(max(0, rows - 1)))
        beyond = far > bound
        if self.task == "regression" and bool(beyond.any()):
            warnings.warn(
                f"{place}: for {int(beyond.sum())} of {count_of(len(far), 'row')}, row "
                f"{int(beyond.nonzero()[0]) + 1} the first, "
                f"the mean or the standard deviation of {self.name} is beyond any value in training (up to "
                f"{far[beyond].max():.2g} from its mean, and {bound:.2g} at most in training): look at the inputs of "
                "these rows", BdlWarning, stacklevel=2,
            )  # fmt: skip


def find_task(values: Series, place: str, missing: Sequence[str] = ("?",)) -> tuple[Task, str]:
    """The task of a target without gaps, and why in a few words.

    Text, truth values and two whole numbers are classes; decimals, and whole numbers with many different values, are a
    regression.

    >>> find_task(pd.Series(["yes", "no", "no"], name="answer"), "table.csv")
    ('classification', '2 different texts')
    >>> find_task(pd.Series([1.5, 2.0, 3.7], name="length"), "table.csv")
    ('regression', '3 different numbers')

    Raises ConfigError for dates, for numbers with text between them, and for whole numbers that may be classes or not:
    at most 20 different ones, each in two rows on average.
    """
    name = override("data.target", str(values.name))
    if holds_dates(values):
        raise ConfigError(f"{name} holds dates or times ({values.iloc[0]}): choose another target")
    if (hint := number_hint(values)) is not None:
        example = values[is_text(values)].iloc[0]
        raise ConfigError(f"{name} holds numbers that are texts ('{example}'): {hint}, or data.task=classification")
    different, numbers = values.nunique(), as_numbers(values)
    if isinstance(values.dtype, pd.CategoricalDtype) or holds_truth_values(values) or numbers.notna().mean() < 0.5:
        if different > FEW and looks_like_numbers(values):
            texts = values[is_text(values)]
            some = dict.fromkeys(texts.iloc[[0, len(texts) // 3, -1]])
            raise ConfigError(
                f"{name} has {different} different texts such as {' and '.join(map(repr, some))}, which begin as "
                "numbers do: write one plain number in each field, all in one unit; or data.task=classification takes "
                "each text as a class"
            )
        return "classification", f"{different} different {'truth values' if holds_truth_values(values) else 'texts'}"
    numbers = _numbers(values, place, "regression", missing)
    if not (numbers == numbers.round()).all():
        return "regression", f"{different} different numbers"
    if 2 < different <= min(FEW, len(values) / 2):
        counts = ", data.task=counts a count" if numbers.min() >= 0 else ""
        raise ConfigError(
            f"{name} has {different} different whole numbers, {numbers.min():g} to {numbers.max():g}, which may be "
            f"quantities or classes: data.task=regression predicts a number{counts}, loss=ordinal a level in their "
            "order, data.task=classification a class for each"
        )
    return "classification" if different == 2 else "regression", f"{different} different whole numbers"


def _numbers(values: Series, place: str, task: Task, missing: Sequence[str] = ("?",)) -> Series:
    """The target as numbers. Raises ConfigError for text, for infinite numbers, and for counts that are no counts."""
    classes = ", or data.task=classification takes the values as classes" if takes("data.task") else ""
    remedy = f"correct them{classes}"
    (numbers,) = of_each(
        lambda values: perhaps_gaps(lambda: finite_numbers(values, remedy), values, remedy, missing),
        [values], place,
    )  # fmt: skip
    if task == "counts" and (bad := (numbers < 0) | (numbers != numbers.round())).any():
        raise ConfigError(
            f"data.task=counts does not fit the target {numbers.name}: {numbers[bad].iloc[0]:g} in row "
            f"{numbers.index[bad][0] + 1} of {place} is no count ({bad.sum()} of {count_of(len(numbers), 'row')}): "
            "data.task=regression predicts numbers"
        )
    return numbers


def _numbers_first(label: str) -> tuple[int, float, str]:
    """Sorts labels that are numbers by value, before the others in the alphabet."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
