"""Finished runs that several tests read."""

from __future__ import annotations

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
