"""Training targets outside the domain of the likelihood are refused before the first step."""

import math

import pytest
import torch
import toys
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.errors import ConfigError

X, Y = toys.tensors()


@pytest.mark.parametrize(
    ("loss", "y", "words"),
    [
        (bdl.CategoricalNLL(), Y - 1, "none of the K classes"),
        (bdl.GaussianNLL(1.0), torch.full((toys.N, 3), math.nan), "not finite"),
        (bdl.PoissonNLL(), torch.full((toys.N, 3), 0.5), "no counts"),
    ],
    ids=["classes", "nan", "counts"],
)
@pytest.mark.parametrize("loader", ["batches", "DataLoader"])
def test_targets_outside_the_domain_are_refused_at_the_start(tmp_path, loss, y, words, loader):
    data = toys.TensorBatches(X, y, 10) if loader == "batches" else DataLoader(TensorDataset(X, y), batch_size=10)
    module = toys.module(chains=None, loss=loss)
    with pytest.raises(ConfigError, match=words):
        toys.trainer(tmp_path, 2).fit(module, data)
    assert module.sampler.steps == 0
