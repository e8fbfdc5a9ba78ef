"""What a table's network predicts, one column or several: learned from the table, and made into labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from bdl.advice import override
from bdl.data.frame import brief_list, require_columns
from bdl.data.kinds import of_each
from bdl.data.target import ClassTarget, NumberTarget, find_task
from bdl.data.target_law import GAMMA, HURDLE, LOG_NORMAL, NAMES, NORMAL, ORDINAL, normal_loss
from bdl.data.values import Frame, Series, Task
from bdl.display import count_of
from bdl.errors import BdlWarning, ConfigError
from bdl.likelihoods.categorical import IGNORED

Part = TypeVar("Part", ClassTarget, NumberTarget)
NamedColumns: TypeAlias = Any  # rows of a table, or a table: what has a column by its name


@dataclass(frozen=True)
class Targets(Generic[Part]):
    """Several columns that a network predicts together.

    parts: one for each column.
    """

    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)


@dataclass(frozen=True)
class NumberTargets(Targets[NumberTarget]):
    """Several numbers of a row, (n, k) float32, each standardised by itself; NaN where one of them is missing.

    The parts are all of one task.
    """

    @property
    def task(self) -> Task:
        return self.parts[0].task

    @property
    def mean(self) -> Tensor:
        """(k,) in the units of each target."""
        return torch.tensor([part.mean for part in self.parts], dtype=torch.float64)

    @property
    def std(self) -> Tensor:
        """(k,) in the units of each target."""
        return torch.tensor([part.std for part in self.parts], dtype=torch.float64)

    @property
    def loss(self) -> dict[str, Any]:
        """The likelihood that fits the values: of normal errors, with the noise that rounding leaves in each target."""
        return normal_loss([part.min_std for part in self.parts])

    def encode(self, rows: NamedColumns, place: str) -> Tensor:
        """(n, k) float32, NaN where a target is missing. Raises ConfigError as `NumberTarget.encode` does."""
        columns = []
        for part in self.parts:
            values = rows[part.name]
            seen = np.flatnonzero(values.notna())
            column = torch.full((len(values), 1), torch.nan)
            column[seen] = part.encode(values.iloc[seen], place)
            columns.append(column)
        return torch.cat(columns, 1)

    def warn_of_far(self, mean: Tensor, std: Tensor, rows: int, place: str) -> None:
        """As `NumberTarget.warn_of_far`, for predictions (n, k)."""
        for j, part in enumerate(self.parts):
            part.warn_of_far(mean[:, j : j + 1], std[:, j : j + 1], rows, place)


@dataclass(frozen=True)
class ClassTargets(Targets[ClassTarget]):
    """Several classes of a row, (n, k) int64, -100 where one of them is missing."""

    task: ClassVar[Task] = "classification"

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """The classes by column."""
        return {part.name: part.labels for part in self.parts}

    @property
    def loss(self) -> dict[str, Any]:
        """The likelihood of all columns."""
        return {"_target_": "bdl.MultiCategoricalNLL", "classes": [len(part.labels) for part in self.parts]}

    def encode(self, rows: NamedColumns, place: str) -> Tensor:
        """(n, k) int64."""
        codes = torch.stack([part.encode(rows[part.name], place) for part in self.parts], 1)
        return codes.masked_fill(codes < 0, IGNORED)


Target = ClassTarget | ClassTargets | NumberTarget | NumberTargets


def number_targets(target: Target) -> tuple[NumberTarget, ...]:
    """The numbers that a target consists of; none for classes."""
    return target.parts if isinstance(target, NumberTargets) else (target,) if isinstance(target, NumberTarget) else ()


def labels_of(target: Target, rows: NamedColumns, place: str) -> Tensor:
    """The labels of rows, as `encode` of the target makes them."""
    return target.encode(rows[target.name] if isinstance(target, ClassTarget | NumberTarget) else rows, place)


def target_to_plain(target: Target) -> dict[str, Any]:
    """As values that JSON can hold."""
    return {"task": target.task, **asdict(target)}


def target_from_plain(fields: Mapping[str, Any]) -> Target:
    """The inverse of `target_to_plain`. Raises KeyError or TypeError for missing or unknown fields."""
    if "parts" in fields and fields["task"] == "classification":
        return ClassTargets(tuple(ClassTarget(part["name"], tuple(part["labels"])) for part in fields["parts"]))
    if "parts" in fields:
        return NumberTargets(tuple(NumberTarget(**part) for part in fields["parts"]))
    if fields["task"] == "classification":
        return ClassTarget(fields["name"], tuple(fields["labels"]))
    return NumberTarget(**{name: value for name, value in fields.items() if name != "step"})  # version 3 has a step


def learn_target(
    every: Mapping[str, Series], of_training: Mapping[str, Series], task: Task | None, place: str, loss: str | None,
    missing: Sequence[str] = ("?",),
) -> tuple[Target, str]:  # fmt: skip
    """What the network predicts, and why in a few words.

    Args:
        every: the values of all rows, by column; of_training: those of the training rows. Both without gaps.
        task: None finds it.
        loss: the class of the likelihood that the user chose; None: one that fits.
        missing: the words that mean a missing value already.

    Raises ConfigError for several columns, some of classes and some of numbers, and as each of them by itself.
    """
    if task is None and loss is not None and loss in NAMES.values():
        task = "regression"  # each of these is a law of numbers
    questions = [_asked(values, task, place, missing) for values in every.values()]
    found = of_each(lambda ask: ask(), questions, place)
    names = list(every)
    if len(names) > 1 and loss in (HURDLE, LOG_NORMAL, GAMMA, ORDINAL):
        raise ConfigError(
            f"loss._target_={loss} is of one target, and data.target names {len(names)}: loss=auto fits all"
        )
    if len(names) > 1:
        return _learn_several(dict(zip(names, found, strict=True)), every, of_training, place, missing)
    (name,), ((kind, reason),) = names, found
    if kind == "classification":
        return ClassTarget.learn(every[name], place), reason
    return NumberTarget.learn(of_training[name], place, kind, loss, every[name], missing), reason


def _asked(values: Series, task: Task | None, place: str, missing: Sequence[str]) -> Callable[[], tuple[Task, str]]:
    return lambda: find_task(values, place, missing) if task is None else (task, "as asked for")


def _learn_several(
    found: Mapping[str, tuple[Task, str]],
    every: Mapping[str, Series],
    of_training: Mapping[str, Series],
    place: str,
    missing: Sequence[str],
) -> tuple[ClassTargets | NumberTargets, str]:
    reasons = "; ".join(f"{name}: {reason}" for name, (_, reason) in found.items())
    classes = [name for name, (task, _) in found.items() if task == "classification"]
    if numbers := [name for name in found if classes and name not in classes]:
        raise ConfigError(
            f"{override('data.target', found)}: {classes[0]} holds classes and {numbers[0]} numbers, and several "
            f"targets must be all of one kind: make a run for {override('data.target', classes)} and one for "
            f"{override('data.target', numbers)}"
        )
    for name, values in of_training.items():
        if not len(values):
            raise ConfigError(f"{override('data.target', name)}: no training row of {place} has a value; leave it out")
    if classes:
        return ClassTargets(tuple(of_each(lambda name: ClassTarget.learn(every[name], place), found, place))), reasons
    parts = of_each(
        lambda name: NumberTarget.learn(of_training[name], place, found[name][0], NORMAL, None, missing), found, place
    )
    return NumberTargets(tuple(parts)), reasons


def rows_with_targets(frame: Frame, names: Sequence[str], place: str) -> np.ndarray:
    """(m,) the rows that have a target at least. A warning counts the others, and the gaps in the rows that are kept.

    Raises ConfigError for a column that is not there or has no value at all.
    """
    require_columns(frame, names, "data.target=", place)
    seen = np.stack([frame[name].notna().to_numpy() for name in names], 1)  # (n, k)
    if not seen.any(0).all():
        name = names[int(np.flatnonzero(~seen.any(0))[0])]
        raise ConfigError(f"{override('data.target', name)}: no row of {place} has a value; choose another target")
    kept, missing = np.flatnonzero(seen.any(1)), int((~seen.any(1)).sum())
    what = f"the target {names[0]} is" if len(names) == 1 else f"all targets, {brief_list(names)}, are"
    if missing:
        line = f"{place}: {what} missing in {missing} of {count_of(len(frame), 'row')}, which are left out"
        warnings.warn(line, BdlWarning, stacklevel=3)
    gaps = {name: int(count) for name, count in zip(names, (~seen[kept]).sum(0), strict=True) if count}
    if gaps:
        counted = brief_list([f"{name} is missing in {count:,}" for name, count in gaps.items()])
        line = f"{place}: {counted} of {count_of(len(kept), 'row')}, which are kept: their other targets count"
        warnings.warn(line, BdlWarning, stacklevel=3)
    return kept
