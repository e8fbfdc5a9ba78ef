"""Tables for development, on which the experiment compares defaults: parts of the training rows of known splits.

Published test rows are removed first. Of the other rows, or of a random part of them, a random fifth is the test part.
The folder has airfoil.csv (`bdl/data/files` has it too), hour.csv of Bike Sharing as bike_sharing_hour.csv, and in uci/
NAME.csv with the target last, and NAME.test_0.txt with the row numbers, from 0, of the first test split of Gal &
Ghahramani (2016).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes, make_friedman1
from torch import Tensor, from_numpy

from bdl.data.split import train_test_rows
from bdl.errors import ConfigError

SEED = 0  # decides which rows are in a smaller table, and which of them are test rows
PUBLISHED = (0, 42)  # seeds of the splits on which docs/results.md has airfoil and Bike Sharing
NO_INPUTS = ["instant", "dteday", "casual", "registered"]  # columns of Bike Sharing


@dataclass(frozen=True)
class Table:
    """Inputs (rows, features) and targets (rows, 1), standardised by the training rows, float32."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def friedman(folder: Path) -> np.ndarray:
    """300 rows of a smooth function of 5 inputs, with noise of 0.002 standard deviations of the target."""
    x, y = make_friedman1(300, n_features=5, noise=0.01, random_state=SEED)
    return np.column_stack([x, y])


def diabetes(folder: Path) -> np.ndarray:
    data: Any = load_diabetes()
    return np.column_stack([data.data, data.target])


def airfoil(folder: Path) -> np.ndarray:
    return without_published(pd.read_csv(folder / "airfoil.csv").to_numpy(np.float64))


def bike(folder: Path) -> np.ndarray:
    frame = pd.read_csv(folder / "bike_sharing_hour.csv").drop(columns=NO_INPUTS)
    return without_published(frame.to_numpy(np.float64))


def without_published(rows: np.ndarray) -> np.ndarray:
    """The rows that are training rows of both published splits."""
    first, second = (train_test_rows(len(rows), 0.2, seed)[0] for seed in PUBLISHED)
    return rows[np.intersect1d(first, second)]


def uci(name: str) -> Callable[[Path], np.ndarray]:
    def read(folder: Path) -> np.ndarray:
        rows = pd.read_csv(folder / "uci" / f"{name}.csv").to_numpy(np.float64)
        published = (folder / "uci" / f"{name}.test_0.txt").read_text().split()
        return np.delete(rows, [int(row) for row in published], axis=0)

    return read


SOURCES: dict[str, tuple[Callable[[Path], np.ndarray], int | None]] = {  # what reads the rows, and how many are taken
    "friedman": (friedman, None),
    "diabetes": (diabetes, None),
    "energy320": (uci("energy"), 320),
    "energy": (uci("energy"), None),
    "airfoil": (airfoil, None),
    "wine_quality_red": (uci("wine_quality_red"), None),
    "power_plant2500": (uci("power_plant"), 2500),
    "bike3k": (bike, 3000),
}


def make_table(name: str, folder: Path) -> Table:
    """The table of this name, one of `SOURCES`. Raises ConfigError for a file that the folder lacks."""
    read, count = SOURCES[name]
    try:
        rows = read(folder)
    except FileNotFoundError as error:
        lacking = Path(error.filename).relative_to(folder)
        raise ConfigError(f"--data {folder} lacks {lacking}, of which {name} is made: see {__file__}") from None
    rows = rows[np.random.default_rng(SEED).permutation(len(rows))[:count]]
    train, test = train_test_rows(len(rows), 0.2, SEED)
    return standardised(rows, train, test)


def standardised(rows: np.ndarray, train: np.ndarray, test: np.ndarray) -> Table:
    """The rows (n, features + 1), whose last column is the target. A constant column becomes 0."""
    std = rows[train].std(0)
    values = (rows - rows[train].mean(0)) / np.where(std > 0, std, 1)
    parts: Sequence[Tensor] = [from_numpy(values[part]).float() for part in (train, test)]
    return Table(parts[0][:, :-1], parts[0][:, -1:], parts[1][:, :-1], parts[1][:, -1:])
