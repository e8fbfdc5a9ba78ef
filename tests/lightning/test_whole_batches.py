"""Gradients of all the data have no batch noise, and T_eff says so; parts of a pass have less than independent ones."""

import functools
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import bdl
from bdl.data.loader import TensorBatches


def trained(batch_size: int, dropout: float = 0.0, loader: Any = None, accumulate: int = 1) -> bdl.Sampler:
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(dropout), nn.Tanh(), nn.Linear(4, 2))
    build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=40, lr=0.1)
    module = bdl.BayesianModule(bdl.ChainStack(net, 2, shared=loader in (shuffled, redrawn)), build)
    trainer = L.Trainer(
        max_steps=100, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
        accumulate_grad_batches=accumulate,
    )  # fmt: skip
    trainer.fit(module, loader(x, y, batch_size) if loader else TensorBatches(x, y, batch_size, chains=2))
    return module.sampler


def test_whole_batches_are_noiseless_though_the_gradient_changes():
    sampler = trained(40)
    assert sampler.batch_noise.variance.mean() > 0  # what the motion of θ would be taken for
    assert sampler.noise_ratio.tolist() == [0.0, 0.0]
    assert sampler.t_eff.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("arguments", [(20,), (40, 0.5)], ids=["half of the data", "dropout"])
def test_parts_of_the_data_and_random_layers_have_noise(arguments):
    assert trained(*arguments).noise_ratio.min() > 0


def independent(x: torch.Tensor, y: torch.Tensor, batch_size: int) -> TensorBatches:
    return TensorBatches(x, y, batch_size, chains=2, replacement=True)


def shuffled(x: torch.Tensor, y: torch.Tensor, batch_size: int) -> DataLoader:
    return DataLoader(TensorDataset(x, y), batch_size, shuffle=True)


def redrawn(x: torch.Tensor, y: torch.Tensor, batch_size: int) -> DataLoader:
    items = TensorDataset(x, y)
    return DataLoader(items, batch_size, sampler=RandomSampler(items, replacement=True))


def test_items_that_are_drawn_again_are_not_all_the_data():
    """Batches of N items with replacement have noise."""
    sampler = trained(40, loader=independent)
    assert not sampler.host.sees_all_data and sampler.noise_ratio.min() > 0


@pytest.mark.parametrize(
    "arguments, share",
    [
        ({"batch_size": 10}, 0.75),
        ({"batch_size": 10, "dropout": 0.5}, 1.0),
        ({"batch_size": 10, "loader": independent}, 1.0),
        ({"batch_size": 10, "loader": shuffled}, 0.75),
        ({"batch_size": 10, "loader": redrawn}, 1.0),
        ({"batch_size": 10, "accumulate": 2}, 0.5),
    ],
    ids=["parts", "dropout", "independent", "shuffled", "redrawn", "accumulated"],
)
def test_the_noise_of_parts_of_a_pass_is_what_a_pass_leaves(arguments: dict[str, Any], share: float):
    """1 - B/N of what differences of batches show, where these are disjoint and nothing else is random."""
    sampler = trained(**arguments)
    assert sampler.host.noise_share == pytest.approx(share)
    variance = sampler.batch_noise.variance
    assert variance is not None
    torch.testing.assert_close(sampler.host.of_one_batch(sampler.batch_noise.variance), share * variance)
