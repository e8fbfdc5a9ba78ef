"""Runs that several tests of the posterior read."""

from __future__ import annotations

import pytest
import toys
from by_hand import settled

import bdl
from bdl.schedules import Cosine, EveryStep


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """8 samples of two chains; lr falls along the run."""
    folder = tmp_path_factory.mktemp("run")
    toys.sample(folder, 16, callbacks=[bdl.Schedule(lr=Cosine(0.3, 20))])
    return folder


@pytest.fixture
def posterior(run) -> bdl.Posterior:
    return bdl.Posterior.load(run, toys.plain())


@pytest.fixture(scope="session")
def weighted(tmp_path_factory):
    """A run under a weighting whose psi has settled before the first kept sample."""
    folder = tmp_path_factory.mktemp("weighted")
    toys.sample(folder, 120, EveryStep(60, 10), weighting=settled())
    return folder
