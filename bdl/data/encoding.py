"""What a table's training rows teach about its columns. It makes inputs of a network from rows."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bdl.advice import override, takes
from bdl.data.dates import DROP, DateColumn, holds_dates
from bdl.data.frame import brief_list, require_columns
from bdl.data.kinds import CategoryColumn, NumberColumn, Refused, is_rounding, of_each, perhaps_gaps
from bdl.data.units import looks_like_numbers
from bdl.data.values import Frame, Series, as_numbers, as_texts, holds_truth_values, is_text, number_hint
from bdl.display import count_of
from bdl.errors import BdlWarning, ConfigError

Column = NumberColumn | CategoryColumn | DateColumn
KINDS: dict[str, type[Column]] = {"number": NumberColumn, "category": CategoryColumn, "date": DateColumn}
MOST_BYTES = 2**32  # that inputs of categories take, in all training rows
NESTED = (list, tuple, dict, set, np.ndarray, Tensor)


@dataclass(frozen=True)
class InputEncoding:
    """Rows of a table -> inputs of the network (n, features), column after column."""

    columns: tuple[Column, ...]

    @staticmethod
    def learn(
        frame: Frame, names: Sequence[str], categorical: Collection[str], max_levels: int, place: str,
        day_first: bool | None = None, missing: Sequence[str] = (),
    ) -> InputEncoding:  # fmt: skip
        """The encoding of these columns of the training rows.

        missing: the words that mean a missing value already, for messages.

        Warns of columns without information, which are left out, and of columns that seem to number the rows. Raises
        ConfigError, in one line about all columns, for numbers with text between them, for dates that are written in
        several ways, and for more than `max_levels` categories; and if no column is left.
        """
        learned = of_each(
            lambda name: _learn(frame[name], name in categorical, max_levels, day_first, missing), names, place
        )
        columns = tuple(column for column in learned if column is not None)
        if not columns:
            raise ConfigError(f"{place}: no column has information about the target: give a table with inputs")
        _refuse_many_inputs(columns, len(frame), place)
        numbers = [column.name for column in columns if isinstance(column, NumberColumn)]
        if numbered := [name for name in numbers if _numbers_rows(frame[name])]:
            line = f"{place}: {brief_list(numbered)} has another whole number in every row, as numbers of rows have:"
            warnings.warn(f"{line} {override('data.id', numbered)} makes it no input", BdlWarning, stacklevel=2)
        if constant := [name for name, column in zip(names, learned, strict=True) if column is None]:
            line = f"{place}: {brief_list(constant)} left out: the same value in all training rows, to 12 digits"
            warnings.warn(line, BdlWarning, stacklevel=2)
        return InputEncoding(columns)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def written(self) -> list[str]:
        """The columns of categories and dates, whose fields are read as they are written."""
        return [column.name for column in self.columns if not isinstance(column, NumberColumn)]

    def widths(self, frame: Frame, place: str) -> list[int]:
        """How many inputs each column makes. The first row tells it."""
        return [column.encode(frame[column.name].iloc[:1], place).shape[1] for column in self.columns]

    def encode(self, frame: Frame, key: str, place: str, last: bool = False) -> Tensor:
        """(n, features) float32.

        Raises ConfigError, in one line about all columns, for missing columns, text in numbers and infinite numbers.

        key: begins the message about a missing column. place: names the table in messages.
        last: nobody needs the columns afterwards, and the frame gives up each one for its inputs.
        """
        require_columns(frame, self.names, key, place)
        gaps = {column: int(frame[column.name].isna().sum()) for column in self.columns if not column.gaps}
        take = frame.pop if last else frame.__getitem__
        parts = of_each(
            lambda column: column.encode(_single(take(column.name)), place).astype(np.float32), self.columns, place
        )
        self._warn_of_gaps({column: count for column, count in gaps.items() if count}, len(parts[0]), place)
        return torch.from_numpy(np.concatenate(parts, 1))

    def _warn_of_gaps(self, missing: Mapping[Column, int], rows: int, place: str) -> None:
        """Warn, in one line, of columns that miss values though no training row does: the network knows no gaps."""
        said = [f"{c.name} in {count:,}, which becomes {c.filling}" for c, count in missing.items()]
        if said:
            more = f"; ... ({len(said)} columns in all)" if len(said) > 8 else ""
            line = f"{place}: values are missing, though in no training row: of {count_of(rows, 'row')}, "
            warnings.warn(f"{line}{'; '.join(said[:8])}{more}", BdlWarning, 3)

    def to_plain(self) -> list[dict[str, Any]]:
        """The columns as values that JSON can hold."""
        names = {kind: name for name, kind in KINDS.items()}
        return [{"kind": names[type(column)], **dataclasses.asdict(column)} for column in self.columns]

    @staticmethod
    def from_plain(columns: Sequence[Mapping[str, Any]]) -> InputEncoding:
        """The inverse of `to_plain`."""
        return InputEncoding(tuple(KINDS[c["kind"]](**_fields(c)) for c in columns))


def _fields(column: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a column, with tuples for the lists of JSON."""
    fields = {key: tuple(value) if key == "levels" else value for key, value in column.items() if key != "kind"}
    return fields | ({"parts": tuple(NumberColumn(**p) for p in fields["parts"])} if "parts" in fields else {})


def _refuse_many_inputs(columns: Sequence[Column], rows: int, place: str) -> None:
    """Raise ConfigError where categories take more memory as inputs than a machine can be asked for."""
    categories = [column for column in columns if isinstance(column, CategoryColumn)]
    inputs = sum(len(column.levels) + 1 for column in categories)
    if 4 * inputs * rows > MOST_BYTES:
        widest = max(categories, key=lambda column: len(column.levels))
        raise ConfigError(
            f"{place}: categories make {inputs:,} inputs for {rows:,} rows, {4 * inputs * rows / 2**30:.1f} GiB"
            f", {len(widest.levels):,} of them {widest.name}: {override('data.drop', [widest.name])} leaves it out, a "
            "lower data.max_levels refuses such columns"
        )


def _numbers_rows(values: Series) -> bool:
    """Whether whole numbers name the rows: all differ, in the order of the rows or in a column named so."""
    if not pd.api.types.is_integer_dtype(values) or not values.is_unique or len(values) < 10:
        return False
    return values.is_monotonic_increasing or re.search(r"(^|[\W_])(id|nr|no)$", str(values.name).lower()) is not None


def _single(values: Series) -> Series:
    """The values. Raises Refused for cells that hold several, or bytes, which no text of the training rows equals."""
    if values.dtype == object:
        if values.map(lambda value: isinstance(value, NESTED)).any():
            drop = f"{DROP}, or " if takes("data.drop") else ""
            raise Refused(str(values.name), "holds lists", f"{drop}make columns of them")
        if (found := values.map(lambda value: isinstance(value, bytes))).any():
            example = values[found].iloc[0]
            raise Refused(str(values.name), f"holds bytes ({example!r})", "decode them, as .str.decode('utf-8') does")
    return values


def _learn(
    values: Series, categorical: bool, max_levels: int, day_first: bool | None, missing: Sequence[str]
) -> Column | None:
    """What a column is read as: categories if asked for or if most values are no numbers; None for a constant.

    Raises Refused for a column that cannot be an input.
    """
    name = str(_single(values).name)
    numeric, gaps = pd.api.types.is_numeric_dtype(values), values.isna()
    if gaps.all():
        return None
    if not gaps.any():
        floats = pd.api.types.is_float_dtype(values)
        if is_rounding(as_numbers(values).to_numpy()) if floats else values.nunique() == 1:
            return None
    categories = categorical or holds_truth_values(values) or isinstance(values.dtype, pd.CategoricalDtype)
    if not categories and holds_dates(values):
        return DateColumn.learn(values, day_first)
    if not categories and (hint := number_hint(values)) is not None:
        example = values[is_text(values)].iloc[0]
        raise Refused(
            name, f"holds numbers that are texts ('{example}')",
            f"{hint}, or data.categorical={{columns}} for codes; or data.drop={{columns}}",
        )  # fmt: skip
    correct = "correct them, or data.categorical={columns} takes all as categories"
    if not categories and (numeric or as_numbers(values).notna().sum() >= values.notna().sum() / 2):
        return perhaps_gaps(lambda: NumberColumn.learn(values, correct), values, correct, missing)
    if (count := as_texts(values).nunique()) > max_levels:
        repeated = count <= len(values) / 2
        grouped = "data.group={columns} keeps rows of one value on one side, " if repeated else ""
        plain = ""
        if looks_like_numbers(values):
            example = values.dropna().iloc[0]
            plain = f"write '{example}' and the others as plain numbers, all in one unit; or "
        raise Refused(
            name, f"has {count} different texts in {len(values)} training rows, more than data.max_levels={max_levels}",
            f"{plain}{DROP}, {grouped}data.id={{columns}} keeps them beside predictions, and a higher data.max_levels "
            "takes them as categories",
        )  # fmt: skip
    return CategoryColumn.learn(values)
