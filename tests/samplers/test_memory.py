"""Tests of `bdl.lent`: how many bytes a parameter of a large network costs, counted in live tensors at d = 10^5.

A network is large from 2^20 numbers on. The tests lower that bound, so that small ones show the same.
"""

from __future__ import annotations

import copy
import tracemalloc

import pytest
import torch
from memory import Memory
from torch import Tensor, nn

import bdl
from bdl import lent
from bdl.posterior.store import SampleStore
from bdl.samplers import batch_noise, parallel

LAYERS, WIDTH = 10, 100
D = LAYERS * (WIDTH + 1) * WIDTH  # 101,000 numbers; one layer has a tenth of them
X, Y = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 5])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setattr(lent, "FROM", 1000)
    monkeypatch.setattr(batch_noise, "MOST", 1000)


class Run:
    """A plain loop over one network."""

    def __init__(self, net: nn.Module | None = None, dynamics=None, **settings):
        self.net = network() if net is None else net
        arguments = {"num_data": 100, "lr": 1e-5} | settings
        self.sampler = bdl.Sampler(self.net.named_parameters(), dynamics or bdl.SGHMC(), **arguments)

    def closure(self) -> Tensor:
        self.sampler.zero_grad()
        loss = bdl.CategoricalNLL()(self.net(X), Y).mean()
        loss.backward()
        return loss

    def go(self, steps: int) -> Run:
        for _ in range(steps):
            self.sampler.step(self.closure)
        return self


@pytest.fixture
def memory(large):
    with Memory() as memory:
        yield memory


def test_a_chain_of_sghmc_costs_16_bytes_a_parameter(memory):
    """θ, gradient, momentum, noise. A tenth more is what one layer's backward pass needs, and every 20th step too."""
    run, peaks = Run(), []
    for _ in range(45):
        memory.begin()
        run.go(1)
        peaks.append(memory.peak / D)
    assert max(peaks[2:]) < 16.7 and memory.alive() / D < 16.2


def test_a_named_prior_costs_4_bytes_a_parameter(memory):
    """The network included. What runs share is told without a list of all scales."""
    net = network()
    memory.begin()
    sampler = Run(net, prior=bdl.Gaussian("he")).sampler
    assert memory.peak / D < 20.1
    before = memory.begin()
    law = sampler.law()
    assert len(law["prior"]["precision"]["values"]) < 25 and (memory.peak - before) / D < 1.1


def test_a_sample_is_copied_once(memory, tmp_path):
    run = Run().go(2)
    store, before = SampleStore(tmp_path), memory.begin()
    store.append(run.sampler, run.net)
    assert (memory.peak - before) / D < 4.1


def test_a_sample_is_read_once(memory, tmp_path):
    """Its tensors are all that is held: no bytes of the file, and no flags for numbers that are not finite."""
    run, store = Run().go(2), SampleStore(tmp_path)
    record, before = store.append(run.sampler, run.net), memory.begin()
    tracemalloc.start()
    tensors = store.read(record)
    _, of_python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (memory.peak - before) / D < 4.1 and of_python / D < 0.5
    assert sum(t.numel() for t in tensors.values()) >= D


def test_a_saved_state_is_not_copied_on_its_way(memory):
    run = Run().go(23)
    saved, before = copy.deepcopy(run.sampler.state_dict()), memory.begin()
    before = memory.begin()
    run.sampler.load_state_dict(saved)
    assert (memory.peak - before) / D < 4.1


def test_ranks_are_compared_in_parts(memory, monkeypatch):
    """The hash is that of the whole tensors at once."""
    theta, m = torch.randn(D), torch.randn(7)
    at_once = parallel.fingerprint([theta, m])
    monkeypatch.setattr(parallel, "PART", 100)
    before = memory.begin()
    assert parallel.fingerprint([theta, m]) == at_once
    assert (memory.peak - before) / D < 0.6


def test_a_stack_on_a_frozen_body_copies_its_heads(memory):
    """Eight heads of 1,010 numbers on a body of 101,000, whose memory they share with the network."""
    whole = nn.Sequential(network(), nn.Linear(WIDTH, 10))
    before = memory.begin()
    stack = bdl.ChainStack(whole, 8, only="1.*")
    assert (memory.peak - before) / D < 0.4
    assert stack.net[0][0].weight.data_ptr() == whole[0][0].weight.data_ptr()
    assert whole[0][0].weight.requires_grad and not stack.net[0][0].weight.requires_grad


def test_the_memory_that_is_counted(memory):
    """Negative control: a copy of all parameters shows, and goes."""
    run = Run()
    before = memory.begin()
    copies = [p.detach().clone() for p in run.net.parameters()]
    assert (memory.alive() - before) / D == pytest.approx(4, abs=0.01)
    del copies
    assert memory.alive() == before


def test_lent_gradients_are_those_that_autograd_makes(monkeypatch):
    """To the bit over 25 steps; also where somebody else clears the gradients, and where one was put there by hand."""
    plain = Run().go(25)
    monkeypatch.setattr(lent, "FROM", 1000)
    run = Run().go(10)
    run.sampler.zero_grad = run.net.zero_grad
    run.go(10)
    del run.sampler.zero_grad
    original = run.closure

    def by_hand() -> Tensor:
        loss = original()
        for p in run.net.parameters():
            p.grad = p.grad.clone()
        return loss

    run.closure = by_hand
    run.go(5)
    assert run.sampler.chain.lent is not None and plain.sampler.chain.lent is None
    assert torch.equal(run.sampler.chain.theta, plain.sampler.chain.theta)


def test_a_parameter_without_a_gradient_stays(large):
    """A lent gradient is a tensor in every case; its version tells whether autograd has written to it."""
    net = nn.ModuleDict({"used": network(), "idle": nn.Linear(3, 2)})
    run = Run(net.used, prior=bdl.Gaussian(1.0))
    run.sampler = bdl.Sampler(net.named_parameters(), bdl.SGHMC(), num_data=100, lr=1e-5)
    idle = net.idle.weight.detach().clone()
    with pytest.warns(bdl.BdlWarning, match="2 of 22 parameters, idle.weight the first, have no gradient"):
        run.go(3)
    assert torch.equal(net.idle.weight, idle)


def test_micro_batches_add_up(large):
    """Two backward passes before a step give the gradient of the sum of their losses."""
    one, two = Run(), Run()

    def twice() -> Tensor:
        two.sampler.zero_grad()
        for _ in range(2):
            (bdl.CategoricalNLL()(two.net(X), Y).mean() / 2).backward()
        return bdl.CategoricalNLL()(two.net(X), Y).mean().detach()

    two.closure = twice
    torch.testing.assert_close(one.go(3).sampler.chain.theta, two.go(3).sampler.chain.theta, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dynamics", [bdl.SGHMC(0.1), bdl.SGLD(), bdl.PSGLD(damping=0.1), bdl.SGNHT(0.1)], ids=str)
def test_the_noise_ratio_of_some_coordinates_is_that_of_all(dynamics, monkeypatch):
    """The gradients are N(0, 1) in 20,000 coordinates. A mean over 20 pairs of 6,667 of them, whose terms have a
    relative spread of sqrt(2), lies within 4.5 sqrt(2 / 133,000) = 1.8 % of one over all.
    """
    ratios = []
    for most in (10**6, 7000):
        monkeypatch.setattr(batch_noise, "MOST", most)
        theta, draw = torch.zeros(20_000, requires_grad=True), torch.Generator().manual_seed(0)
        sampler = bdl.Sampler([theta], dynamics, num_data=50, lr=1e-3)
        for _ in range(400):
            theta.grad = torch.randn(20_000, generator=draw)
            sampler.step()
        assert sampler.batch_noise.mean.shape == (20_000 if most == 10**6 else 6667,)
        ratios.append(float(sampler.noise_ratio))
    assert ratios[1] == pytest.approx(ratios[0], rel=0.02)


@pytest.mark.parametrize("dynamics", [bdl.SGHMC(grad_var="estimated"), bdl.SGLD(grad_var=[0.1] * 2000)], ids=["e", "g"])
def test_a_dynamics_that_reads_each_variance_has_each(dynamics, large):
    theta = torch.zeros(2000, requires_grad=True)
    sampler = bdl.Sampler([theta], dynamics, num_data=50, lr=1e-3)
    for _ in range(30):
        theta.grad = torch.ones(2000)
        sampler.step()
    assert sampler.batch_noise.mean.shape == (2000,) and sampler.t_eff.ndim == 0
