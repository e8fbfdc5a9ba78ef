"""TableDataModule: rows of a CSV or Parquet file, split, encoded and standardised."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

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
from bdl.data.target import ClassTarget
from bdl.data.targets import (
    NumberTargets,
    Target,
    labels_of,
    learn_target,
    number_targets,
    rows_with_targets,
    target_from_plain,
    target_to_plain,
)
from bdl.data.tensors import TensorDataModule, count_batch
from bdl.data.together import Order
from bdl.data.values import Frame
from bdl.errors import ConfigError
from bdl.likelihoods import with_weights

FORMAT_VERSION = 4
READ = (3, FORMAT_VERSION)  # a file of version 3 has less in it


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
            "target": target_to_plain(self.target),
            "id": list(self.id),
            "reading": {**asdict(self.reading), "missing": list(self.reading.missing)},
            **({} if self.exposure is None else {"exposure": asdict(self.exposure)}),
            **({} if self.lags is None else {"lags": self.lags.to_plain()}),
        }

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> TableEncoding:
        """The inverse of `to_plain`. Raises ConfigError for another version, and for missing or wrong fields."""
        version = plain.get("format_version")
        if version not in READ:
            raise ConfigError(
                f"format_version is {version}, and this bdl reads {READ[0]} and {READ[1]}: use the bdl that wrote it"
            )
        try:
            inputs, target = InputEncoding.from_plain(plain["columns"]), target_from_plain(plain["target"])
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

    Each target of a regression is standardised by itself; `preprocessing()` holds what undoes it. Of several targets
    some may be missing in a row, whose labels are then NaN.

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
        place, names, files = locate(path).name, columns.targets, split.files(path)
        places = dict.fromkeys(("val", "test"), place) | {s: locate(p).name for s, (_, p) in files.items()}
        lagged = columns.lags or {}
        written = [name for name in columns.written if name not in lagged or name in columns.categorical]
        written += [split.group] if split.group else []
        frames = {s: reading.read(p, key, written) for s, (key, p) in files.items()}
        columns.check(frames["train"], split, place)
        lags = None
        if lagged:
            frames["train"], lags = _with_lags(frames["train"], columns, split, place, reading.day_first)
        tables = {s: Rows(frame, rows_with_targets(frame, names, places[s])) for s, frame in frames.items()}
        rows = split.rows(tables, place, reading.day_first)
        self.held_out = split.words(rows, place, reading.day_first)
        self.groups = split.groups(rows, place)
        train, no_inputs = rows["train"], columns.no_inputs(split)
        of_inputs = [name for name in train.columns if name not in no_inputs]
        labels = {name: pd.concat([part[name] for part in rows.values()]).dropna() for name in names}
        of_columns = columns.categorical, columns.max_levels, place, reading.day_first
        questions: list[Callable[[], Any]] = [
            lambda: learn_target(labels, {name: train[name].dropna() for name in names}, columns.asked, place, loss),
            lambda: InputEncoding.learn(train, of_inputs, *of_columns),
            lambda: None if columns.exposure is None else ExposureColumn.learn(train[columns.exposure], place),
        ]
        (rule, reason), inputs, exposure = of_each(lambda ask: ask(), questions, place)
        self.encoding = TableEncoding(inputs, rule, tuple(columns.id), reading.of_file(path), lags, exposure)
        weights = {} if columns.weight is None else weights_of(rows, columns.weight, places)
        splits = self._encode(rows, places)
        classes = rule.labels if isinstance(rule, ClassTarget) else None
        super().__init__(splits, batch_size=batch_size, task=rule.task, labels=classes, **batching)
        self.name = place
        numbers = number_targets(rule)
        self.target_units = tuple((part.name, part.mean, part.std) for part in numbers) or None
        self.loss = {} if isinstance(rule, ClassTarget) else rule.loss
        self.has_offset = exposure is not None
        if weights:
            self._weigh(weights, **batching)
        said = [
            exposure and f"mean = rate x {exposure.name}, on average {exposure.mean:.4g}",
            f"{columns.weight} weighs rows: those for training count as {weights['train'].sum():,.6g}; in scores each "
            "counts once, but for weighted_nll" if weights else "",
            self.held_out,
            *(part.words for part in numbers),
        ]  # fmt: skip
        self.overview = "; ".join([
            f"{place}: {self.rows} rows; {len(of_inputs)} columns as {self.input_shape[0] - self.has_offset} inputs",
            f"{'targets' if len(names) > 1 else 'target'} {rule.name}: {rule.task} ({reason})", *filter(None, said),
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
        if self.gaps:
            raise ConfigError("data.weight takes rows that have all targets: leave out the others, or the weights")
        self.weighted = True
        self.splits = {s: (x, with_weights(y, weights[s])) for s, (x, y) in self.splits.items()}
        self._use(TensorBatches(*self.splits["train"], self.batch_size, **batching))

    def identity(self) -> dict[str, Any]:
        """Checksums of the encoding and of the training rows, and the name of the target."""
        x, y = self.splits["train"]
        rows = hashlib.sha256(x.numpy().data)
        rows.update(y.numpy().data)
        encoding = checksum(self.encoding.to_plain())
        target = self.encoding.target
        name = list(target.names) if isinstance(target, NumberTargets) else target.name
        return {"target": name, "training_rows": rows.hexdigest()[:16], "encoding": encoding}

    def preprocessing(self) -> dict[str, Any]:
        return self.encoding.to_plain()

    def _encode(self, rows: Mapping[str, Rows], places: Mapping[str, str]) -> dict[str, tuple[Tensor, Tensor]]:
        """x and y of each split. The rows are given up: a column is let go once it is an input of all."""
        target = self.encoding.target
        y = {s: labels_of(target, part, places[s]) for s, part in rows.items()}
        x = {}
        for s in sorted(rows, key="train".__eq__):  # the largest split last
            key, place = f"data.{s}_path: ", f"{places[s]}, {s} rows"
            x[s] = self.encoding.encode(rows[s], key, place, last=s == "train")
        return {s: (x[s], y[s]) for s in rows}


def _with_lags(
    frame: Frame, columns: Columns, split: TableSplit, place: str, day_first: bool | None
) -> tuple[Frame, Lags]:
    """The rows that have all inputs from earlier rows. Raises ConfigError for rows in several files."""
    if split.test_path is not None or split.val_path is not None:
        raise ConfigError("data.lags takes all rows from one file: data.split_column marks those for testing in it")
    if len(columns.targets) > 1:
        raise ConfigError("data.lags takes one target, and data.target names several: make a run for each of them")
    order = None if split.order is None else Order.learn(frame[split.order], day_first, place)
    lags = Lags.checked(columns.lags or {}, frame, columns.targets[0], order, split.group, place)
    lags, frame, complete = lags.learn(frame, place)
    return frame[complete], lags


def read_table(
    path: str | Path,
    target: str | Sequence[str],
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
