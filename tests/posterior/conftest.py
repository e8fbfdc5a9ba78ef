"""Runs that several tests of the posterior read."""

import pytest
import toys
from by_hand import NUMBERS_X, NUMBERS_Y, settled_run

import bdl
from bdl.data import TensorBatches, TensorSlices
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
    return settled_run(tmp_path_factory.mktemp("weighted"), 120, EveryStep(60, 10))


@pytest.fixture(scope="session")
def regression(tmp_path_factory):
    """(folder, net, ModelAverage) of 4 files of 2 chains of a network that predicts a mean and a log variance."""
    folder, net = tmp_path_factory.mktemp("regression"), bdl.models.MLP((3, 4, 2))
    module, keep = toys.module(net, 2, bdl.HeteroscedasticNLL(), lr=0.01), EveryStep(0, 2)
    average = bdl.ModelAverage(keep, TensorSlices(NUMBERS_X, NUMBERS_Y))
    loader = TensorBatches(NUMBERS_X, NUMBERS_Y, 10, chains=2)
    toys.trainer(folder, 8, [bdl.CollectSamples(keep, folder), average]).fit(module, loader)
    return folder, net, average


@pytest.fixture
def of_numbers(regression) -> bdl.Posterior:
    return bdl.Posterior.load(*regression[:2])
