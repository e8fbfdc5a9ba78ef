"""Tests of `bdl.samplers.backpropagated`: closures whose gradient is not that of the loss that they return."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from closures import closure_of
from torch import nn

import bdl
from bdl.errors import BdlWarning
from bdl.samplers.backpropagated import leaves_of


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch):
    if "torch._dynamo.eval_frame" in sys.modules:  # which is slow to import
        monkeypatch.setattr("torch._dynamo.eval_frame.cached_backends", {})


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
    return sampler.steps


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
        assert steps(back, chains) == 3


def clipped(loss):
    loss.backward()
    torch.nn.utils.clip_grad_value_([leaf for leaf in leaves_of(loss)], 1e-9)


def replaced(loss):
    loss.backward()
    for leaf in leaves_of(loss):
        leaf.grad = leaf.grad / 2


@pytest.mark.parametrize("back", [clipped, replaced])
@pytest.mark.parametrize("chains", [None, 2])
def test_gradients_that_are_changed_afterwards_are_told_once(back, chains):
    with pytest.warns(BdlWarning, match="changes the gradients after it back-propagates") as told:
        steps(back, chains)
    assert len(told) == 1


def test_a_kernel_that_calls_the_closure_often_tells_it_once():
    net, x = nn.Linear(3, 1), torch.randn(40, 3)
    sampler = bdl.Sampler(net.named_parameters(), bdl.HMC(5), num_data=40, lr=0.01)

    def closure():
        sampler.zero_grad()
        loss = net(x).square().mean()
        scaled(loss)
        return loss

    with pytest.warns(BdlWarning, match="once and unscaled") as said:
        sampler.step(closure)
    assert len(said) == 1


def test_a_compiled_network_is_compiled_once():
    """What runs in another function mode than before is compiled again."""
    net, x, graphs = nn.Linear(3, 1), torch.randn(40, 3), []
    fast = torch.compile(net, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGHMC(), num_data=40, lr=0.01)
    closure = closure_of(sampler, lambda: fast(x).square().mean())
    for _ in range(3):
        sampler.step(closure)
    assert len(graphs) == 1
