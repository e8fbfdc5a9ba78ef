"""What a user says of a table: what its columns are for, and which of its rows are for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from bdl.data.frame import require_columns
from bdl.data.kinds import of_each
from bdl.data.module import Task
from bdl.data.split import split_by_seed
from bdl.data.values import Frame, Series
from bdl.errors import ConfigError

SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are for; all that are not named are inputs.

    Args:
        target: the column to predict, or several columns of numbers.
        task: None finds it: text, truth values and two whole numbers are classes, decimals and many whole numbers a
            regression. Few whole numbers may be either, and need it. "counts" is never found, only asked for.
        id: columns that name the rows. They are no inputs.
        drop: further columns that are no inputs.
        categorical: columns of numbers that name categories.
        max_levels: a text column with more categories is refused.
    """

    target: str | Sequence[str]
    task: Task | None = None
    id: Sequence[str] = ()
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    max_levels: int = 50

    @property
    def targets(self) -> list[str]:
        return [self.target] if isinstance(self.target, str) else list(self.target)

    @property
    def written(self) -> list[str]:
        """Columns that are read as text, so that no number in them is refused."""
        return [*self.categorical, *self.drop, *self.id]

    def no_inputs(self, split_column: str | None) -> list[str]:
        return [*self.targets, *self.id, *self.drop, *([] if split_column is None else [split_column])]

    def check(self, frame: Frame, split_column: str | None, place: str) -> None:
        """Raise ConfigError for names of columns that the table lacks, and for a target that is named twice."""
        if not self.targets:
            raise ConfigError("data.target=[] names no column: name the column to predict")
        if twice := [name for name in self.targets if self.targets.count(name) > 1]:
            raise ConfigError(f"data.target names {twice[0]} twice: name each target once")
        named = {"target": self.targets, "id": self.id, "drop": self.drop, "categorical": self.categorical}
        named |= {} if split_column is None else {"split_column": [split_column]}
        of_each(lambda key: require_columns(frame, named[key], f"data.{key}=", place), named, place)
        for key in ("id", "drop", "categorical", "split_column"):
            if both := [name for name in named.get(key, ()) if name in self.targets]:
                raise ConfigError(f"data.{key} names {both[0]}, which is the target: take it out of data.{key}")


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, of which each column is copied when it is asked for.

    Splits of a table are rows of the same one, because a copy of each split would double the memory of a large table.

    Args:
        table: all rows, with a row number for index.
        at: (n,) positions of these rows.
    """

    table: Frame
    at: np.ndarray

    def __len__(self) -> int:
        return len(self.at)

    @property
    def columns(self) -> pd.Index:
        return self.table.columns

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
    """Which rows of a table are for training, validation and testing: by seed, by a column, or by files.

    Args:
        test_fraction, seed: the test rows are those of scikit-learn's `train_test_split(test_size=test_fraction,
            random_state=seed)`.
        val_fraction, fold: share of the other rows held out for validation, as in `hold_out`.
        column: a column with "train", "val" and "test" in it, instead of a split by seed.
        test_path, val_path: files of the test and of the validation rows, instead of a split by seed.
        all_rows: whether the rows of all splits are for training, and none is held out.
    """

    test_fraction: float = 0.2
    val_fraction: float = 0.0
    seed: int = 0
    fold: int = 0
    column: str | None = None
    test_path: str | Path | None = None
    val_path: str | Path | None = None
    all_rows: bool = False

    def files(self, path: str | Path) -> dict[str, tuple[str, str | Path]]:
        """The key and the file of each split that has one; the table itself stands for "train"."""
        others = {"test": self.test_path, "val": self.val_path}
        return {"train": ("data.path", path)} | {s: (f"data.{s}_path", p) for s, p in others.items() if p is not None}

    def rows(self, tables: dict[str, Rows], place: str) -> dict[str, Rows]:
        """The rows of the three splits, from those of the files.

        Raises ConfigError for two ways of splitting at once, and for a split without rows.
        """
        if self.column is not None:
            tables = self._by_column(tables, self.column, place)
        if self.all_rows:
            every, *others = tables.values()
            if any(rows.table is not every.table for rows in others):  # one file for each
                table = pd.concat([rows.table.iloc[rows.at] for rows in tables.values()])
                every = Rows(table, np.arange(len(table)))
            elif others:
                every = Rows(every.table, np.concatenate([rows.at for rows in tables.values()]))
            none = every.take(np.arange(0))
            return {"train": every, "val": none, "test": none}
        if "val" in tables and self.val_fraction:
            raise ConfigError("data.val_fraction holds out rows beside those that are marked: set data.val_fraction=0")
        fractions = self.test_fraction, self.val_fraction
        return split_by_seed(tables, Rows.take, *fractions, self.seed, self.fold)

    def _by_column(self, tables: dict[str, Rows], column: str, place: str) -> dict[str, Rows]:
        if len(tables) > 1:
            raise ConfigError(
                "data.split_column and data.test_path or data.val_path both split the table: keep one of them"
            )
        rows = tables["train"]
        names = rows[column].map(lambda value: SPLITS.get(str(value).strip().lower()))
        if names.isna().any():
            raise ConfigError(
                f"data.split_column={column} has {rows[column][names.isna()].iloc[0]!r} in {place}, which names no "
                f"split ({names.isna().sum()} of {len(rows)} rows): write train, val or test"
            )
        missing = [split for split in ("train", "test") if not (names == split).any()]
        if missing:
            raise ConfigError(f"data.split_column={column} has no row with {missing[0]} in {place}: mark some")
        marked = {split: np.flatnonzero(names == split) for split in ("train", "val", "test")}
        return {split: rows.take(positions) for split, positions in marked.items() if len(positions)}
