"""TableDataModule: rows of a CSV or Parquet file, split, encoded and standardised."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

import pandas as pd
import torch
from torch import Tensor

from bdl.data.columns import Columns, Rows, TableSplit
from bdl.data.encoding import InputEncoding
from bdl.data.exposure import ExposureColumn, positive_numbers
from bdl.data.frame import Format, Reading, locate
from bdl.data.group_question import warn_of_groups
from bdl.data.kinds import of_each
from bdl.data.lags import Lags
from bdl.data.loader import Batching, TensorBatches
from bdl.data.missing_codes import warn_of_codes
from bdl.data.odd_values import warn_of_odd_values
from bdl.data.repeated import warn_of_repeated
from bdl.data.sparse import with_few_inputs
from bdl.data.table_encoding import TableEncoding, checksum
from bdl.data.target import ClassTarget
from bdl.data.target_copies import warn_of_copies
from bdl.data.targets import ClassTargets, Targets, labels_of, learn_target, number_targets, rows_with_targets
from bdl.data.tensors import TensorDataModule, count_batch
from bdl.data.together import Order
from bdl.data.total_rows import warn_of_totals
from bdl.data.units import words_of_units
from bdl.data.values import Frame, Task
from bdl.display import count_of
from bdl.errors import ConfigError
from bdl.likelihoods import with_weights


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
        place, files = locate(path).name, split.files(path)
        places = dict.fromkeys(("val", "test"), place) | {s: locate(p).name for s, (_, p) in files.items()}
        readings = {s: reading.of_file(p, key) for s, (key, p) in files.items()}  # each has an encoding of its own
        of_run = readings["train"]
        frames = {s: readings[s].read(p, key, columns.written(split)) for s, (key, p) in files.items()}
        columns.check(frames["train"], split, place)
        frames["train"] = split.without_dropped(frames["train"], place)
        of_run = _with_units(of_run, frames["train"], columns, split)
        if (in_units := words_of_units(frames["train"], of_run.units)) is not None:
            readings = {s: dataclasses.replace(each, units=of_run.units) for s, each in readings.items()}
            frames = {s: of_run.with_gaps(frame) for s, frame in frames.items()}
        for s, frame in frames.items():
            warn_of_totals(frame, places[s], None if s == "train" else "take such rows out of the file")
        lags = None
        if columns.lags:
            frames["train"], lags = _with_lags(frames["train"], columns, split, place, reading.day_first)
        kept = {s: rows_with_targets(frame, columns.targets, places[s]) for s, frame in frames.items()}
        tables = {s: Rows(dict(frame.items()), kept[s]) for s, frame in frames.items()}
        rows = split.rows(tables, place, reading.day_first)
        self._lines = {s: part[columns.targets[0]].index for s, part in rows.items()}
        self._files = {s: (readings.get(s, of_run), *files.get(s, files["train"])) for s in rows}
        self._in_one_file = not split.all_rows
        names = columns.inputs(rows["train"].columns, split)
        numbers = [name for name in (*columns.targets, *names) if name not in columns.categorical]
        warn_of_codes(frames["train"], numbers, reading.missing, place, reading.day_first)
        warn_of_odd_values(frames["train"], [*columns.targets, *names], place)
        del frames  # the tables' columns are let go one by one
        warn_of_groups(rows, columns, split, place)
        warn_of_copies(rows["train"], columns.targets, names, place)
        self.name, self.held_out = place, split.words(rows, place, reading.day_first)
        self.groups = split.groups(rows, place)
        (target, reason), inputs, exposure = _learn(rows, columns, names, place, reading, loss)
        self.encoding = TableEncoding(inputs, target, tuple(columns.id), of_run, lags, exposure)
        wide = columns.select == "auto" and len(inputs.columns) > len(rows["train"])
        widths = inputs.widths(rows["train"], place) if wide else []
        splits, few = self._encode(rows, places), None
        if wide:
            self.encoding, splits, few = with_few_inputs(self.encoding, splits, widths, self.groups.get("train"))
        classes = target.labels if isinstance(target, ClassTarget) else None
        columns_of = target.labels if isinstance(target, ClassTargets) else {}
        super().__init__(
            splits, batch_size=batch_size, task=target.task, labels=classes, class_columns=columns_of, **batching
        )
        self.target_units = tuple((part.name, part.mean, part.std) for part in number_targets(target)) or None
        self.loss = {} if isinstance(target, ClassTarget) else target.loss
        self.has_offset = exposure is not None
        if columns.weight is not None:
            self._weigh(rows, columns.weight, places, **batching)
        self.overview = self._describe(columns, len(names), reason, few, in_units)
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

    def as_written(self, split: str, items: Sequence[int]) -> Frame | None:
        if not self._in_one_file:
            return None
        reading, key, path = self._files[split]
        return reading.read(path, key, self.encoding.inputs.names).loc[self._lines[split][list(items)]]

    def _weigh(
        self, rows: Mapping[str, Rows], column: str, places: Mapping[str, str], **batching: Unpack[Batching]
    ) -> None:
        """Let the labels of each split carry the weights of its rows. Raises ConfigError for weights not above 0."""
        if self.gaps:
            raise ConfigError("data.weight takes rows that have all targets: leave out the others, or the weights")
        self.weighted = True
        numbers = {s: positive_numbers(part[column], places[s], "data.weight") for s, part in rows.items()}
        self.splits = {s: (x, with_weights(y, torch.from_numpy(numbers[s]))) for s, (x, y) in self.splits.items()}
        self._use(TensorBatches(*self.splits["train"], self.batch_size, **batching))

    def _describe(self, columns: Columns, read: int, reason: str, few: str | None, in_units: str | None) -> str:
        """What was read, in one line.

        read: columns that may become inputs; reason: why the target has its task; few: see `with_few_inputs`;
        in_units: see `words_of_units`.
        """
        target, exposure = self.encoding.target, self.encoding.exposure
        inputs = self.input_shape[0] - self.has_offset
        said = [
            f"{self.name}: {self.rows} rows; {count_of(read, 'column')} as {count_of(inputs, 'input')}",
            f"{'targets' if len(columns.targets) > 1 else 'target'} {target.name}: {target.task} ({reason})",
        ]
        if exposure is not None:
            said.append(f"mean = rate x {exposure.name}, on average {exposure.mean:.4g}")
        if self.weighted:
            total = self.splits["train"][1][:, -1].double().sum()
            line = f"{columns.weight} weighs rows: those for training count as {total:,.6g}"
            said.append(f"{line}; in scores each counts once, but for weighted_nll")
        words = [in_units, few, self.held_out, *(part.words for part in number_targets(target))]
        return "; ".join([*said, *filter(None, words)])

    def identity(self) -> dict[str, Any]:
        """Checksums of the encoding and of the training rows, and the name of the target."""
        x, y = self.splits["train"]
        rows = hashlib.sha256(x.numpy().data)
        rows.update(y.numpy().data)
        encoding = checksum(self.encoding.to_plain())
        target = self.encoding.target
        name = list(target.names) if isinstance(target, Targets) else target.name
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


def _learn(
    rows: Mapping[str, Rows], columns: Columns, names: Sequence[str], place: str, reading: Reading, loss: str | None,
) -> list[Any]:  # fmt: skip
    """The target and its reason, see `learn_target`; the encoding of the inputs, whose names these are; the exposure.

    Raises ConfigError, in one line about all columns.
    """
    train = rows["train"]
    labels = {name: pd.concat([part[name] for part in rows.values()]).dropna() for name in columns.targets}
    of_training = {name: train[name].dropna() for name in columns.targets}
    questions: list[Callable[[], Any]] = [
        lambda: learn_target(labels, of_training, columns.asked, place, loss, reading.missing),
        lambda: InputEncoding.learn(
            train, names, columns.categorical, columns.max_levels, place, reading.day_first, reading.missing
        ),
        lambda: None if columns.exposure is None else ExposureColumn.learn(train[columns.exposure], place),
    ]
    return of_each(lambda ask: ask(), questions, place)


def _with_units(reading: Reading, frame: Frame, columns: Columns, split: TableSplit) -> Reading:
    """The same, with what the table tells of numbers with units among the targets and the inputs."""
    asked = [] if columns.asked == "classification" else columns.targets
    numbers = [*asked, *columns.inputs(frame.columns, split)]
    return reading.with_units(frame, [name for name in numbers if name not in columns.categorical], columns.targets)


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
    select: Literal["auto", "all"] = "auto",
    order: str | None = None,
    group: str | None = None,
    lags: Mapping[str, Sequence[int]] | None = None,
    batch_size: int | Literal["auto"] | None = "auto",
    loss: str | None = None,
    drop_rows: Sequence[int] = (),
    **batching: Unpack[Batching],
) -> TableDataModule:
    """The data module of a table, from the keys of `data=csv`; `Columns`, `Reading` and `TableSplit` explain them."""
    id, drop, categorical, missing = ([str(word) for word in _listed(w)] for w in (id, drop, categorical, missing))
    lags = lags and {str(column): _listed(rows) for column, rows in lags.items()}
    names = [str(name) for name in _listed(target)]  # Hydra makes a number of 2020
    target = names[0] if [target] == _listed(target) else names
    exposure, weight, split_column, order, group = (
        name if name is None else str(name) for name in (exposure, weight, split_column, order, group)
    )
    columns = Columns(target, task, id, drop, categorical, max_levels, lags, exposure, weight, select)
    reading = Reading(format, separator, decimal, tuple(missing), thousands, day_first, encoding)
    files, rows = (test_path, val_path, all_rows), _listed(drop_rows)
    split = TableSplit(test_fraction, val_fraction, split_seed, fold, split_column, *files, order, group, rows)
    return TableDataModule(path, columns, reading, split, batch_size=batch_size, loss=loss, **batching)


def _listed(given: Any) -> list[Any]:
    """Several values, or a single one, or none."""
    single = isinstance(given, str) or not isinstance(given, Iterable)
    return [] if given is None else [given] if single else list(given)
