"""Tests of `bdl.samplers.weighting.target`: weights lead from the temperature of the chains to that of the target."""

import math

import pytest
import torch
from experiments.hotter import APART, hops
from repeats import slow_where
from weighted_chains import gaussian

import bdl
from bdl.errors import ConfigError

HOT = 4.0


def weighted_mean(values, log_weights):
    """Mean over draws and chains by the weights, its standard error between chains, and the effective sample size."""
    w = (log_weights - log_weights.max()).exp()
    mean = (w * values).sum() / w.sum()
    of_chain = (w * (values - mean)).sum(0) / w.sum()
    return float(mean), float(of_chain.std() * len(of_chain) ** 0.5), float(w.sum() ** 2 / w.square().sum())


def draws(sampler, advance, steps: int, value, every: int = 10):
    """Learn psi, freeze it, and draw: values (n, C) of `value()` and log weights (n, C), which belong together."""
    for step in range(20_000):
        advance()
        if step % 100 == 99 and sampler.reweighting.freeze():
            break
    else:
        raise AssertionError("psi did not settle")
    values, logs = [], []
    for step in range(steps):
        seen = value()  # of the θ at which the step takes its energy
        advance()
        if step % every == 0:
            values.append(seen)
            logs.append(sampler.log_weight.clone())
    return torch.stack(values), torch.stack(logs)


DIMENSIONS = slow_where(lambda d, *_: d != 10, [(2, 1.0, 4000), (10, 1.0, 1000), (30, 1.0, 3000), (100, 4.0, 6000)])


@pytest.mark.parametrize("d, zeta, steps", DIMENSIONS)
def test_weights_lead_to_the_colder_law(d: int, zeta: float, steps: int):
    """U of N(0, I) has the mean d/2 at T0 = 1, from chains at T = 4, where it would be 2 d.

    The tolerance is 4.5 standard errors and the step's O(lr): by e k / 2 = 4 %, since the multiplier is about k = 4
    there. Together it stays below 8 % of d/2. The weights back to T = 4, which leave out exp(-U (1/T0 - 1/T)), fail by
    more than d/2.
    """
    weighting = bdl.AdaptiveWeight(zeta=zeta, target=1.0, pilot=200, rate=lambda k: 0.02)
    e = 0.02 if d > 2 else 0.005  # in two dimensions the multiplier is larger at low energies
    theta, sampler, advance = gaussian(weighting, d=d, count=512, T=HOT, e=e, start=2.0)
    energies, logs = draws(sampler, advance, steps, lambda: theta.detach().square().sum(1) / 2)
    mean, error, effective = weighted_mean(energies, logs)
    tolerance = 4.5 * error + 0.04 * d / 2
    assert tolerance < 0.08 * d / 2 + 0.05, "no power"
    assert abs(mean - d / 2) < tolerance
    assert effective > 0.1 * logs.numel()
    without, _, _ = weighted_mean(energies, logs + energies * (1 - 1 / HOT))
    assert without > d


def modes(weighting, d: int, count: int = 64, T: float = HOT, seed: int = 0):
    """Chains on .25 N(0, I) + .75 N(8 e_1, I): theta, sampler, and a function that makes one step."""
    centre = torch.zeros(d, dtype=torch.float64)
    centre[0] = APART
    start = torch.randn(count, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    theta = (start + (torch.arange(count) % 4 > 0).double().unsqueeze(1) * centre).requires_grad_()
    sampler = bdl.Sampler(
        [theta], bdl.SGLD(), num_data=1, lr=0.02, temperature=T, prior=bdl.Uniform(), weighting=weighting,
        chains=count, seed=seed,
    )  # fmt: skip

    def closure():
        sampler.zero_grad()
        near, far = (-(theta - c).square().sum(1) / 2 for c in (0 * centre, centre))
        loss = -torch.logaddexp(near + math.log(0.25), far + math.log(0.75))
        loss.sum().backward()
        return loss.detach()

    return theta, sampler, lambda: sampler.step(closure)


@pytest.mark.parametrize("d", slow_where(lambda d: d != 10, [10, 30]))
def test_chains_hop_and_modes_get_their_weight(d: int):
    """Two modes 8 apart: in 3,000 steps at least .5 hops a chain, where chains at T = 1 have .03, and a fifth of the
    draws are effective. P is .25 within 4 standard errors, which are below .025. Chains
    start there; those at T = 4 without weights go to .43."""
    theta, sampler, advance = modes(bdl.AdaptiveWeight(zeta=1.0, target=1.0, pilot=200), d, count=256)
    first, logs = draws(sampler, advance, 3000, lambda: theta.detach()[:, 0].clone())
    share, error, effective = weighted_mean((first < APART / 2).double(), logs)
    assert hops(first) > 0.5
    assert error < 0.025 and abs(share - 0.25) < 4 * error
    assert effective > 0.2 * logs.numel()


def test_contour_leads_to_the_target_too():
    """As above, with the density of energy in d = 4; 4.5 standard errors and .1 for the jumps of the drift."""
    weighting = bdl.Contour(zeta=1.0, target=1.0, bins=40, pilot=200)
    theta, sampler, advance = gaussian(weighting, d=4, count=256, T=2.0, e=0.01, start=1.0)
    energies, logs = draws(sampler, advance, 2000, lambda: theta.detach().square().sum(1) / 2)
    mean, error, _ = weighted_mean(energies, logs)
    assert 4.5 * error < 0.2, "no power"
    assert abs(mean - 2) < 4.5 * error + 0.1
    without, _, _ = weighted_mean(energies, logs + energies * (1 - 1 / 2.0))
    assert without > 2.5


def test_psi_does_not_rest_before_the_target_is_reached():
    """In d = 100 at zeta = 1 the chains do not come down to the target's energies, so psi is not frozen."""
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(zeta=1.0, target=1.0, pilot=200), d=100, count=8, T=HOT, e=0.02)
    for _ in range(1500):
        advance()
    sampler.reweighting.histogram.left.fill_(0.0)
    assert sampler.reweighting.histogram.settled and not sampler.reweighting.freeze()


def test_each_chain_has_the_way_from_its_own_temperature():
    t = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    weighting = bdl.AdaptiveWeight(zeta=1.0, target=2.0, low=0.0, high=40.0, bins=20, shared=False)
    _, sampler, advance = gaussian(weighting, d=5, count=4, T=t, e=0.02)
    for _ in range(50):
        advance()
    u = torch.tensor([1.0, 5.0, 10.0, 20.0], dtype=torch.float64)
    log_psi = torch.as_tensor(sampler.reweighting.histogram.evaluate(u.numpy())[0])
    assert torch.allclose(sampler.log_weight_at(u), log_psi - u * (0.5 - 1 / t))


def test_the_target_at_the_own_temperature_changes_nothing():
    """T0 = T is weighting as it is without a target, but for the form of the rises: they are given here."""
    form = bdl.AdaptiveWeight(target=2.0).psi_form
    given = dict(zeta=1.0, low=0.0, high=30.0, bins=20, form=form)
    runs = []
    for target in (None, 2.0):
        theta, sampler, advance = gaussian(bdl.AdaptiveWeight(**given, shared=True, target=target), T=2.0)
        for _ in range(100):
            advance()
        runs.append((theta.detach(), sampler.log_weight))
    assert torch.equal(runs[0][0], runs[1][0]) and torch.equal(runs[0][1], runs[1][1])


def test_the_target_is_part_of_the_law():
    weighting = bdl.AdaptiveWeight(target=0.5)
    assert weighting.identity()["target"] == 0.5 and "target" not in bdl.AdaptiveWeight().identity()
    _, sampler, _ = gaussian(weighting, d=2)
    assert "weights lead from there to T = 0.5" in sampler.explain()


@pytest.mark.parametrize("target", [0, -1.0, math.inf, math.nan, True, "1"])
def test_a_target_that_is_no_temperature_is_refused(target):
    with pytest.raises(ConfigError, match="target must be a temperature above 0"):
        bdl.AdaptiveWeight(target=target)


def test_energies_in_temperatures_have_no_target():
    with pytest.raises(ConfigError, match='set units="nats"'):
        bdl.Contour(target=1.0, units="temperature")
