"""Gradients of all the data have no batch noise, and T_eff says so."""

from __future__ import annotations

import functools

import lightning as L
import pytest
import torch
from torch import nn

import bdl
from bdl.data.loader import TensorBatches


def trained(batch_size: int, dropout: float = 0.0) -> bdl.Sampler:
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(dropout), nn.Tanh(), nn.Linear(4, 2))
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=40, lr=0.1)
    module = bdl.BayesianModule(bdl.ChainStack(net, 2), build)
    trainer = L.Trainer(
        max_steps=100, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    )
    trainer.fit(module, TensorBatches(x, y, batch_size, chains=2))
    return module.sampler


def test_whole_batches_have_no_noise_although_the_gradient_changes_along_the_chain():
    sampler = trained(40)
    assert sampler.batch_noise.variance.mean() > 0  # what the motion of θ would be taken for
    assert sampler.noise_ratio.tolist() == [0.0, 0.0]
    assert sampler.t_eff.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("arguments", [(20,), (40, 0.5)], ids=["half of the data", "dropout"])
def test_parts_of_the_data_and_random_layers_have_noise(arguments):
    assert trained(*arguments).noise_ratio.min() > 0
