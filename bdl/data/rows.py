"""Some rows of a table, of which each column is copied when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pandas.util

from bdl.data.values import Frame, Series, as_numbers

hash_array: Any = pandas.util.hash_array  # which type checkers do not find


@dataclass(frozen=True)
class Rows:
    """Some rows of a table that has a row number for index.

    Splits of a table are rows of the same one, because a copy of each split would double the memory of a large table.

    Args:
        table: all rows.
        at: (n,) positions of these rows.
    """

    table: Frame
    at: np.ndarray

    @staticmethod
    def all_of(table: Frame) -> Rows:
        return Rows(table, np.arange(len(table)))

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

    def hashes(self, columns: list[str]) -> np.ndarray:
        """(n,) uint64, equal where rows are equal in these columns, and elsewhere with a probability of 2^-64."""
        total = np.zeros(len(self), np.uint64)
        for name in columns:
            values = self[name]
            if pd.api.types.is_numeric_dtype(values):
                numbers = as_numbers(values).to_numpy() + 0.0  # -0 becomes 0
                hashed = hash_array(np.where(np.isnan(numbers), np.nan, numbers))
            else:
                hashed = hash_array(values.astype(object).map(str).to_numpy(object))
            total = (total ^ hashed) * np.uint64(0x9E3779B97F4A7C15)  # odd: 2^64 over the golden ratio; wraps around
        return total
