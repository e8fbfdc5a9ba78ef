"""Tests of `bdl.engine.gradient` and `bdl.samplers.moves`.

What a module gives to dynamics and kernels: per-example gradients, batches of all the data, chains to exchange.
"""

import pytest
import torch
import toys
from torch import nn

import bdl
from bdl.posterior.store import SampleStore


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize("loss", [bdl.CategoricalNLL(), nn.CrossEntropyLoss()], ids=["per item", "mean"])
@pytest.mark.parametrize("make", [toys.plain, conv], ids=["mlp", "conv"])
def test_per_example_gradients_are_those_of_one_item_at_a_time(make, loss):
    torch.manual_seed(0)
    net = make()
    x = torch.randn(5, 3) if make is toys.plain else torch.randn(5, 1, 4, 4)
    y = torch.tensor([0, 1, 2, 1, 0])
    rows = bdl.per_example_gradients(net, loss, x, y)
    for i in range(5):
        grads = torch.autograd.grad(loss(net(x[i : i + 1]), y[i : i + 1]).mean(), list(net.parameters()))
        torch.testing.assert_close(rows[i], torch.cat([g.flatten() for g in grads]))


def test_per_example_gradients_leave_frozen_parameters_out():
    net = toys.plain()
    next(net.parameters()).requires_grad_(False)
    rows = bdl.per_example_gradients(net, bdl.CategoricalNLL(), *toys.tensors(4))
    assert rows.shape == (4, sum(p.numel() for p in net.parameters() if p.requires_grad))


def test_a_network_whose_items_depend_on_each_other_is_refused():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(bdl.ConfigError, match="the network has no per-example gradients"):
        bdl.per_example_gradients(net, bdl.CategoricalNLL(), *toys.tensors(4))


@pytest.mark.parametrize("shared", [False, True])
def test_a_stack_has_per_example_gradients_per_chain(shared):
    """Their mean over the batch is the gradient that the step uses."""
    stack = bdl.ChainStack(toys.plain(), 2, seed=0, shared=shared)
    module = toys.module(stack, chains=2)
    x, y = toys.tensors()
    batch = (x[:6], y[:6]) if shared else (torch.stack([x[:6], x[6:12]]), torch.stack([y[:6], y[6:12]]))
    module.training_step(batch, 0).sum().backward()
    rows = module.per_example()
    g = torch.cat([p.grad.flatten(1) for p in stack.parameters()], 1)
    assert rows.shape == (2, 6, g.shape[1])
    torch.testing.assert_close(rows.mean(1), g)
    assert not torch.allclose(rows[0], rows[1])


def test_gradients_after_per_example_ones_are_those_of_the_batch():
    """The extra pass must leave `.grad` unchanged."""
    module = toys.module(chains=2)
    x, y = toys.tensors()
    batch = (x.expand(2, *x.shape), y.expand(2, *y.shape))
    module.training_step(batch, 0).sum().backward()
    before = [p.grad.clone() for p in module.net.parameters()]
    module.per_example()
    assert all(torch.equal(a, p.grad) for a, p in zip(before, module.net.parameters(), strict=True))


def test_a_kernel_reports_its_acceptance(tmp_path):
    monitor, memory = bdl.Monitor(5), toys.Memory()
    module = toys.module(dynamics=bdl.MALA(adapt_steps=60), lr=0.05)
    toys.trainer(tmp_path, 200, [monitor], logger=memory).fit(module, toys.batches(batch=toys.N))
    assert module.sampler.acceptance.shape == (2,)
    assert (module.sampler.acceptance > 0.3).all() and (module.sampler.acceptance < 0.85).all()
    torch.testing.assert_close(monitor.trace()["acceptance"][-1], module.sampler.acceptance)
    assert memory.steps("chain/acceptance")[-1] == 200
    assert "acceptance 0." in module.sampler.explain()


def test_exchange_keeps_the_chains_of_the_first_rung(tmp_path):
    """In two ladders (0, 1) and (2, 3) those are chains 0 and 2: their states, energies and temperatures are kept."""
    exchange, memory = bdl.Exchange((1.0, 1.5), energy_var=0.0), toys.Memory()
    monitor = bdl.Monitor(2)
    module = toys.module(chains=4, exchange=exchange, temperature=0.5)
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(0, 2), tmp_path)
    average = bdl.ModelAverage(bdl.schedules.EveryStep(0, 2), bdl.data.TensorSlices(*toys.tensors(seed=2)))
    toys.trainer(tmp_path, 8, [collect, average, monitor], logger=memory).fit(module, toys.batches(chains=4))
    records = SampleStore(tmp_path).records()
    assert all(r.chains == [0, 2] and len(r.energy_full or []) in (0, 2) for r in records)
    assert all(r.temperature == [0.5, 0.5] for r in records)
    posterior = bdl.Posterior.load(tmp_path, toys.plain())
    assert posterior.chains == 2 and average.count == 8
    stored = [s.tensors for s in posterior.stream() if s.record.step == 8]
    for name, p in module.net.net.named_parameters():
        assert torch.equal(torch.stack([tensors[name] for tensors in stored]), p.detach()[[0, 2]])
    assert monitor.trace()["energy"].shape[1] == 2
    assert memory.steps("chain/swap_rate_0") == [2, 4, 6, 8]
    assert "replica exchange: temperatures T times 1, 1.5" in module.sampler.explain()


def test_a_variational_run_reports_its_bound(tmp_path):
    memory = toys.Memory()
    module = toys.module(dynamics=bdl.MeanField(), lr=0.02)
    toys.trainer(tmp_path, 300, [bdl.Monitor(10)], logger=memory).fit(module, toys.batches(batch=toys.N))
    bounds = [row["chain/elbo"] for _, row in memory.rows if "chain/elbo" in row]
    assert len(bounds) == 30 and sum(bounds[-5:]) > sum(bounds[:5])
    assert module.sampler.elbo.shape == (2,)


def test_exchange_swaps_more_on_full_energies_than_on_batches(tmp_path):
    """Energies of 40 items, estimated from batches of 10, err by several nats, and the penalty for that leaves fewer
    swaps. Full energies need no penalty. Both runs are equal in all else."""
    rates = {}
    for kind in ("batch", "full"):
        exchange = bdl.Exchange((1.0, 2.0), energy=kind)
        chains = 8  # four pairs: replicas of one pair may stay apart in energy for longer than a run
        module = toys.module(chains=chains, exchange=exchange, lr=0.02)
        toys.trainer(tmp_path / kind, 400).fit(module, toys.batches(chains=chains))
        rates[kind] = module.sampler.swap_rates.item()
    assert rates["full"] > 1.5 * rates["batch"] > 0
