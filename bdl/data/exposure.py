"""The column of exposures of counts, whose logarithm is an offset, and what a column of positive numbers may hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bdl.advice import override
from bdl.data.frame import require_columns
from bdl.data.kinds import finite_numbers, of_each
from bdl.data.values import Frame, Series
from bdl.display import count_of
from bdl.errors import ConfigError

REMEDY = "correct them, or leave these rows out"


@dataclass(frozen=True)
class ExposureColumn:
    """A column of exposures e > 0: a count has the mean e x rate. It is no input of the network, and not standardised.

    The network reads the offset log(e / mean), where `mean` is the exposure of a training row on average. So the unit
    of the exposure, years or days, changes nothing, and the same exposure in all rows gives the law without one.
    """

    name: str
    mean: float

    @staticmethod
    def learn(values: Series, place: str) -> ExposureColumn:
        """From the training rows. Raises ConfigError for exposures that are missing or not above 0."""
        return ExposureColumn(str(values.name), float(positive_numbers(values, place, "data.exposure").mean()))

    def encode(self, frame: Frame, key: str, place: str) -> Tensor:
        """(n, 1) float32 offsets. Raises ConfigError as `values` does."""
        return torch.from_numpy(np.log(self.values(frame, key, place) / self.mean).astype(np.float32))[:, None]

    def values(self, frame: Frame, key: str, place: str) -> np.ndarray:
        """(n,) exposures in their own unit. Raises ConfigError for a table that lacks the column, and as `learn`."""
        require_columns(frame, [self.name], key, place)
        return positive_numbers(frame[self.name], place, "data.exposure")


def positive_numbers(values: Series, place: str, key: str) -> np.ndarray:
    """(n,) float64. Raises ConfigError for text, gaps, and numbers that are infinite or not above 0."""
    (numbers,) = of_each(lambda values: finite_numbers(values, REMEDY), [values], place)
    bad = ~(numbers > 0)  # NaN too
    if bad.any():
        value = numbers[bad].iloc[0]
        what = "missing" if pd.isna(value) else f"{value:g}"
        use, row = key.removeprefix("data."), numbers.index[bad][0] + 1
        raise ConfigError(
            f"{override(key, str(values.name))}: the {use} is {what} in row {row} of {place}, and must be above 0 "
            f"({bad.sum()} of {count_of(len(numbers), 'row')}): {REMEDY}"
        )
    return numbers.to_numpy(np.float64, copy=True)
