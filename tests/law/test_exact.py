"""Tests of `bdl.law.exact`, `.continuation` and `.thermometer`."""

import copy

import pytest
import torch
from torch import nn

import bdl
from bdl.data.slices import TensorSlices
from bdl.law.continuation import continue_exactly
from bdl.law.exact import ExactPotential

N, CHAINS = 90, 4
RANDOM = torch.Generator().manual_seed(1)
X, Y = torch.randn(N, 5, generator=RANDOM), torch.randint(0, 3, (N,), generator=RANDOM)


def mlp():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def bound(prior, net, chains=CHAINS):
    params = [p for p in net.parameters() if p.requires_grad]
    return prior.bind([tuple(p.shape) for p in params], torch.zeros(chains, sum(p.numel() for p in params)))


def potential_of(net, only=None, batch_size=32, prior=None):
    prior = bound(bdl.Gaussian(2.0), net) if prior is None else prior
    return ExactPotential(net, CHAINS, bdl.CategoricalNLL(), prior, TensorSlices(X, Y, batch_size), N, only=only)


def by_autograd(net, theta):
    """U and ∇U of one network, double."""
    net = copy.deepcopy(net).double()
    torch.nn.utils.vector_to_parameters(theta.double(), [p for p in net.parameters() if p.requires_grad])
    params = [p for p in net.parameters() if p.requires_grad]
    energy = nn.functional.cross_entropy(net(X.double()), Y, reduction="sum")
    energy = energy + sum(p.square().sum() for p in params)  # precision 2
    return energy.detach(), torch.cat([g.flatten() for g in torch.autograd.grad(energy, params)])


@pytest.mark.parametrize("batch_size", [N, 32])
def test_energy_and_gradient_are_those_of_all_the_data(batch_size):
    net = mlp()
    potential = potential_of(net, batch_size=batch_size)
    theta = torch.randn(CHAINS, sum(potential.sizes), generator=RANDOM)
    energy, g = potential(theta)
    for c in range(CHAINS):
        expected, gradient = by_autograd(net, theta[c])
        assert torch.allclose(energy[c], expected, rtol=1e-5)
        assert torch.allclose(g[c].double(), gradient, rtol=1e-3, atol=1e-3)


def test_it_leaves_the_network_alone_and_takes_the_given_states():
    net = mlp()
    before = copy.deepcopy(net.state_dict())
    potential = potential_of(net)
    states = {name: torch.randn(CHAINS, *p.shape, generator=RANDOM) for name, p in net.named_parameters()}
    theta = potential.put(states)
    assert torch.equal(theta[1], torch.cat([states[name][1].flatten() for name in potential.names]))
    potential(theta + 1)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_part_of_the_network_alone_is_moved():
    net = mlp()
    potential = potential_of(net, only=["2.*"], prior=bdl.Uniform())
    assert potential.names == ["2.weight", "2.bias"]
    assert potential(torch.zeros(CHAINS, 24))[1].shape == (CHAINS, 24)


def test_single_rows_stand_for_the_data():
    net = mlp()
    potential, rows = potential_of(net, prior=bdl.Uniform()), torch.arange(0, N, 3)
    theta = torch.randn(CHAINS, sum(potential.sizes), generator=RANDOM)
    energy, _ = potential(theta, potential.rows(rows))
    one = ExactPotential(net, CHAINS, bdl.CategoricalNLL(), bdl.Uniform(), TensorSlices(X[rows], Y[rows]), 30)
    assert torch.allclose(energy, 3 * one(theta)[0])


class Quadratic:
    """U = Σ h θ²/2, as an ExactPotential answers."""

    num_data = 10

    def __init__(self, curvature):
        self.curvature = curvature

    def __call__(self, theta):
        return (self.curvature * theta.double().square()).sum(-1) / 2, (self.curvature * theta.double()).to(theta)


@pytest.mark.parametrize(("heat", "falls"), [(1.0, False), (3.0, True)])
def test_energy_falls_from_hot_states_and_rests_at_those_of_law(heat, falls):
    chains, curvature = 64, torch.logspace(2, 0, 40, dtype=torch.float64)
    theta = (torch.randn(chains, 40, generator=RANDOM, dtype=torch.float64) * (heat / curvature).sqrt()).float()
    t, steepest = torch.ones(chains, dtype=torch.float64), torch.full((chains,), 100.0, dtype=torch.float64)
    found = continue_exactly(Quadratic(curvature), theta, t, steepest, 30, RANDOM)  # type: ignore[arg-type]
    assert 0.6 < found.acceptance < 1
    error = float(found.change.std()) / chains**0.5
    if falls:
        assert float(found.change.mean()) + 6 * error < -20  # 40/2 nats for each T too much, most of them soon
    else:
        assert abs(float(found.change.mean())) < 4 * error < 4
