"""Tests of `bdl.samplers.priors.centres`: where a prior is centred, in every sampler, saved and resumed."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import torch
from oracles import COVARIANCE
from repeats import slow_where
from table import KERNELS, TABLE, Row, equip, repeats
from torch import nn

import bdl
from bdl.samplers.potential import Potential

D64 = torch.float64
N = 20
CENTRE = torch.tensor([30.0, -7.0], dtype=D64)
FAMILIES = {
    "Gaussian": lambda mean: bdl.Gaussian(1.7, mean=mean),
    "Laplace": lambda mean: bdl.Laplace(0.6, mean=mean),
    "StudentT": lambda mean: bdl.StudentT(3.0, 0.8, mean=mean),
}


def moved(row: Row, by: torch.Tensor):
    """The dynamics of a row around `by`: a metric is a function of θ, and moves with the law."""
    dynamics = row.build(2, D64)
    if metric := getattr(dynamics, "metric", None):
        return dataclasses.replace(dynamics, metric=lambda x: metric(x - by))
    if isinstance(dynamics, bdl.Recipe):
        return dataclasses.replace(dynamics, D=moved_blocks(dynamics.D, by), Q=moved_blocks(dynamics.Q, by))
    return dynamics


def moved_blocks(blocks, by: torch.Tensor):
    """D or Q of a recipe, whose functions are those of θ - by."""
    if isinstance(blocks, list):
        return [moved_blocks(block, by) for block in blocks]
    return (lambda z: blocks(SimpleNamespace(**{**vars(z), "theta": z.theta - by}))) if callable(blocks) else blocks


def path(row: Row, prior: bdl.Gaussian, centre: torch.Tensor, steps: int = 30) -> torch.Tensor:
    """(steps, C, 2) states minus the centre, of four chains around it whose loss is a Gaussian around it too."""
    start = torch.tensor([[0.5, -0.5], [-0.3, 0.2], [0.1, 0.7], [0.4, 0.4]], dtype=D64)
    theta = (start + centre).requires_grad_()
    sampler = equip(
        bdl.Sampler(
            [("x", theta)], moved(row, centre), num_data=N, lr=0.3 / row.scale**2, prior=prior, chains=4, seed=3
        )
    )
    states = []

    def closure():
        sampler.zero_grad()
        x = theta - centre
        loss = (x @ torch.linalg.inv(COVARIANCE) * x).sum(1) / 2 / N
        loss.sum().backward()
        return loss

    for _ in range(steps):
        sampler.step(closure)
        states.append(theta.detach() - centre)
    return torch.stack(states)


@pytest.mark.parametrize("row", slow_where(repeats, [*TABLE, *KERNELS]), ids=str)
def test_a_prior_with_a_mean_moves_every_sampler_by_it(row: Row):
    """Law, loss and start are moved by one vector, and so is the path, step by step, to the rounding of float64.

    Power: a centre off by 1 is seen, also by kernels that decide by chance which way to move.
    """
    there = path(row, bdl.Gaussian(2.0, mean={"x": CENTRE}), CENTRE)
    here = path(row, bdl.Gaussian(2.0), torch.zeros(2, dtype=D64))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-9)
    assert here.diff(dim=0).abs().amax() > 1e-2, "the chain does not move"
    off = path(row, bdl.Gaussian(2.0, mean={"x": CENTRE + 1.0}), CENTRE)
    assert (off - here).abs().amax() > 1e-3


def test_configurational_temperature_is_measured_around_centre():
    """<θ - c, ∇U>/d has the mean T for any c, and at c = 30 σ away the noise of c'∇U would drown it."""
    theta = torch.full((2000, 4), 30.0, dtype=D64, requires_grad=True)
    sampler = bdl.Sampler(
        [theta], bdl.BAOAB(friction=0.5), num_data=N, lr=0.3 * N, prior=bdl.Gaussian(1.0, mean=30.0), chains=2000
    )
    seen = []
    for step in range(200):
        theta.grad = torch.zeros_like(theta)
        sampler.step()
        if step > 50 and sampler.configurational_temperature is not None:
            seen.append(sampler.configurational_temperature)
    each = torch.stack(seen).mean(0)  # (C,) of independent chains
    error = float(each.std()) / 2000**0.5
    assert error < 0.01 and abs(float(each.mean()) - 1) < 4.5 * error + 0.3**2 / 4  # BAOAB's error of order lr²


def sampler_of(prior, net=None, chains=None, **settings) -> bdl.Sampler:
    net = nn.Linear(3, 2).double() if net is None else net
    return bdl.Sampler(net.named_parameters(), bdl.SGLD(), num_data=5, lr=0.1, prior=prior, chains=chains, **settings)


def flat(net: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mean_is_given_by_name_as_a_number_or_by_the_start(family):
    """Energies and gradients are those around 0 of θ - mean; a whole state_dict may be given."""
    build, net = FAMILIES[family], nn.Linear(3, 2).double()
    at = flat(net)
    theta = torch.randn(8, dtype=D64, generator=torch.Generator().manual_seed(0))
    by_name = {"weight": net.weight.detach().clone(), "bias": net.bias.detach().clone(), "elsewhere": torch.ones(3)}
    for mean, value in [("start", at), (by_name, at), ({"weight": 0.5, "bias": net.bias}, None), (0.5, 0.5)]:
        prior = sampler_of(build(mean), net).prior
        value = torch.cat([torch.full((6,), 0.5, dtype=D64), at[6:]]) if value is None else value
        torch.testing.assert_close(prior.energy(theta), build(0.0).energy(theta - value))
        gradients = torch.zeros(2, 8, dtype=D64)
        prior.add_grad_(gradients[0], theta, 7)
        build(0.0).add_grad_(gradients[1], theta - value, 7)
        torch.testing.assert_close(gradients[0], gradients[1])


def test_a_centre_at_zero_costs_nothing():
    """θ itself is taken, not a copy, also where zeros are given by name or are the start."""
    theta = torch.randn(8, dtype=D64)
    net = nn.Linear(3, 2).double()
    nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    for mean in (0.0, 0, "start", {"weight": torch.zeros(2, 3), "bias": 0.0}):
        prior = sampler_of(bdl.Gaussian(1.0, mean=mean), net).prior
        assert prior.offset(theta) is theta and isinstance(prior.mean, float)


def test_a_start_is_one_centre_for_all_chains():
    """Chains of one start share it; chains that begin apart are refused, with the first tensor that differs."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    same = bdl.ChainStack(net, 3, start="given")
    torch.testing.assert_close(sampler_of(bdl.Gaussian(mean="start"), same, 3).prior.mean, flat(net))
    apart = bdl.ChainStack(net, 3, start="given")
    with torch.no_grad():
        apart.net[1].weight[2, 0, 0] += 1e-3
    with pytest.raises(bdl.ConfigError, match=r"begin at different values of net\.1\.weight: begin at saved") as error:
        _ = sampler_of(bdl.Laplace(mean="start"), apart, 3).prior
    assert "\n" not in str(error.value)
    head = {"net.1.*": bdl.Block(prior=bdl.Gaussian(3.0))}  # a new head has a prior of its own
    prior = sampler_of(bdl.Gaussian(mean="start"), apart, 3, blocks=head).prior
    expected = torch.cat([flat(net)[:16], torch.zeros(10)])
    theta = torch.randn(3, 26, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(prior.offset(theta), theta - expected)


def test_blocks_have_centres_of_their_own():
    """A block with the prior of the others' class, around another centre, and the same prior on both sides of it."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)).double()
    body = bdl.Gaussian(2.0, mean="start")
    prior = sampler_of(body, net, blocks={"1.*": bdl.Block(prior=bdl.StudentT(4.0, 1.0, mean=0.3))}).prior
    theta, at = torch.randn(18, dtype=D64), flat(net)
    at[6:12] = 0.3
    torch.testing.assert_close(prior.offset(theta), theta - at)
    x = theta - at
    expected = x[:6].square().sum() + x[12:].square().sum() + bdl.StudentT(4.0, 1.0).energy(x[6:12])
    torch.testing.assert_close(prior.energy(theta), expected)


def test_identity_is_that_of_the_centre():
    """Equal centres are equal however they were given; 0 leaves the identity as it was before there were means."""
    net = nn.Linear(3, 2).double()

    def of(prior):
        return sampler_of(prior, net).law()["prior"]

    by_name = {"weight": net.weight.detach(), "bias": net.bias.detach()}
    assert of(bdl.Gaussian(2.0, mean="start")) == of(bdl.Gaussian(2.0, mean=by_name))
    assert of(bdl.Gaussian(2.0, mean={"weight": 0.5, "bias": 0.5})) == of(bdl.Gaussian(2.0, mean=0.5))
    assert of(bdl.Gaussian(2.0, mean={"weight": 0.0, "bias": 0.0})) == {"type": "bdl.Gaussian", "precision": 2.0}
    nudged = by_name | {"bias": net.bias.detach() + 2**-40}
    assert of(bdl.Gaussian(2.0, mean=nudged)) != of(bdl.Gaussian(2.0, mean=by_name)) != of(bdl.Gaussian(2.0))
    assert of(bdl.Laplace(2.0, mean=0.5)) != of(bdl.Laplace(2.0))
    saved = of(bdl.Gaussian("he", mean="start"))
    assert json.loads(json.dumps(saved)) == saved and saved["mean"]["numbers"] == 8


def test_words_say_where_it_is():
    assert str(bdl.Gaussian(2.0)) == "Gaussian, precision 2"
    assert str(bdl.Laplace(2.0, mean=-1)) == "Laplace, scale 2, mean -1"
    assert str(bdl.StudentT(mean="start")).endswith("centred where the chains begin")
    assert "means" in sampler_of(bdl.Gaussian(mean="start")).explain()


@pytest.mark.parametrize(
    "mean", [math.nan, math.inf, None, True, "begin", [0.1, 0.2], {}, {"weight": "a"}, torch.tensor([1.0, math.nan])]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_bad_means_are_refused(family, mean):
    with pytest.raises(bdl.ConfigError, match="the mean of a prior must be a finite number") as error:
        FAMILIES[family](mean)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "mean, words",
    [
        ({"weight": 0.1}, "has no entry for bias"),
        ({"weight": torch.zeros(3, 2), "bias": 0.0}, r"has the shape \(3, 2\) for weight, which is \(2, 3\)"),
        (torch.zeros(7), "has 7 numbers for 8 coordinates"),
    ],
)
def test_means_that_do_not_fit_are_refused(mean, words):
    with pytest.raises(bdl.ConfigError, match=words):
        sampler_of(bdl.Gaussian(mean=mean))


def steps(sampler: bdl.Sampler, net: nn.Module, count: int) -> torch.Tensor:
    for _ in range(count):
        draw = torch.Generator().manual_seed(sampler.steps)
        x = torch.randn(4, 3, generator=draw, dtype=D64)

        def closure(x=x):
            sampler.zero_grad()
            loss = net(x).square().mean(1).mean(-1) if sampler.chains is None else net(x).square().mean((1, 2))
            loss.sum().backward()
            return loss if sampler.chains else loss.mean()

        sampler.step(closure)
    return sampler.chain.theta.clone()


def chains_of(net: nn.Module, **settings) -> tuple[bdl.ChainStack, bdl.Sampler]:
    stack = bdl.ChainStack(net, 3, start="given", shared=True)
    return stack, sampler_of(bdl.Gaussian(50.0, mean="start"), stack, 3, seed=4, **settings)


def resumed(state: dict, weights: dict) -> torch.Tensor:
    """Ten more steps, by a sampler that is built at the saved weights, as Lightning does it, or elsewhere."""
    net = nn.Linear(3, 2).double()
    stack, sampler = chains_of(net)
    stack.load_state_dict(weights)
    sampler.load_state_dict(state)
    return steps(sampler, stack, 10)


def test_a_resumed_chain_has_the_stored_centre(monkeypatch):
    """Bit for bit, although the weights are others now, and differ between chains. Without the centre it is not."""
    torch.manual_seed(0)
    stack, sampler = chains_of(nn.Linear(3, 2).double())
    steps(sampler, stack, 10)
    state = {k: v for k, v in sampler.state_dict().items()}
    weights = {k: v.clone() for k, v in stack.state_dict().items()}
    saved = {**state, "bdl": {**state["bdl"], "potential": dict(state["bdl"]["potential"])}}
    whole = steps(sampler, stack, 10)
    assert torch.equal(resumed(saved, weights), whole)
    saved["bdl"]["potential"]["start"] = saved["bdl"]["potential"]["start"] + 1e-3
    assert not torch.equal(resumed(saved, weights), whole)


def test_a_chain_follows_its_parameters_with_its_centre():
    """After `.float()` the centre is the old one in the new type."""
    net = nn.Linear(3, 2).double()
    sampler = sampler_of(bdl.Gaussian(1.0, mean="start"), net)
    at = flat(net)
    steps(sampler, net, 3)
    net.float()
    sampler.step(lambda: torch.zeros(()))
    torch.testing.assert_close(sampler.prior.mean, at.float())
    assert isinstance(sampler.potential, Potential) and not torch.equal(flat(net), at.float())


def test_a_checkpoint_of_another_kind_of_prior_is_refused():
    stack, sampler = chains_of(nn.Linear(3, 2).double())
    steps(sampler, stack, 2)
    with pytest.raises(bdl.ConfigError, match='the prior of the checkpoint has mean="start", and that of the sampler'):
        sampler_of(bdl.Gaussian(50.0), stack, 3).load_state_dict(sampler.state_dict())
    plain = sampler_of(bdl.Gaussian(50.0), stack, 3)
    steps(plain, stack, 2)
    with pytest.raises(bdl.ConfigError, match='the prior of the sampler has mean="start"'):
        chains_of(nn.Linear(3, 2).double())[1].load_state_dict(plain.state_dict())
