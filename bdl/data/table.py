"""TableDataModule: rows of a CSV or Parquet file, split, encoded and standardised."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from torch import Tensor

from bdl.data.encoding import InputEncoding
from bdl.data.frame import Format, Frame, Reading, locate, require_columns
from bdl.data.module import Task
from bdl.data.split import hold_out, train_test_rows
from bdl.data.target import ClassTarget, NumberTarget, Target, find_task, target_from_plain, target_to_plain
from bdl.data.tensors import TensorDataModule
from bdl.errors import BdlWarning, ConfigError

FORMAT_VERSION = 1
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)


@dataclass(frozen=True)
class TableEncoding:
    """Everything that a run knows about the columns of its table; its `preprocessing.json`.

    Args:
        inputs: makes inputs of the network from rows.
        target: what the network predicts.
        id: columns that name the rows.
        reading: how the files of the table are written.
    """

    inputs: InputEncoding
    target: Target
    id: tuple[str, ...]
    reading: Reading

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON can hold."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "table",
            "columns": self.inputs.to_plain(),
            "target": target_to_plain(self.target),
            "id": list(self.id),
            "reading": self._reading_to_plain(),
        }

    def _reading_to_plain(self) -> dict[str, Any]:
        plain = {**asdict(self.reading), "missing": list(self.reading.missing)}
        if self.reading.thousands == "none":  # as runs from before there was this key have it
            del plain["thousands"]
        return plain

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> TableEncoding:
        """The inverse of `to_plain`. Raises ConfigError for what is none."""
        version = plain.get("format_version")
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"format_version is {version}, and this bdl reads {FORMAT_VERSION}: use the bdl that wrote the file"
            )
        try:
            inputs, target = InputEncoding.from_plain(plain["columns"]), target_from_plain(plain["target"])
            reading = Reading(**{**plain["reading"], "missing": tuple(plain["reading"]["missing"])})
            return TableEncoding(inputs, target, tuple(plain["id"]), reading)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"no encoding of a table, {error} is missing or wrong: restore the file") from error


class TableDataModule(TensorDataModule):
    """Rows of a table, whose columns become inputs and whose target becomes labels of a network.

    A column of numbers is standardised; a column of text becomes one input per category, and one for a category that no
    training row has. A missing value becomes the median or the most frequent category; where training rows have gaps, a
    further input says so. Rows without a target are left out. Everything that is learned about a column is learned from
    the training rows; the classes alone are those of all rows.

    The target of a regression is standardised; `preprocessing()` holds what undoes it.

    Args:
        path: the table; `package:airfoil.csv` is one that bdl brings along.
        target: the column to predict.
        task: None finds it: text, truth values and at most 20 different whole numbers are classes, other numbers a
            regression. "counts" is never found, only asked for.
        id: columns that name the rows. They are no inputs.
        drop: further columns that are no inputs.
        categorical: columns of numbers that name categories.
        max_levels: a text column with more categories is refused.
        format, separator, decimal, thousands, missing: as in `Reading`.
        test_fraction, split_seed: the test rows are those of scikit-learn's `train_test_split(test_size=test_fraction,
            random_state=split_seed)`.
        val_fraction, fold: share of the other rows held out for validation, as in `hold_out`.
        split_column: a column with "train", "val" and "test" in it, instead of a split by seed.
        test_path, val_path: files of the test and of the validation rows, instead of a split by seed.
        batch_size: rows per chain and step; None means all training rows, "auto" 100 or all of fewer.
        chains, seed, stack, replacement: as in `TensorBatches`.

    Warns with BdlWarning of what is left out or replaced, and counts it. Raises ConfigError, in one line that names the
    key, for a table that cannot be used.
    """

    def __init__(
        self,
        path: str | Path,
        target: str,
        task: Task | None = None,
        id: Sequence[str] = (),
        drop: Sequence[str] = (),
        categorical: Sequence[str] = (),
        max_levels: int = 50,
        format: Format = "csv",
        separator: str = "comma",
        decimal: str = "point",
        thousands: str = "none",
        missing: Sequence[str] = ("?",),
        test_fraction: float = 0.2,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        fold: int = 0,
        split_column: str | None = None,
        test_path: str | Path | None = None,
        val_path: str | Path | None = None,
        batch_size: int | Literal["auto"] | None = "auto",
        chains: int | None = None,
        seed: int = 0,
        stack: int = 0,
        replacement: bool = False,
    ):
        reading, place = Reading(format, separator, decimal, tuple(missing), thousands), locate(path).name
        others = {split: p for split, p in (("test", test_path), ("val", val_path)) if p is not None}
        files = {"data.path": path, **{f"data.{split}_path": p for split, p in others.items()}}
        written = [*categorical, *drop, *id]  # as text, so that no number in them is refused
        frames = dict(zip(("train", *others), (reading.read(p, key, written) for key, p in files.items()), strict=True))
        no_inputs = [target, *id, *drop, *([] if split_column is None else [split_column])]
        _check_columns(frames["train"], target, id, drop, categorical, split_column, place)
        places = dict.fromkeys(("train", "val", "test"), place) | {s: locate(p).name for s, p in others.items()}
        frames = {split: _with_target(frame, target, places[split]) for split, frame in frames.items()}
        if split_column is not None:
            frames = _split_by_column(frames, split_column, place)
        frames = _split_by_seed(frames, test_fraction, val_fraction, split_seed, fold, place)
        labels = pd.concat([frame[target] for frame in frames.values()])
        found, reason = find_task(labels, place) if task is None else (task, "as asked for")
        of_inputs = frames["train"].drop(columns=no_inputs)
        inputs = InputEncoding.learn(of_inputs, categorical, max_levels, place)
        rule: Target = (
            ClassTarget.learn(labels, place) if found == "classification"
            else NumberTarget.learn(frames["train"][target], place, found)
        )  # fmt: skip
        self.encoding = TableEncoding(inputs, rule, tuple(id), reading)
        splits = {split: self._encode(frame, split, places[split]) for split, frame in frames.items()}
        size = min(100, len(splits["train"][1])) if batch_size == "auto" else batch_size
        super().__init__(
            splits, batch_size=size, task=found, labels=getattr(rule, "labels", None), chains=chains, seed=seed,
            stack=stack, replacement=replacement,
        )  # fmt: skip
        self.name = place
        self.target_units = (rule.name, rule.mean, rule.std) if isinstance(rule, NumberTarget) else None
        self.overview = self._describe(of_inputs.shape[1], reason, task is None)

    def identity(self) -> dict[str, Any]:
        """Checksums of the encoding and of the training rows, and the name of the target."""
        x, y = self.splits["train"]
        rows = hashlib.sha256(x.numpy().tobytes() + y.numpy().tobytes()).hexdigest()
        encoding = hashlib.sha256(json.dumps(self.encoding.to_plain(), sort_keys=True).encode()).hexdigest()
        return {"target": self.encoding.target.name, "training_rows": rows[:16], "encoding": encoding[:16]}

    def preprocessing(self) -> dict[str, Any]:
        return self.encoding.to_plain()

    def _encode(self, frame: Frame, split: str, place: str) -> tuple[Tensor, Tensor]:
        encoding = self.encoding
        y = encoding.target.encode(frame[encoding.target.name], place)
        return encoding.inputs.encode(frame, f"data.{split}_path: ", f"{place}, {split} rows"), y

    def _describe(self, columns: int, reason: str, found: bool) -> str:
        """What was read and which task was found, in one line."""
        rows = ", ".join(f"{len(y):,} {split}" for split, (_, y) in self.splits.items() if len(y))
        possible = ("regression", "classification", "counts") if "whole" in reason else ("regression", "classification")
        other = [task for task in possible if task != self.task and "number" in reason]
        choice = f"; data.task={' or '.join(other)} says otherwise" if found and other else ""
        return (
            f"{self.name}: {rows} rows; {columns} columns as {self.input_shape[0]} inputs; "
            f"target {self.encoding.target.name}: {self.task} ({reason}{choice})"
        )


def _check_columns(
    frame: Frame, target: str, id: Sequence[str], drop: Sequence[str], categorical: Sequence[str],
    split_column: str | None, place: str,
) -> None:  # fmt: skip
    """Raise ConfigError for names of columns that the table lacks, and for a target that is an input too."""
    named = {"target": [target], "id": id, "drop": drop, "categorical": categorical}
    named |= {} if split_column is None else {"split_column": [split_column]}
    for key, columns in named.items():
        require_columns(frame, columns, f"data.{key}=", place)
    for key in ("id", "drop", "categorical"):
        if target in named[key]:
            raise ConfigError(f"data.{key} names {target}, which is the target: take it out of data.{key}")


def _with_target(frame: Frame, target: str, place: str) -> Frame:
    """The rows that have a target; the others are counted in a warning."""
    require_columns(frame, [target], "data.target=", place)
    missing = int(frame[target].isna().sum())
    if missing == len(frame):
        raise ConfigError(f"data.target={target}: no row of {place} has a value; choose another target")
    if missing:
        warnings.warn(
            f"{place}: the target {target} is missing in {missing} of {len(frame)} rows, which are left out",
            BdlWarning,
            3,
        )
    return frame[frame[target].notna()]


def _split_by_column(frames: dict[str, Frame], column: str, place: str) -> dict[str, Frame]:
    if len(frames) > 1:
        raise ConfigError(
            "data.split_column and data.test_path or data.val_path both split the table: keep one of them"
        )
    frame = frames["train"]
    names = frame[column].map(lambda value: SPLITS.get(str(value).strip().lower()))
    if names.isna().any():
        raise ConfigError(
            f"data.split_column={column} has {frame[column][names.isna()].iloc[0]!r} in {place}, which names no split "
            f"({names.isna().sum()} of {len(frame)} rows): write train, val or test"
        )
    missing = [split for split in ("train", "test") if not (names == split).any()]
    if missing:
        raise ConfigError(f"data.split_column={column} has no row with {missing[0]} in {place}: mark some")
    return {split: frame[names == split] for split in ("train", "val", "test") if (names == split).any()}


def _split_by_seed(
    frames: dict[str, Frame], test_fraction: float, val_fraction: float, seed: int, fold: int, place: str
) -> dict[str, Frame]:
    """Take test and validation rows out of the training rows where nothing else names them."""
    frame = frames["train"]
    if "test" not in frames:
        kept, test = train_test_rows(len(frame), test_fraction, seed)
        frames = {**frames, "train": frame.iloc[kept], "test": frame.iloc[test]}
    if "val" in frames:
        if val_fraction:
            raise ConfigError("data.val_fraction holds out rows beside those that are marked: set data.val_fraction=0")
        return frames
    frame = frames["train"]
    kept, held_out = (rows.numpy() for rows in hold_out(len(frame), val_fraction, seed, fold))
    return {**frames, "train": frame.iloc[kept], "val": frame.iloc[held_out]}
