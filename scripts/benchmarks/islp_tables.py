"""Makes tables for `bench.py peers` of data sets that chose no default: scripts/bench.py islp_tables ISLP/data OUT.

ISLP/data is that folder of the Python package ISLP, 0.6.0. Rows with gaps go, columns of more than 20 different words
go, other words become columns of zeros and ones, and a random fifth of the rows is the test part.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from tools.command import Said

TARGETS = {
    "Boston": "medv", "Auto": "mpg", "Hitters": "Salary", "College": "Apps", "Carseats": "Sales", "Credit": "Balance",
    "Wage": "wage",
}  # fmt: skip
LEFT_OUT = ["name", "Unnamed: 0", "rownames", "ID", "logwage"]  # numbers of rows, and the logarithm of a target


def main(folder: Annotated[Path, Said(metavar="ISLP/data")], out: Annotated[Path, Said(metavar="OUT")]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for seed, (name, target) in enumerate(TARGETS.items()):
        frame = numbers(pd.read_csv(folder / f"{name}.csv").drop(columns=LEFT_OUT, errors="ignore"))
        frame["target"] = frame.pop(target)
        places = np.random.default_rng(seed).permutation(len(frame))
        frame["split"] = np.where(places < 0.2 * len(frame), "test", "train")
        frame.to_csv(out / f"{name}.csv", index=False)


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """The table without gaps and words."""
    values = frame.apply(pd.to_numeric, errors="coerce")
    numeric = values.count() > 0.9 * len(values)  # a number in most rows, and a question mark in others
    frame = frame.assign(**{column: values[column] for column in frame.columns[numeric]})
    frame = frame.dropna()
    many = [column for column, count in frame.select_dtypes(exclude="number").nunique().items() if count > 20]
    return pd.get_dummies(frame.drop(columns=many), drop_first=True).astype(float)
