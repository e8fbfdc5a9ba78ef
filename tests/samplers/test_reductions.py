"""Special cases in which a sampler is another method: each test runs that method, too, and compares."""

import copy
import dataclasses

import pytest
import torch
from closures import closure_of
from oracles import COVARIANCE, PRECISION, advance, linear_step
from repeats import slow_where
from table import TABLE, WIDE, Row, equip, repeats
from torch import nn
from torch.nn import functional as F

import bdl
from bdl.seeding import generator

N, LR, PRIOR = 40, 0.1, 3.0
D64 = torch.float64


def network(seed=0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def batch(step: int, data=0):
    """The batch of a step, the same in every run."""
    draw = torch.Generator().manual_seed(1000 * data + step)
    return torch.randn(10, 3, generator=draw, dtype=D64), torch.randint(4, (10,), generator=draw)


def train(net: nn.Module, optimizer, schedule=None, data=0) -> torch.Tensor:
    """Train, and return all parameters as one vector."""
    scheduler = schedule and torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for step in range(40):
        x, y = batch(step, data)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        if scheduler:
            scheduler.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def sampled(dynamics, net=None, schedule=None, data=0, **arguments) -> torch.Tensor:
    net = net or network()
    settings = dict(num_data=N, lr=LR, temperature=1.0, prior=bdl.Gaussian(PRIOR), seed=5) | arguments
    return train(net, equip(bdl.Sampler(net.parameters(), dynamics, **settings)), schedule, data)


def optimised(momentum: float, schedule=None) -> torch.Tensor:
    net = network()
    sgd = torch.optim.SGD(net.parameters(), lr=LR, momentum=momentum, weight_decay=PRIOR / N)
    return train(net, sgd, schedule)


def falling(k):
    return 1 / (1 + 0.1 * k)


@pytest.mark.parametrize("row", [r for r in TABLE if r.sgd], ids=str)
def test_zero_temperature_is_torch_sgd(row: Row):
    """It has momentum 1 - a and weight decay precision / N. Power: a momentum wrong by 1e-6 is seen."""
    theta = sampled(row.build(2, D64), temperature=0.0)
    torch.testing.assert_close(theta, optimised(1 - row.friction), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(theta, optimised((1 - row.friction) * (1 - 1e-6) + 1e-6), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("row", [r for r in TABLE if r.sgd and (not r.noisy or r.friction == 1)], ids=str)
def test_zero_temperature_is_torch_sgd_under_a_schedule(row: Row):
    """SGD, and every dynamics whose friction is 1, also agree while a torch scheduler lowers lr."""
    theta = sampled(row.build(2, D64), temperature=0.0, schedule=falling)
    torch.testing.assert_close(theta, optimised(1 - row.friction, falling), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(theta, optimised(1 - row.friction))


def test_sgd_ignores_the_temperature():
    theta = sampled(bdl.SGD(momentum=0.9), temperature=1.0)
    assert torch.equal(theta, sampled(bdl.SGD(momentum=0.9), temperature=0.0))


def test_friction_one_is_sgld():
    """The chains agree for equal seeds, at T = 1 and while lr falls. Another seed gives another chain."""
    sgld = sampled(bdl.SGLD(), schedule=falling)
    torch.testing.assert_close(sampled(bdl.SGHMC(friction=1.0), schedule=falling), sgld, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(sampled(bdl.SGHMC(friction=1.0), schedule=falling, seed=6), sgld)


UNWEIGHTED = [(r, w) for r in WIDE if r.noisy and r.name != "mean-field" for w in (bdl.AdaptiveWeight, bdl.Contour)]


@pytest.mark.parametrize(
    "row, weighting",
    slow_where(lambda row, w: repeats(row) or w is bdl.Contour and row.name != "sgld", UNWEIGHTED),
    ids=str,
)
def test_zeta_zero_is_flat_bitwise(row: Row, weighting):
    """At zeta = 0 psi learns but does not act. At zeta = 1 it acts."""
    dynamics = row.build(2, D64)
    flat = sampled(dynamics)
    bins = dict(low=20.0, high=120.0, bins=10)
    assert torch.equal(sampled(dynamics, weighting=weighting(zeta=0.0, **bins)), flat)
    if row.name != "sglrw":  # whose probabilities change so little that no step of a short run goes the other way
        assert not torch.equal(sampled(dynamics, weighting=weighting(zeta=1.0, **bins)), flat)


@pytest.mark.parametrize("P", [[0.5, 2.0], [[2.0, 0.7], [0.7, 0.5]]], ids=["diagonal", "dense"])
def test_constant_preconditioner_leaves_the_law(P):
    """By Lyapunov's equation at lr = 1e-6, Cov(θ) = T A⁻¹ to 1e-5 for any P. A drift without P, or noise without the
    root of P, would be wrong by tens of percent."""
    P = torch.tensor(P, dtype=D64)
    covariance = linear_step(bdl.SGLD(P), PRECISION, 1e-6, 0.7).theta_covariance() / 0.7
    torch.testing.assert_close(torch.from_numpy(covariance), COVARIANCE, rtol=1e-5, atol=1e-5)
    step = linear_step(bdl.SGLD(P), PRECISION, 1e-6, 0.7)
    step.B[:] = torch.eye(2).numpy() * (2 * 1e-6 * 0.7) ** 0.5  # noise without P
    assert abs(step.theta_covariance() / 0.7 - COVARIANCE.numpy()).max() > 0.1


class Stack(nn.Module):
    """C copies of `network`, run by batched matrix products."""

    def __init__(self, nets):
        super().__init__()
        for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
            values = torch.stack([net.get_parameter(name).detach() for net in nets])
            self.register_parameter(name.replace(".", ""), nn.Parameter(values))

    def forward(self, x):  # (C, n, 3) -> (C, n, 4)
        h = torch.tanh(torch.baddbmm(self.get_parameter("0bias")[:, None], x, self.get_parameter("0weight").mT))
        return torch.baddbmm(self.get_parameter("2bias")[:, None], h, self.get_parameter("2weight").mT)


def run_stack(stack: Stack, sampler, chains: int) -> torch.Tensor:
    for step in range(40):
        x, y = (torch.stack(parts) for parts in zip(*(batch(step, c) for c in range(chains)), strict=True))
        sampler.step(closure_of(sampler, lambda x=x, y=y: F.cross_entropy(stack(x).mT, y, reduction="none").mean(1)))
    return torch.cat([p.detach().flatten(1) for p in stack.parameters()], 1)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_shell_takes_the_steps_of_the_dynamics(row: Row):
    """To the bit: `step` receives g with the prior, lr, tau = T/N and normal numbers of the stream named by seed and
    stack. Whatever other tests prove of `step` therefore holds through the Sampler."""
    theta = torch.linspace(-1, 1, 6, dtype=D64).view(3, 2).requires_grad_()
    T = torch.tensor([0.5, 1.0, 2.0], dtype=D64)
    settings = dict(num_data=N, lr=LR, temperature=T, prior=bdl.Gaussian(PRIOR), chains=3, seed=3, stack=4)
    sampler = equip(bdl.Sampler([theta], row.build(2, D64), **settings))
    dynamics, stream = row.build(2, D64), generator("cpu", "noise", 3, 4)
    state, z = dynamics.init(theta.detach().clone()), torch.zeros(3, dynamics.noise_numbers(2), dtype=D64)
    for k in range(45):
        theta.grad = torch.sin(theta.detach() * (k + 1))
        g = theta.grad.add(state.theta, alpha=PRIOR / N)
        extra = {name: f() for name, f in sampler.extras.items()}
        sampler.step()
        variance = sampler.batch_noise.variance
        extra["grad_var"] = torch.zeros_like(theta) if variance is None else variance
        if row.noisy:
            z.normal_(generator=stream)
        state = advance(dynamics, state, g, LR, T[:, None] / N, z, extra)
        for field in dataclasses.fields(state):
            ours, theirs = getattr(sampler.chain.state, field.name), getattr(state, field.name)
            assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs)), (k, field.name)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_lr_and_tau_per_chain_act_as_floats_on_each_chain(row: Row):
    """With lr and tau as (C, 1) tensors, tau = 0 among them, each chain steps as it would alone with its floats."""
    draw, dynamics = torch.Generator().manual_seed(0), row.build(2, D64)
    lr, tau = torch.tensor([[0.1], [0.2], [0.3]], dtype=D64), torch.tensor([[0.0], [0.5], [2.0]], dtype=D64)
    theta = torch.randn(3, 2, generator=draw, dtype=D64)
    stack, alone = dynamics.init(theta.clone()), [dynamics.init(theta[c].clone()) for c in range(3)]
    for _ in range(12):
        g, curvature, grad_var = torch.randn(3, 3, 2, generator=draw, dtype=D64)
        z = torch.randn(3, dynamics.noise_numbers(2), generator=draw, dtype=D64)
        extra = {"curvature": curvature, "grad_var": grad_var.square() * 0.1}
        extra["per_example"] = extra["noise_draws"] = torch.randn(3, 5, 2, generator=draw, dtype=D64)
        z[0] = 0
        stack = advance(dynamics, stack, g, lr, tau, z, extra)
        for c in range(3):
            mine = {name: value[c] for name, value in extra.items()}
            alone[c] = advance(dynamics, alone[c], g[c], lr[c].item(), tau[c].item(), z[c], mine)
            for name in (f.name for f in dataclasses.fields(stack)):
                together, single = getattr(stack, name), getattr(alone[c], name)
                if isinstance(single, torch.Tensor):
                    together = together[:, c] if together.ndim > theta.ndim and together.shape[0] == 2 else together[c]
                    torch.testing.assert_close(together, single, rtol=1e-12, atol=1e-12)


def test_grad_var_zero_is_none():
    """They give the same bits. A given variance acts as an estimate of the same value."""
    for kind in (bdl.SGLD, bdl.SGHMC):
        assert torch.equal(sampled(kind(grad_var=0.0)), sampled(kind()))
        assert not torch.equal(sampled(kind(grad_var=1e-3)), sampled(kind()))
        given, estimated = kind(grad_var=1e-3), kind(grad_var="estimated")
        x, g, z = torch.randn(3, 1, 4, dtype=D64)
        ends = [
            advance(
                d, d.init(x.clone()), g, 0.1, 0.5, z, {"grad_var": torch.full((1, 4), 1e-3, dtype=D64)} if e else {}
            )
            for d, e in ((given, False), (estimated, True))
        ]
        torch.testing.assert_close(ends[0].theta, ends[1].theta)


@pytest.mark.parametrize("clip", [pytest.param(None, marks=pytest.mark.slow), bdl.ClipNorm(0.2)], ids=["", "clipped"])
@pytest.mark.parametrize("row", slow_where(repeats, WIDE), ids=str)
def test_chains_are_separate_samplers(row: Row, clip):
    """At T = 0 chains=3 on three streams of batches are three samplers. Clipping uses one norm per chain."""
    nets = [network(c) for c in range(3)]
    stack = Stack(nets)
    settings = dict(num_data=N, lr=LR, temperature=0.0, prior=bdl.Gaussian(PRIOR), clip=clip)
    sampler = equip(bdl.Sampler(stack.parameters(), row.build(2, D64), chains=3, **settings))
    together = run_stack(stack, sampler, 3)
    apart = [sampled(row.build(2, D64), net, data=c, **settings) for c, net in enumerate(copy.deepcopy(nets))]
    torch.testing.assert_close(together, torch.stack(apart), rtol=1e-9, atol=1e-11)
    assert not torch.allclose(together[0], together[1])
