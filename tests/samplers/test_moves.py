"""Tests of `bdl.samplers.moves`, `.kernel_moves` and `.dynamics.base`.

One step, in its order; and the dynamics, states and settings that the sampler refuses.
"""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import bdl
from bdl.errors import ConfigError

N = 20
D64 = torch.float64


def sampler_of(theta: nn.Parameter, dynamics, **arguments) -> bdl.Sampler:
    return bdl.Sampler([theta], dynamics, **dict(num_data=N, lr=0.1, temperature=1.0, prior=bdl.Uniform()) | arguments)


@pytest.mark.parametrize("clip", [bdl.ClipNorm(0.5), bdl.ClipValue(0.5)], ids=str)
def test_the_gradient_is_clipped_before_it_is_weighted(clip):
    """θ moves by lr w clip(g): the weighting scales the clipped gradient, so that a step may exceed the bound."""
    theta = nn.Parameter(torch.zeros(1, dtype=D64))
    weighting = bdl.AdaptiveWeight(low=0.0, high=20.0, bins=10, rate=lambda k: 0.5)
    sampler = sampler_of(theta, bdl.SGD(0.0), clip=clip, weighting=weighting)
    for k in range(200):
        before = theta.detach().clone()
        theta.grad = torch.full_like(theta, 3.0)
        sampler.step(lambda k=k: torch.tensor(0.04 * (k % 26), dtype=D64))
        torch.testing.assert_close(before - theta.detach(), 0.1 * sampler.multiplier.reshape(1) * 0.5)
    assert sampler.multiplier > 1.2


@dataclass(frozen=True)
class Drift(bdl.Dynamics):
    """Gradient descent whose `init` returns whatever the test wants."""

    state: type

    def init(self, theta):
        return self.state(theta)

    def step(self, s, g, lr, tau, z):
        s.theta.sub_(lr * g)
        return s


@dataclass(frozen=True)
class Swapping(Drift):
    travels = ("theta", "speed")


@dataclass(frozen=True)
class DuckTyped:
    def init(self, theta):
        return bdl.Position(theta)

    def step(self, s, g, lr, tau, z):
        return s


@pytest.mark.parametrize(
    "dynamics, words",
    [
        (DuckTyped(), "must be an object of a subclass of bdl.Dynamics or bdl.FullBatch, .*, got DuckTyped"),
        (Drift(namedtuple("State", "theta")), "Drift.init must return a dataclass, .* got State"),
        (Drift(list), "got list"),
        (Swapping(bdl.Position), "the state of Swapping, Position, has no field 'speed'"),
    ],
    ids=["no subclass", "named tuple", "list", "missing field"],
)
def test_dynamics_that_do_not_fit_are_refused_in_one_line(dynamics, words: str):
    with pytest.raises(ConfigError, match=words) as error:
        sampler_of(nn.Parameter(torch.zeros(2)), dynamics)
    assert "\n" not in str(error.value)


def test_abstract_bases_cannot_be_built():
    for base in (bdl.Dynamics, bdl.AcceptReject):
        with pytest.raises(TypeError, match="abstract"):
            base()


def test_a_minimal_dynamics_samples_its_law():
    """A dynamics of the user's own needs `init` and `step`: everything else has a default."""

    @dataclass(frozen=True)
    class Langevin(bdl.Dynamics):
        def init(self, theta):
            return bdl.Position(theta)

        def step(self, s, g, lr, tau, z):
            s.theta.sub_(lr * g).add_((2 * lr * tau) ** 0.5 * z)
            return s

    ends = []
    for dynamics in (Langevin(), bdl.SGLD()):
        theta = nn.Parameter(torch.zeros(3, 2, dtype=D64))
        sampler = sampler_of(theta, dynamics, chains=3, prior=bdl.Gaussian(1.0))
        for _ in range(25):
            theta.grad = torch.zeros_like(theta)
            sampler.step(lambda: torch.zeros(3, dtype=D64))
        ends.append((theta.detach().clone(), sampler.t_eff, sampler.explain().partition("\n")[2]))
    torch.testing.assert_close(ends[0][0], ends[1][0])
    torch.testing.assert_close(ends[0][1], ends[1][1])
    assert ends[0][2] == ends[1][2]


@pytest.mark.filterwarnings("ignore:1 of 2 parameters")
def test_pure_dynamics_leaves_parameters_without_gradient_alone():
    """Also where the step returns new tensors: the momentum of an idle parameter is restored in the new state."""

    @dataclass(frozen=True)
    class Pure(bdl.Dynamics):
        travels = ("theta", "m")

        def init(self, theta):
            return bdl.Kinetic(theta, torch.zeros_like(theta))

        def step(self, s, g, lr, tau, z):
            m = 0.9 * s.m - lr * (g + 1)
            return bdl.Kinetic(s.theta + m, m)

    a, b = (nn.Parameter(torch.ones(2, dtype=D64)) for _ in range(2))
    sampler = bdl.Sampler([a, b], Pure(), num_data=N, lr=0.1, prior=bdl.Uniform())
    for p in (a, b):
        p.grad = torch.ones_like(p)
    sampler.step()
    value, momentum = b.detach().clone(), sampler.chain.state.m[2:].clone()
    b.grad = None
    sampler.step()
    assert torch.equal(b.detach(), value) and torch.equal(sampler.chain.state.m[2:], momentum)
    assert not torch.equal(a.detach(), torch.ones(2, dtype=D64))
    assert torch.equal(sampler.state_dict()["state"][1]["m"], momentum)
