"""Finished runs that several tests read."""

import numpy as np
import pandas as pd
import pytest
from running import TINY, WEIGHTED, sampled, whole


@pytest.fixture(scope="module", autouse=True)
def runs_write_no_pictures(unwritten_pictures):
    """That of `run` does, because it is made once for all modules."""


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A finished default run in small."""
    folder = tmp_path_factory.mktemp("run") / "a"
    whole(folder)
    return folder


@pytest.fixture(scope="session")
def weighted(tmp_path_factory):
    """The same with adaptive weighting."""
    folder = tmp_path_factory.mktemp("weighted") / "a"
    whole(folder, *WEIGHTED)
    return folder


@pytest.fixture(scope="session")
def second(tmp_path_factory):
    folder = tmp_path_factory.mktemp("second") / "b"
    sampled(folder, "trainer=debug", *TINY, "seed=1")
    return folder


@pytest.fixture(scope="session")
def mixed_table(tmp_path_factory):
    """The path of a table with three classes `kind` and a number `y` in units of its own."""
    random = np.random.RandomState(0)
    x = random.randn(200)
    frame = pd.DataFrame({"x": x, "kind": np.digitize(x + random.randn(200), [-0.5, 0.5]).astype(str)})
    frame["y"] = 1000 + 50 * x + 20 * random.randn(200)
    frame["kind"] = frame["kind"].map({"0": "low", "1": "mid", "2": "high"})
    path = tmp_path_factory.mktemp("table") / "t.csv"
    frame.to_csv(path, index=False)
    return path
