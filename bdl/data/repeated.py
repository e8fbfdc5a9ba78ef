"""warn_of_repeated: test rows that are training rows too."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pandas.util
from torch import Tensor

from bdl.errors import BdlWarning

hash_rows: Any = pandas.util.hash_pandas_object  # type checkers do not find it


def warn_of_repeated(splits: Mapping[str, tuple[Tensor, Tensor]], place: str) -> None:
    """Warn of test rows that are training rows too, because scores on them tell nothing about new rows."""
    rows = (pd.DataFrame(np.column_stack(splits[split])) for split in ("train", "test"))
    train, test = (np.unique(hash_rows(frame, index=False)) for frame in rows)
    if repeated := int(np.isin(test, train).sum()):
        warnings.warn(
            f"{place}: {repeated} of {len(test)} different test rows are training rows too, value for value: if they "
            "are copies, remove them from the table, because scores on them say nothing about new rows", BdlWarning, 3,
        )  # fmt: skip
