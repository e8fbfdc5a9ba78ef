"""What a table's training rows teach about its columns. It makes inputs of a network from rows."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bdl.data.frame import (
    Frame,
    Series,
    as_numbers,
    as_texts,
    as_value,
    brief_list,
    holds_dates,
    holds_truth_values,
    number_hint,
    require_columns,
)
from bdl.errors import BdlWarning, ConfigError


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: (value - mean) / std, and 1 where the value is missing if training rows had gaps.

    mean and std are those of the training rows. A missing value becomes their median, `fill`.
    """

    name: str
    mean: float
    std: float
    fill: float
    gaps: bool

    @property
    def width(self) -> int:
        """Numbers per row in the network's input."""
        return 1 + self.gaps

    @staticmethod
    def learn(values: Series) -> NumberColumn:
        numbers = as_numbers(values)
        fill, gaps = float(numbers.median()), bool(numbers.isna().any())
        numbers = numbers.fillna(fill)
        mean, std = float(numbers.mean()), float(numbers.std(ddof=0))
        return NumberColumn(str(values.name), mean, std if std > 1e-12 * max(1.0, abs(mean)) else 1.0, fill, gaps)

    def encode(self, values: Series, place: str) -> np.ndarray:
        """(n, width). Raises ConfigError for text and for infinite numbers, and counts their rows."""
        refuse_text(values, place, "correct them, or leave the fields empty")
        numbers = as_numbers(values)
        missing = numbers.isna().to_numpy()
        _warn_of_gaps(self, missing, place, f"its median, {self.fill:g}")
        scaled = ((numbers.fillna(self.fill) - self.mean) / self.std).to_numpy()
        return np.stack([scaled, missing] if self.gaps else [scaled], 1)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories: one number per level and one for a level that no training row has; 1 where it is so.

    A missing value becomes the most frequent level of the training rows, `fill`; a further number is 1 where the value
    is missing if training rows had gaps.
    """

    name: str
    levels: tuple[str, ...]
    fill: str
    gaps: bool

    @property
    def width(self) -> int:
        """Numbers per row in the network's input."""
        return len(self.levels) + 1 + self.gaps

    @staticmethod
    def learn(values: Series) -> CategoryColumn:
        texts = as_texts(values)
        counts = texts.value_counts()
        fill = min(counts.index[counts == counts.max()])  # the first of equally frequent levels in the alphabet
        return CategoryColumn(str(values.name), tuple(sorted(counts.index)), fill, bool(texts.isna().any()))

    def encode(self, values: Series, place: str) -> np.ndarray:
        """(n, width). Warns of levels that no training row has, and counts their rows."""
        texts = as_texts(values)
        missing = texts.isna().to_numpy()
        _warn_of_gaps(self, missing, place, f"the most frequent category, {self.fill}")
        codes = pd.Index(self.levels).get_indexer(pd.Index(texts.fillna(self.fill)))
        if (unseen := codes < 0).any():
            first = texts[unseen].iloc[0]
            warnings.warn(
                f"{place}: {self.name} has categories in {unseen.sum()} of {len(texts)} rows that no training row has "
                f"({first!r} is the first): they share one level of their own", BdlWarning, stacklevel=2,
            )  # fmt: skip
        one_hot = np.eye(len(self.levels) + 1)[codes]  # -1 is the last level
        return np.concatenate([one_hot, missing[:, None]], 1) if self.gaps else one_hot


Column = NumberColumn | CategoryColumn


@dataclass(frozen=True)
class InputEncoding:
    """Rows of a table -> inputs of the network (n, features), column after column."""

    columns: tuple[Column, ...]

    @staticmethod
    def learn(frame: Frame, categorical: Collection[str], max_levels: int, place: str) -> InputEncoding:
        """The encoding of all columns of the training rows.

        Warns of columns without information, which are left out. Raises ConfigError for dates, for columns that mix
        numbers and text, for more than `max_levels` categories, and if no column is left.
        """
        _refuse_dates_and_lists(frame, place)
        kinds = {name: _kind(frame[name], name in categorical, place) for name in frame.columns}
        _refuse_free_text(
            {name: frame[name] for name in frame.columns if kinds[name] is CategoryColumn}, max_levels, place
        )
        constant = [name for name in frame.columns if _is_constant(frame[name])]
        if len(constant) == frame.shape[1]:
            raise ConfigError(f"{place}: no column has information about the target: give a table with inputs")
        if constant:
            warnings.warn(
                f"{place}: {brief_list(constant)} left out: the same value in all training rows",
                BdlWarning,
                stacklevel=2,
            )
        return InputEncoding(tuple(kinds[name].learn(frame[name]) for name in frame.columns if name not in constant))

    @property
    def features(self) -> int:
        """Numbers per row in the network's input."""
        return sum(column.width for column in self.columns)

    def encode(self, frame: Frame, key: str, place: str) -> Tensor:
        """(n, features) float32. Raises ConfigError for missing columns, text and infinite numbers.

        key: begins the message about a missing column. place: names the table in messages.
        """
        require_columns(frame, [column.name for column in self.columns], key, place)
        parts = [column.encode(frame[column.name], place) for column in self.columns]
        return torch.from_numpy(np.concatenate(parts, 1).astype(np.float32))

    def to_plain(self) -> list[dict[str, Any]]:
        """The columns as values that JSON can hold."""
        kinds = {NumberColumn: "number", CategoryColumn: "category"}
        return [{"kind": kinds[type(column)], **dataclasses.asdict(column)} for column in self.columns]

    @staticmethod
    def from_plain(columns: Sequence[Mapping[str, Any]]) -> InputEncoding:
        """The inverse of `to_plain`."""
        kinds = {"number": NumberColumn, "category": CategoryColumn}
        fields = [{k: tuple(v) if k == "levels" else v for k, v in column.items() if k != "kind"} for column in columns]
        return InputEncoding(tuple(kinds[c["kind"]](**f) for c, f in zip(columns, fields, strict=True)))


def refuse_text(values: Series, place: str, remedy: str = "correct them") -> None:
    """Raise ConfigError for text and infinite numbers in a column of numbers; it counts the rows."""
    numbers = as_numbers(values)
    bad = (numbers.isna() & values.notna()) | np.isinf(numbers)
    if bad.any():
        example, row = values[bad].iloc[0], values.index[bad][0] + 1
        hint = number_hint(values)
        remedy = remedy if hint is None else f"set {hint}; or {remedy}"
        raise ConfigError(
            f"{place}: {values.name} has '{example}' in row {row}, and no finite number in {bad.sum()} of "
            f"{len(values)} rows: {remedy}"
        )


def _kind(values: Series, categorical: bool, place: str) -> type[NumberColumn] | type[CategoryColumn]:
    """How a column is read: as categories if asked for or if most of its values are no numbers."""
    if categorical or holds_truth_values(values) or isinstance(values.dtype, pd.CategoricalDtype):
        return CategoryColumn
    named = as_value([str(values.name)])
    as_categories = f"data.categorical={named}"
    if (hint := number_hint(values)) is not None:
        raise ConfigError(
            f"{place}: {values.name} holds numbers that are texts: set {hint}, or {as_categories} for codes, or "
            f"data.drop={named}"
        )
    share = as_numbers(values).notna().sum() / max(1, values.notna().sum())
    if share < 0.5 and values.notna().any():
        return CategoryColumn
    refuse_text(values, place, f"correct them, add the word to data.missing, or set {as_categories}")
    return NumberColumn


def _is_constant(values: Series) -> bool:
    """Whether all values are the same, or all are missing."""
    different = values.nunique()
    return different == 0 or different == 1 and not values.isna().any()


def _refuse_dates_and_lists(frame: Frame, place: str) -> None:
    for name in frame.select_dtypes(exclude="number"):
        nested = frame[name].map(lambda value: isinstance(value, (list, tuple, dict, set, np.ndarray)))
        if nested.any():
            raise ConfigError(f"{place}: {name} holds lists: data.drop={as_value([name])}, or make columns of them")
    dates = [name for name in frame.columns if holds_dates(frame[name])]
    if dates:
        example, names = frame[dates[0]].dropna().iloc[0], as_value(dates)
        raise ConfigError(
            f"{place}: {brief_list(dates)} holds dates or times ({example}), which are no input: data.drop={names} "
            "leaves them out; or replace them by numbers such as month, weekday and hour"
        )


def _refuse_free_text(columns: Mapping[str, Series], max_levels: int, place: str) -> None:
    many = {name: count for name, values in columns.items() if (count := as_texts(values).nunique()) > max_levels}
    if many:
        name, count = next(iter(many.items()))
        listed, them = as_value(list(many)), "it" if len(many) == 1 else "them"
        first = f"{name} has" if len(many) == 1 else f"{brief_list(list(many))} have many categories, {name}"
        raise ConfigError(
            f"{place}: {first} {count} different texts in {len(columns[name])} training rows, more than "
            f"data.max_levels={max_levels}: data.drop={listed} leaves {them} out, data.id={listed} keeps {them} beside "
            f"predictions, and data.max_levels={count} takes {them} as categories"
        )


def _warn_of_gaps(column: Column, missing: np.ndarray, place: str, fill: str) -> None:
    """Training rows had no gaps, so the network does not know them."""
    if missing.any() and not column.gaps:
        warnings.warn(
            f"{place}: {column.name} is missing in {missing.sum()} of {len(missing)} rows, though in no training row: "
            f"it becomes {fill}", BdlWarning, stacklevel=3,
        )  # fmt: skip
