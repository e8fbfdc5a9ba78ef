"""Tests of `bdl.samplers.backpropagated`: closures whose gradient is not that of the loss that they return."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import bdl
from bdl.errors import BdlWarning


def scaled(loss):
    (1000 * loss).backward()


def by_a_scaler(loss):
    torch.amp.GradScaler("cpu").scale(loss).backward()


def thrice(loss):
    for _ in range(3):
        loss.backward(retain_graph=True)


def in_parts(loss):
    for _ in range(2):
        (loss / 2).backward(retain_graph=True)


def by_hand(loss):
    torch.autograd.backward(loss)


def steps(back, chains=None):
    net = nn.Linear(3, 1) if chains is None else bdl.ChainStack(nn.Linear(3, 1), chains, shared=True)
    plain = net if chains is None else net.net
    sampler = bdl.Sampler(plain.named_parameters(), bdl.SGHMC(), num_data=40, lr=0.01, chains=chains)
    x = torch.randn(40, 3)
    for _ in range(3):

        def closure():
            sampler.zero_grad()
            loss = net(x).square().mean(-1).mean(-1)
            back(loss if chains is None else loss.sum())
            return loss

        sampler.step(closure)


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("back", [scaled, by_a_scaler, thrice])
def test_a_gradient_that_is_not_the_loss_s_is_told_once(back, chains):
    with pytest.warns(BdlWarning, match="back-propagate the loss that you return, once and unscaled") as said:
        steps(back, chains)
    assert len(said) == 1 and said[0].filename == __file__


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("back", [torch.Tensor.backward, in_parts, by_hand])
def test_other_ways_to_the_same_gradient_pass(back, chains):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(back, chains)
