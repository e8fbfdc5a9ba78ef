"""TableDataModule: rows of a CSV or Parquet file, split, encoded and standardised."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bdl.data.columns import Columns, Rows, TableSplit
from bdl.data.encoding import InputEncoding
from bdl.data.exposure import ExposureColumn, weights_of
from bdl.data.frame import Format, Reading, locate, require_columns
from bdl.data.kinds import of_each
from bdl.data.lags import Lags
from bdl.data.loader import Batching, TensorBatches
from bdl.data.module import Task
from bdl.data.repeated import warn_of_repeated
from bdl.data.target import ClassTarget, NumberTarget, Target, find_task
from bdl.data.tensors import TensorDataModule, count_batch
from bdl.data.together import Order
from bdl.data.values import Frame, Series
from bdl.errors import BdlWarning, ConfigError
from bdl.likelihoods import with_weights

FORMAT_VERSION = 3


@dataclass(frozen=True)
class TableEncoding:
    """Everything that a run knows about the columns of its table; its `preprocessing.json`.

    Args:
        inputs: makes inputs of the network from rows.
        target: what the network predicts.
        id: columns that name the rows.
        reading: how the files of the table are written.
        exposure: makes the offset of a log rate; None without one.
        lags: the inputs that come from earlier rows.
    """

    inputs: InputEncoding
    target: Target
    id: tuple[str, ...]
    reading: Reading
    lags: Lags | None = None
    exposure: ExposureColumn | None = None

    def encode(self, frame: Frame, key: str, place: str, last: bool = False) -> Tensor:
        """(n, features) float32 as the network reads them, as `InputEncoding.encode`; an offset is the last one."""
        if self.exposure is None:
            return self.inputs.encode(frame, key, place, last)
        require_columns(frame, [self.exposure.name], key, place)
        offset = torch.from_numpy(self.exposure.encode(frame[self.exposure.name], place))
        return torch.cat([self.inputs.encode(frame, key, place, last), offset], 1)

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON can hold."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "table",
            "columns": self.inputs.to_plain(),
            "target": {"task": self.target.task, **asdict(self.target)},
            "id": list(self.id),
            "reading": {**asdict(self.reading), "missing": list(self.reading.missing)},
            **({} if self.exposure is None else {"exposure": asdict(self.exposure)}),
            **({} if self.lags is None else {"lags": self.lags.to_plain()}),
        }

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> TableEncoding:
        """The inverse of `to_plain`. Raises ConfigError for another version, and for missing or wrong fields."""
        version = plain.get("format_version")
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"format_version is {version}, and this bdl reads {FORMAT_VERSION}: use the bdl that wrote the file"
            )
        try:
            inputs, fields = InputEncoding.from_plain(plain["columns"]), plain["target"]
            classes = fields["task"] == "classification"
            target = ClassTarget(fields["name"], tuple(fields["labels"])) if classes else NumberTarget(**fields)
            reading = Reading(**{**plain["reading"], "missing": tuple(plain["reading"]["missing"])})
            lags = Lags.from_plain(plain["lags"]) if "lags" in plain else None
            exposure = ExposureColumn(**plain["exposure"]) if "exposure" in plain else None
            return TableEncoding(inputs, target, tuple(plain["id"]), reading, lags, exposure)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"no encoding of a table, {error} is missing or wrong: restore the file") from error


def checksum(plain: Mapping[str, Any]) -> str:
    """A checksum of what `TableEncoding.to_plain` gave, or of the same values read from a file."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


class TableDataModule(TensorDataModule):
    """Rows of a table, whose columns become inputs and whose target becomes labels of a network.

    A column of numbers is standardised; a column of text becomes one input per category, and one for a category that no
    training row has; a column of dates becomes its parts, see `DateColumn`. A missing value becomes the median or the
    most frequent category; where training rows have gaps, a further input says so. Rows without a target are left out.
    All that is learned about a column is learned from the training rows; the classes alone are those of all rows.

    The target of a regression is standardised; `preprocessing()` holds what undoes it.

    Args:
        path: the table; `package:airfoil.csv` is one that bdl brings along.
        columns: what the columns are for.
        reading: how the files of the table are written.
        split: which rows are for training, validation and testing.
        batch_size: rows per chain and step; None means all training rows, "auto" 100 or all of fewer.
        loss: the class of the likelihood that will be used, such as "bdl.LogNormalNLL", because the units in which the
            network sees the target depend on it. None: one that fits the values, see `find_law`.
        batching: chains, seed, stack and replacement, as in `TensorBatches`.

    `read_table` makes one of flat arguments, which are the keys of `data=csv`.

    Warns with BdlWarning of what is left out or replaced, and counts it. Raises ConfigError, in one line that names the
    key, for a table that cannot be used.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Columns,
        reading: Reading = Reading(),  # noqa: B008
        split: TableSplit = TableSplit(),  # noqa: B008
        *,
        batch_size: int | Literal["auto"] | None = "auto",
        loss: str | None = None,
        **batching: Unpack[Batching],
    ):
        place, target, files = locate(path).name, columns.target, split.files(path)
        places = dict.fromkeys(("val", "test"), place) | {s: locate(p).name for s, (_, p) in files.items()}
        lagged = columns.lags or {}
        written = [name for name in columns.written if name not in lagged or name in columns.categorical]
        written += [split.group] if split.group else []
        frames = {s: reading.read(p, key, written) for s, (key, p) in files.items()}
        columns.check(frames["train"], split, place)
        lags = None
        if lagged:
            frames["train"], lags = _with_lags(frames["train"], columns, split, place, reading.day_first)
        tables = {s: _with_target(frame, target, places[s]) for s, frame in frames.items()}
        rows = split.rows(tables, place, reading.day_first)
        self.held_out = split.words(rows, place, reading.day_first)
        self.groups = split.groups(rows, place)
        train, no_inputs = rows["train"], columns.no_inputs(split)
        of_inputs = [name for name in train.columns if name not in no_inputs]
        labels = pd.concat([part[target] for part in rows.values()])
        of_columns = columns.categorical, columns.max_levels, place, reading.day_first
        questions: list[Callable[[], Any]] = [
            lambda: _target_of(labels, train[target], columns.asked, place, loss),
            lambda: InputEncoding.learn(train, of_inputs, *of_columns),
            lambda: None if columns.exposure is None else ExposureColumn.learn(train[columns.exposure], place),
        ]
        (rule, reason), inputs, exposure = of_each(lambda ask: ask(), questions, place)
        self.encoding = TableEncoding(inputs, rule, tuple(columns.id), reading.of_file(path), lags, exposure)
        weights = {} if columns.weight is None else weights_of(rows, columns.weight, places)
        splits = self._encode(rows, places)
        names = rule.labels if isinstance(rule, ClassTarget) else None
        super().__init__(splits, batch_size=batch_size, task=rule.task, labels=names, **batching)
        self.name = place
        self.target_units = (rule.name, rule.mean, rule.std) if isinstance(rule, NumberTarget) else None
        self.loss = rule.loss if isinstance(rule, NumberTarget) else {}
        self.has_offset = exposure is not None
        if weights:
            self._weigh(weights, **batching)
        said = [
            exposure and f"mean = rate x {exposure.name}, on average {exposure.mean:.4g}",
            f"{columns.weight} weighs rows: those for training count as {weights['train'].sum():,.6g}; in scores each "
            "counts once, but for weighted_nll" if weights else "",
            self.held_out,
            rule.words if isinstance(rule, NumberTarget) else "",
        ]  # fmt: skip
        self.overview = "; ".join([
            f"{place}: {self.rows} rows; {len(of_inputs)} columns as {self.input_shape[0] - self.has_offset} inputs",
            f"target {rule.name}: {rule.task} ({reason})", *filter(None, said),
        ])  # fmt: skip
        if len(inputs.written) < len(inputs.names):  # categories alone may repeat without being copies
            warn_of_repeated(splits, place)

    def with_batches(
        self, batch_size: int | Literal["auto"] | None = "auto", **batching: Unpack[Batching]
    ) -> TableDataModule:
        """The same rows, which are not copied, in other training batches."""
        other = copy.copy(self)
        x, y = self.splits["train"]
        other._use(TensorBatches(x, y, count_batch(batch_size, len(y)), **batching))
        return other

    def _weigh(self, weights: Mapping[str, Tensor], **batching: Unpack[Batching]) -> None:
        """Let the labels of each split carry the weights (n,) of its rows."""
        self.weighted = True
        self.splits = {s: (x, with_weights(y, weights[s])) for s, (x, y) in self.splits.items()}
        self._use(TensorBatches(*self.splits["train"], self.batch_size, **batching))

    def identity(self) -> dict[str, Any]:
        """Checksums of the encoding and of the training rows, and the name of the target."""
        x, y = self.splits["train"]
        rows = hashlib.sha256(x.numpy().data)
        rows.update(y.numpy().data)
        encoding = checksum(self.encoding.to_plain())
        return {"target": self.encoding.target.name, "training_rows": rows.hexdigest()[:16], "encoding": encoding}

    def preprocessing(self) -> dict[str, Any]:
        return self.encoding.to_plain()

    def _encode(self, rows: Mapping[str, Rows], places: Mapping[str, str]) -> dict[str, tuple[Tensor, Tensor]]:
        """x and y of each split. The rows are given up: a column is let go once it is an input of all."""
        target = self.encoding.target
        y = {s: target.encode(part[target.name], places[s]) for s, part in rows.items()}
        x = {}
        for s in sorted(rows, key="train".__eq__):  # the largest split last
            key, place = f"data.{s}_path: ", f"{places[s]}, {s} rows"
            x[s] = self.encoding.encode(rows[s], key, place, last=s == "train")
        return {s: (x[s], y[s]) for s in rows}


def _target_of(
    labels: Series, of_training: Series, task: Task | None, place: str, loss: str | None
) -> tuple[Target, str]:
    """What the network predicts, and why in a few words. labels: of all rows."""
    found, reason = find_task(labels, place) if task is None else (task, "as asked for")
    if found == "classification":
        return ClassTarget.learn(labels, place), reason
    return NumberTarget.learn(of_training, place, found, loss, labels), reason


def _with_lags(
    frame: Frame, columns: Columns, split: TableSplit, place: str, day_first: bool | None
) -> tuple[Frame, Lags]:
    """The rows that have all inputs from earlier rows. Raises ConfigError for rows in several files."""
    if split.test_path is not None or split.val_path is not None:
        raise ConfigError("data.lags takes all rows from one file: data.split_column marks those for testing in it")
    order = None if split.order is None else Order.learn(frame[split.order], day_first, place)
    lags = Lags.checked(columns.lags or {}, frame, columns.target, order, split.group, place)
    lags, frame, complete = lags.learn(frame, place)
    return frame[complete], lags


def _with_target(frame: Frame, target: str, place: str) -> Rows:
    """The rows that have a target; the others are counted in a warning."""
    require_columns(frame, [target], "data.target=", place)
    missing = int(frame[target].isna().sum())
    if missing == len(frame):
        raise ConfigError(f"data.target={target}: no row of {place} has a value; choose another target")
    if missing:
        line = f"{place}: the target {target} is missing in {missing} of {len(frame)} rows, which are left out"
        warnings.warn(line, BdlWarning, stacklevel=3)
    return Rows(frame, np.flatnonzero(frame[target].notna()))


def read_table(
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
    day_first: bool | None = None,
    encoding: str | None = None,
    test_fraction: float = 0.2,
    val_fraction: float = 0.0,
    split_seed: int = 0,
    fold: int = 0,
    split_column: str | None = None,
    test_path: str | Path | None = None,
    val_path: str | Path | None = None,
    all_rows: bool = False,
    exposure: str | None = None,
    weight: str | None = None,
    order: str | None = None,
    group: str | None = None,
    lags: Mapping[str, Sequence[int]] | None = None,
    batch_size: int | Literal["auto"] | None = "auto",
    loss: str | None = None,
    **batching: Unpack[Batching],
) -> TableDataModule:
    """The data module of a table, from the keys of `data=csv`; `Columns`, `Reading` and `TableSplit` explain them."""
    columns = Columns(target, task, id, drop, categorical, max_levels, lags, exposure, weight)
    reading = Reading(format, separator, decimal, tuple(missing), thousands, day_first, encoding)
    files = test_path, val_path, all_rows
    split = TableSplit(test_fraction, val_fraction, split_seed, fold, split_column, *files, order, group)
    return TableDataModule(path, columns, reading, split, batch_size=batch_size, loss=loss, **batching)
