"""What a table's network predicts, one column or several: learned from the table, and made into labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bdl.advice import override
from bdl.data.frame import brief_list, require_columns
from bdl.data.kinds import of_each
from bdl.data.target import ClassTarget, NumberTarget, find_task
from bdl.data.target_law import GAMMA, HURDLE, LOG_NORMAL, NORMAL
from bdl.data.values import Frame, Series, Task
from bdl.errors import BdlWarning, ConfigError

NamedColumns: TypeAlias = Any  # rows of a table, or a table: what has a column by its name


@dataclass(frozen=True)
class NumberTargets:
    """Several numbers of a row, (n, k) float32, each standardised by itself; NaN where one of them is missing.

    parts: one for each column, all of one task.
    """

    parts: tuple[NumberTarget, ...]

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

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
        least = [part.min_std for part in self.parts]
        return {"_target_": NORMAL, "min_std": least} if any(least) else {}

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


Target = ClassTarget | NumberTarget | NumberTargets


def number_targets(target: Target) -> tuple[NumberTarget, ...]:
    """The numbers that a target consists of; none for classes."""
    return target.parts if isinstance(target, NumberTargets) else (target,) if isinstance(target, NumberTarget) else ()


def labels_of(target: Target, rows: NamedColumns, place: str) -> Tensor:
    """The labels of rows, as `encode` of the target makes them."""
    return target.encode(rows if isinstance(target, NumberTargets) else rows[target.name], place)


def target_to_plain(target: Target) -> dict[str, Any]:
    """As values that JSON can hold."""
    return {"task": target.task, **asdict(target)}


def target_from_plain(fields: Mapping[str, Any]) -> Target:
    """The inverse of `target_to_plain`. Raises KeyError or TypeError for missing or unknown fields."""
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

    Raises ConfigError for columns that are not all numbers, where there are several, and as each of them by itself.
    """
    questions = [_asked(values, task, place, missing) for values in every.values()]
    found = of_each(lambda ask: ask(), questions, place)
    names = list(every)
    if len(names) > 1 and loss in (HURDLE, LOG_NORMAL, GAMMA):
        raise ConfigError(
            f"loss._target_={loss} is of one target, and data.target names {len(names)}: loss=auto fits all"
        )
    if len(names) > 1:
        return _learn_several(dict(zip(names, found, strict=True)), of_training, place, missing)
    (name,), ((kind, reason),) = names, found
    if kind == "classification":
        return ClassTarget.learn(every[name], place), reason
    return NumberTarget.learn(of_training[name], place, kind, loss, every[name], missing), reason


def _asked(values: Series, task: Task | None, place: str, missing: Sequence[str]) -> Callable[[], tuple[Task, str]]:
    return lambda: find_task(values, place, missing) if task is None else (task, "as asked for")


def _learn_several(
    found: Mapping[str, tuple[Task, str]], of_training: Mapping[str, Series], place: str, missing: Sequence[str]
) -> tuple[NumberTargets, str]:
    if classes := [name for name, (task, _) in found.items() if task == "classification"]:
        numbers = [name for name in found if name not in classes]
        what = f"{classes[0]} holds classes and {numbers[0]} numbers" if numbers else f"{classes[0]} holds classes"
        raise ConfigError(
            f"{override('data.target', found)}: {what}, and several targets must all be numbers: make a run for each "
            "column of classes, or data.task=regression takes their numbers as quantities"
        )
    for name, values in of_training.items():
        if not len(values):
            raise ConfigError(f"{override('data.target', name)}: no training row of {place} has a value; leave it out")
    parts = of_each(
        lambda name: NumberTarget.learn(of_training[name], place, found[name][0], NORMAL, None, missing), found, place
    )
    return NumberTargets(tuple(parts)), "; ".join(f"{name}: {reason}" for name, (_, reason) in found.items())


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
        line = f"{place}: {what} missing in {missing} of {len(frame)} rows, which are left out"
        warnings.warn(line, BdlWarning, stacklevel=3)
    gaps = {name: int(count) for name, count in zip(names, (~seen[kept]).sum(0), strict=True) if count}
    if gaps:
        counted = brief_list([f"{name} is missing in {count:,}" for name, count in gaps.items()])
        line = f"{place}: {counted} of {len(kept):,} rows, which are kept: their other targets count"
        warnings.warn(line, BdlWarning, stacklevel=3)
    return kept
