"""Tests of `bdl.samplers.backpropagated`: closures whose gradient is not that of the loss that they return."""

import sys
import warnings

import lightning as L
import pytest
import torch
from closures import closure_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


def thrice_by_hand(loss):
    torch.autograd.backward(3 * loss)


def put(loss, factor=1):
    leaves = list(leaves_of(loss))
    for leaf, gradient in zip(leaves, torch.autograd.grad(factor * loss, leaves), strict=True):
        leaf.grad = gradient


def put_thrice(loss):
    put(loss, 3)


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
@pytest.mark.parametrize("back", [scaled, by_a_scaler, thrice, thrice_by_hand, put_thrice])
def test_a_gradient_that_is_not_the_loss_s_is_told_once(back, chains):
    with pytest.warns(BdlWarning, match="back-propagate the loss that you return, once and unscaled") as said:
        steps(back, chains)
    assert len(said) == 1 and said[0].filename == __file__


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("back", [torch.Tensor.backward, in_parts, by_hand, put])
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


@pytest.mark.parametrize("zeroes", [False, True])
def test_gradients_that_nobody_zeroes_are_told_once(zeroes):
    """Those of a batch in two parts are none of them: zeroed before the first part, that is."""
    net, x = nn.Linear(3, 1), torch.randn(40, 3)
    sampler = bdl.Sampler(net.named_parameters(), bdl.SGHMC(), num_data=40, lr=0.01)

    def closure():
        loss = net(x).square().mean()
        (loss / 2 if zeroes else loss).backward()
        return loss.detach() / 2 if zeroes else loss

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            if zeroes:
                sampler.zero_grad()
                (net(x).square().mean() / 2).backward()
            sampler.step(closure)
    told = [str(w.message) for w in said if issubclass(w.category, BdlWarning)]
    assert len(told) == (not zeroes) and all("adds to the gradients of the step before" in line for line in told)


class Trained(L.LightningModule):
    def __init__(self, factor):
        super().__init__()
        self.net, self.factor = nn.Linear(3, 1), factor

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def backward(self, loss, *args, **kwargs):
        (self.factor * loss).backward()

    def configure_optimizers(self):
        return bdl.Sampler(self.named_parameters(), bdl.SGHMC(), num_data=40, lr=0.01)


@pytest.mark.parametrize("factor, parts, told", [(1, 1, 0), (3, 1, 1), (1, 2, 0)])
def test_a_module_that_scales_its_loss_is_told(tmp_path, factor, parts, told):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        L.Trainer(
            max_steps=3, max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path, gradient_clip_val=1e-3,
            accumulate_grad_batches=parts, callbacks=[bdl.CollectSamples(bdl.schedules.EveryStep(1, 1))],
        ).fit(Trained(factor), DataLoader(TensorDataset(torch.randn(40, 3)), 10, shuffle=True))  # fmt: skip
    assert sum("once and unscaled" in str(w.message) for w in said) == told
    assert not any("changes the gradients" in str(w.message) for w in said)


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
