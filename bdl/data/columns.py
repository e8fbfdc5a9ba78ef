"""What a user says of a table: what its columns are for, and which of its rows are for what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from bdl.advice import override
from bdl.data.frame import require_columns
from bdl.data.kinds import of_each
from bdl.data.split import divide, hold_out, train_test_rows
from bdl.data.together import Order, Parts, check_apart, group_codes, groups_for_test, last_rows
from bdl.data.values import Frame, Series, Task
from bdl.display import count_of
from bdl.errors import ConfigError

SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are for; all that are not named are inputs.

    Args:
        target: the column to predict, or several columns of numbers, or of classes.
        task: None finds it: text, truth values and two whole numbers are classes, decimals and many whole numbers a
            regression. Few whole numbers may be either, and need it. "counts" is never found, only asked for.
        id: columns that name the rows. They are no inputs.
        drop: further columns that are no inputs.
        categorical: columns of numbers that name categories.
        max_levels: a text column with more categories is refused.
        exposure: the column of exposures, over which the counts of the target were collected: their mean is exposure x
            rate. It makes the task "counts".
        weight: the column of weights. A row of weight 2 counts as the row twice.
        select: "auto" keeps few inputs of a table of more columns than rows, see `few_inputs`; "all" keeps all.
        lags: columns whose earlier values are inputs, and how many rows earlier, such as {"sales": [1, 7]}. The rows
            are sorted by `TableSplit.order`, within each `TableSplit.group`.
    """

    target: str | Sequence[str]
    task: Task | None = None
    id: Sequence[str] = ()
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    max_levels: int = 50
    lags: Mapping[str, Sequence[int]] | None = None
    exposure: str | None = None
    weight: str | None = None
    select: str = "auto"

    def __post_init__(self) -> None:
        if self.select not in ("auto", "all"):
            raise ConfigError(f"data.select must be auto or all, got {self.select!r}")
        if self.exposure is not None and self.task not in (None, "counts"):
            raise ConfigError(
                f"{override('data.exposure', self.exposure)} is the exposure of a count, and data.task={self.task}: "
                "set data.task=counts, or leave data.exposure out"
            )

    @property
    def asked(self) -> Task | None:
        """The task, as far as it need not be found."""
        return "counts" if self.exposure is not None else self.task

    @property
    def targets(self) -> list[str]:
        return [self.target] if isinstance(self.target, str) else list(self.target)

    def written(self, split: TableSplit) -> list[str]:
        """Columns that are read as text, so that no number in them is refused; but lags need numbers."""
        others = (name for name in (*self.drop, *self.id) if name not in (self.lags or ()))
        return [*self.categorical, *others, *([split.group] if split.group else [])]

    def inputs(self, columns: Iterable[str], split: TableSplit) -> list[str]:
        """Those of a table's columns that are inputs. A column of groups is one where `categorical` names it."""
        group = None if split.group in self.categorical else split.group
        others = [*self.targets, *self.id, *self.drop, self.exposure, self.weight, split.column, group]
        return [name for name in columns if name not in others]

    def check(self, frame: Frame, split: TableSplit, place: str) -> None:
        """Raise ConfigError for names of columns that the table lacks, and for a target that is named twice."""
        if not self.targets:
            raise ConfigError("data.target=[] names no column: name the column to predict")
        if twice := [name for name in self.targets if self.targets.count(name) > 1]:
            raise ConfigError(f"data.target names {twice[0]} twice: name each target once")
        named = {"target": self.targets, "id": self.id, "drop": self.drop, "categorical": self.categorical}
        of_split = {"split_column": split.column, "order": split.order, "group": split.group}
        singles = {"exposure": self.exposure, "weight": self.weight}
        named |= {key: [column] for key, column in {**of_split, **singles}.items() if column is not None}
        of_each(lambda key: require_columns(frame, named[key], f"data.{key}=", place), named, place)
        uses = [("target", name) for name in self.targets] + [(use, name) for use, name in singles.items() if name]
        for use, column in uses:
            for key in named.keys() - {"target"} if use == "target" else ("id", "drop", "categorical"):
                if column in named[key]:
                    raise ConfigError(f"data.{key} names {column}, which is the {use}: take it out of data.{key}")


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, of which each column is copied when it is asked for.

    Splits of a table are rows of the same one, because a copy of each split would double the memory of a large table.

    Args:
        table: the columns of all rows by name, with a row number for index. A frame of pandas copies its list of all
            columns whenever it gives up one.
        at: (n,) positions of these rows.
    """

    table: dict[str, Series]
    at: np.ndarray

    def __len__(self) -> int:
        return len(self.at)

    @property
    def columns(self) -> pd.Index:
        return pd.Index(self.table)

    def __getitem__(self, name: str) -> Series:
        return self.table[name].iloc[self.at]

    def pop(self, name: str) -> Series:
        """A column, which the table then lacks, for these rows and all others."""
        return self.table.pop(name).iloc[self.at]

    def take(self, positions: np.ndarray) -> Rows:
        """The rows at these positions among them."""
        return Rows(self.table, self.at[positions])


@dataclass(frozen=True)
class TableSplit:
    """Which rows of a table are for training, validation and testing: by seed, in an order, by a column, or by files.

    Args:
        test_fraction, seed: the test rows are those of scikit-learn's `train_test_split(test_size=test_fraction,
            random_state=seed)`.
        val_fraction, fold: share of the other rows held out for validation, as in `hold_out`.
        column: a column with "train", "val" and "test" in it, instead of a split by seed.
        test_path, val_path: files of the test and of the validation rows, instead of a split by seed.
        all_rows: whether the rows of all splits are for training, and none is held out.
        order: a column of numbers or dates, instead of a split by seed: the last rows are for testing, those before
            them for validation. Rows that are equal in it stay together.
        group: a column whose rows of one value are never divided among splits. The shares are then shares of groups;
            those for testing are chosen as `GroupShuffleSplit` does, whatever the order is.
        drop_rows: rows of the table, 1 the first, that are no items, such as totals.
    """

    test_fraction: float = 0.2
    val_fraction: float = 0.0
    seed: int = 0
    fold: int = 0
    column: str | None = None
    test_path: str | Path | None = None
    val_path: str | Path | None = None
    all_rows: bool = False
    order: str | None = None
    group: str | None = None
    drop_rows: Sequence[int] = ()

    def without_dropped(self, frame: Frame, place: str) -> Frame:
        """The table without the rows of `drop_rows`. Raises ConfigError for rows that it has not."""
        if not self.drop_rows:
            return frame
        for row in self.drop_rows:
            if isinstance(row, bool) or not isinstance(row, int) or not 1 <= row <= len(frame):
                raise ConfigError(
                    f"data.drop_rows must hold whole numbers from 1 to {len(frame)}, the rows of {place} below its "
                    f"line of names, got {row!r}"
                )
        return frame.drop(index=[row - 1 for row in self.drop_rows]).infer_objects()

    def files(self, path: str | Path) -> dict[str, tuple[str, str | Path]]:
        """The key and the file of each split that has one; the table itself stands for "train"."""
        others = {"test": self.test_path, "val": self.val_path}
        return {"train": ("data.path", path)} | {s: (f"data.{s}_path", p) for s, p in others.items() if p is not None}

    def rows(self, tables: dict[str, Rows], place: str, day_first: bool | None = None) -> dict[str, Rows]:
        """The rows of the three splits, from those of the files.

        Raises ConfigError for two ways of splitting at once, for a split without rows, for groups that are divided, and
        for an order that does not sort.
        """
        if self.column is not None:
            tables = self._by_column(tables, self.column, place)
        if self.all_rows:
            every, *others = tables.values()
            if any(rows.table is not every.table for rows in others):  # one file for each
                table = {name: pd.concat([rows[name] for rows in tables.values()]) for name in every.columns}
                every = Rows(table, np.arange(sum(map(len, tables.values()))))
            elif others:
                every = Rows(every.table, np.concatenate([rows.at for rows in tables.values()]))
            none = every.take(np.arange(0))
            return {"train": every, "val": none, "test": none}
        if "val" in tables and self.val_fraction:
            raise ConfigError("data.val_fraction holds out rows beside those that are marked: set data.val_fraction=0")
        rules = (
            self._by_group(place) if self.group else self._by_order(place, day_first) if self.order else self._by_seed
        )
        rows = divide(tables, Rows.take, lambda train: rules(train, "test"), lambda train: rules(train, "val"))
        if self.group is not None:
            check_apart({split: part[self.group] for split, part in rows.items()}, self.group)
        return {split: rows[split] for split in ("train", "val", "test")}

    def words(self, rows: Mapping[str, Rows], place: str, day_first: bool | None) -> str | None:
        """How rows were held out that are not exchangeable, in words; None for a split by seed."""
        if self.group is not None:
            counts = {split: part[self.group].nunique() for split, part in rows.items() if len(part)}
            return (
                f"rows of one {self.group} stay together, {', '.join(f'{n:,} {s}' for s, n in counts.items())} groups"
            )
        test = rows["test"]
        if self.order is None or self.column is not None or self.test_path is not None or not len(test):
            return None
        first = test[self.order].iloc[int(np.argmin(self.key(test, place, day_first)))]
        return f"ordered by {self.order}, the last rows, from {first} on, are for testing"

    def groups(self, rows: Mapping[str, Rows], place: str) -> dict[str, torch.Tensor]:
        """(n,) int64 groups of the rows of each split; {} without groups."""
        if self.group is None:
            return {}
        codes = group_codes(pd.concat([part[self.group] for part in rows.values()]), place)
        ends = np.cumsum([len(part) for part in rows.values()])[:-1]
        return {s: torch.from_numpy(part) for s, part in zip(rows, np.split(codes, ends), strict=True)}

    def key(self, rows: Rows, place: str, day_first: bool | None) -> np.ndarray:
        """(n,) numbers by which `order` sorts the rows. Only a whole table tells how its dates are written."""
        values = rows.table[str(self.order)]
        return Order.learn(values, day_first, place).key(values, place)[rows.at]

    def _by_seed(self, rows: Rows, split: str) -> Parts:
        if split == "test":
            return train_test_rows(len(rows), self.test_fraction, self.seed)
        kept, held_out = hold_out(len(rows), self.val_fraction, self.seed, self.fold)
        return kept.numpy(), held_out.numpy()

    def _by_group(self, place: str) -> Callable[[Rows, str], Parts]:
        def rule(rows: Rows, split: str) -> Parts:
            codes = group_codes(rows[str(self.group)], place)
            if split == "test":
                return groups_for_test(codes, self.test_fraction, self.seed)
            kept, out = hold_out(len(rows), self.val_fraction, self.seed, self.fold, torch.from_numpy(codes))
            return kept.numpy(), out.numpy()

        return rule

    def _by_order(self, place: str, day_first: bool | None) -> Callable[[Rows, str], Parts]:
        if self.fold:
            raise ConfigError(
                f"data.fold={self.fold} names a part of rows in random order: leave it out, or data.order"
            )

        def rule(rows: Rows, split: str) -> Parts:
            _, held_out = self._by_seed(rows, split)
            return last_rows(self.key(rows, place, day_first), len(held_out), override("data.order", str(self.order)))

        return rule

    def _by_column(self, tables: dict[str, Rows], column: str, place: str) -> dict[str, Rows]:
        if len(tables) > 1:
            raise ConfigError(
                "data.split_column and data.test_path or data.val_path both split the table: keep one of them"
            )
        rows = tables["train"]
        names = rows[column].map(lambda value: SPLITS.get(str(value).strip().lower()))
        name = override("data.split_column", column)
        if names.isna().any():
            raise ConfigError(
                f"{name} has {rows[column][names.isna()].iloc[0]!r} in {place}, which names no "
                f"split ({names.isna().sum()} of {count_of(len(rows), 'row')}): write train, val or test"
            )
        missing = [split for split in ("train", "test") if not (names == split).any()]
        if missing:
            raise ConfigError(f"{name} has no row with {missing[0]} in {place}: mark some")
        marked = {split: np.flatnonzero(names == split) for split in ("train", "val", "test")}
        return {split: rows.take(positions) for split, positions in marked.items() if len(positions)}
