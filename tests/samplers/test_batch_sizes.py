"""Tests of `bdl.samplers.batch_sizes`: a batch counts for its items, in a plain loop."""

import warnings

import numpy as np
import pytest
import torch
from closures import closure_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.errors import BdlWarning, ConfigError
from bdl.samplers import batch_sizes
from bdl.torch_private import reduced_shape

SGLD, NORMAL = bdl.SGLD(), bdl.GaussianNLL(1.0)
LR = 1e-9  # so small that θ stands still, up to the displacement that is measured


def data(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(n, 2, dtype=torch.float64), torch.randn(n, 1, dtype=torch.float64)
    y[-1] += 50  # in the short batch of a fixed order, where there is one
    return x, y


def sampler_of(net: nn.Module, n: int, dynamics=SGLD, **settings) -> bdl.Sampler:
    settings = {"temperature": 0.0, "prior": bdl.Uniform(), "lr": LR, **settings}
    return bdl.Sampler(net.named_parameters(), dynamics, num_data=n, **settings)


def loop(net, sampler, x, y, passes, loss=NORMAL, told=True, **loader):
    """Energies (passes, batches), and displacements of the weights per pass over lr."""
    energies, moves = [], []
    for _ in range(passes):
        before = sampler.chain.theta.clone()
        for xb, yb in DataLoader(TensorDataset(x, y), **loader):
            closure = closure_of(sampler, lambda xb=xb, yb=yb: loss(net(xb), yb).mean())
            sampler.step(closure, items=len(xb) if told else None)
            energies.append(sampler.energy.item())
        moves.append((before - sampler.chain.theta) / LR)
    return torch.tensor(energies, dtype=torch.float64).view(passes, -1), moves


@pytest.mark.parametrize("n, size", [(31, 10), (29, 10), (30, 10), (7, 10)])
def test_a_pass_has_the_energy_and_the_gradient_of_all_the_data(n, size):
    """In a fixed order, where no shuffling hides it: the mean over a pass is the value for all the data."""
    x, y = data(n)
    net = nn.Linear(2, 1, dtype=torch.float64)
    sampler = sampler_of(net, n)
    energies, moves = loop(net, sampler, x, y, passes=4, batch_size=size)
    loss = NORMAL(net(x), y).mean()
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    for of_pass, move in zip(energies[1:], moves[1:], strict=True):  # sizes and the mean loss are known after one
        assert of_pass.mean().item() == pytest.approx(n * loss.item(), rel=1e-6)
        torch.testing.assert_close(move / len(of_pass), gradient, rtol=1e-5, atol=1e-7)


def test_batches_left_out_count_for_nothing():
    """drop_last: all batches are alike, though N is no multiple of their size."""
    x, y = data(31)
    nets = [nn.Linear(2, 1, dtype=torch.float64) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    samplers = [sampler_of(net, 31, lr=0.1, temperature=1.0) for net in nets]
    for net, sampler, told in zip(nets, samplers, (True, False), strict=True):
        loop(net, sampler, x, y, 3, told=told, batch_size=10, drop_last=True)
    assert torch.equal(samplers[0].chain.theta, samplers[1].chain.theta)


def test_the_energy_of_a_short_batch_is_no_worse_than_that_of_others():
    """Weighted alone, a batch of one item would show a thirtieth of U."""
    x, y = data(301)
    y[-1] = 0.0
    net = nn.Linear(2, 1, dtype=torch.float64)
    sampler = sampler_of(net, 301)
    energies, _ = loop(net, sampler, x, y, 3, batch_size=100)
    assert energies[1:].std() < 0.2 * energies[1:].mean()


def test_a_resumed_loop_goes_on_with_the_sizes_that_it_knows():
    x, y = data(31)
    net, again = (nn.Linear(2, 1, dtype=torch.float64) for _ in range(2))
    sampler = sampler_of(net, 31, lr=0.01)
    loop(net, sampler, x, y, 2, batch_size=10)
    resumed = sampler_of(again, 31, lr=0.01)
    again.load_state_dict(net.state_dict())
    resumed.load_state_dict(sampler.state_dict())
    energies = [loop(m, s, x, y, 2, batch_size=10)[0] for m, s in ((net, sampler), (again, resumed))]
    assert torch.equal(*energies) and torch.equal(sampler.chain.theta, resumed.chain.theta)


@pytest.mark.parametrize("loss", [NORMAL, nn.MSELoss(), nn.SmoothL1Loss(beta=2.0)])
def test_batches_of_untold_sizes_are_pointed_out_once(loss):
    x, y = data(31)
    net = nn.Linear(2, 1, dtype=torch.float64)
    with pytest.warns(BdlWarning, match=r"differ in size: .*10.*1.*sampler.step\(closure, items=len\(x\)\)") as said:
        loop(net, sampler_of(net, 31), x, y, 3, loss=loss, told=False, batch_size=10)
    assert len(said) == 1 and said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(net, sampler_of(net, 30), x[:30], y[:30], 2, loss=loss, told=False, batch_size=10)


def test_a_loop_is_watched_during_its_first_passes(monkeypatch):
    """To look costs a step of a small network some percent."""
    looked = []
    monkeypatch.setattr(batch_sizes, "reduced_shape", lambda loss: looked.append(loss) or reduced_shape(loss))
    x, y = data(30)
    net = nn.Linear(2, 1, dtype=torch.float64)
    loop(net, sampler_of(net, 30), x, y, passes=6, told=False, batch_size=10)
    assert 6 <= len(looked) < 9  # of 18


def test_dynamics_that_measure_noise_within_a_batch_take_batches_of_one_size():
    x, y = data(31)
    net = nn.Linear(2, 1, dtype=torch.float64)
    sampler = sampler_of(net, 31, bdl.SGFS())
    sampler.extras["per_example"] = lambda: bdl.per_example_gradients(net, NORMAL, x[:10], y[:10])
    with pytest.raises(ConfigError, match="SGFS measures batch noise within a batch, and the batches differ in size"):
        loop(net, sampler, x, y, 1, batch_size=10)


@pytest.mark.parametrize("items", [100.5, 0, -3, True, "10", torch.tensor([1.0, 2.0])])
def test_a_size_that_is_no_number_of_items_is_refused(items):
    x, y = data(30)
    net = nn.Linear(2, 1, dtype=torch.float64)
    with pytest.raises(ConfigError, match="items must be a whole number of at least 1, .*, got "):
        sampler = sampler_of(net, 30)
        sampler.step(closure_of(sampler, lambda: NORMAL(net(x), y).mean()), items=items)


def test_integers_of_numpy_and_torch_are_sizes():
    assert batch_sizes.checked_items(np.int64(3)) == batch_sizes.checked_items(torch.tensor(3)) == 3
