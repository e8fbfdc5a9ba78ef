"""Tests of `bdl.samplers.exchange`.

Replica exchange: swaps preserve the law of every rung, with exact energies and with noisy ones.

The first tests check the rule of a swap without random numbers. The others run chains on known laws, over every kind of
dynamics. Negative controls show that a rule that is a little wrong fails.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from closures import closure_of
from curved import DoubleWell
from literature.targets import Chains, GaussianLaw
from oracles import COVARIANCE, PRECISION, Estimate
from repeats import slow_where
from scipy.stats import norm
from table import TABLE
from torch import Tensor, nn

import bdl
from bdl.errors import ConfigError
from bdl.samplers.dynamics import underdamped
from bdl.samplers.exchange import Replicas, gaussian_distance

Z = 4.5  # standard errors
D64 = torch.float64
GAUSSIAN = GaussianLaw([0.0, 0.0], COVARIANCE)
LADDER = torch.tensor([1.0, 2.0, 4.0], dtype=D64)


def theta(chains: int, parameters: int = 1) -> Tensor:
    return torch.zeros(chains, parameters, dtype=D64)


def swap_probability(
    gap: float, temperatures: tuple[float, float], noise: float, energy_var: float, points: int = 400
) -> float:
    """Probability that two chains with U_0 - U_1 = gap swap: a mean over quantiles of the errors and of the uniform.

    noise: variance of the normal error of either energy. energy_var: the variance that the rule is given.
    """
    error = norm.ppf((np.arange(points) + 0.5) / points) * math.sqrt(2 * noise) if noise else np.zeros(1)
    log_u = np.log((np.arange(points) + 0.5) / points)
    pairs = torch.from_numpy(np.stack(np.meshgrid(error, log_u, indexing="ij"), -1).reshape(-1, 2))
    n = len(pairs)
    replicas = Replicas(
        bdl.Exchange(ladder=(1.0, temperatures[1] / temperatures[0]), energy_var=energy_var), 2 * n, theta(2 * n)
    )
    energy = torch.stack([gap + pairs[:, 0], torch.zeros(n, dtype=D64)], 1).flatten()
    T = torch.tensor(temperatures, dtype=D64).repeat(n)
    replicas.order(energy, T, pairs[:, 1].repeat_interleave(2))
    return replicas.rates.item()


def swapped(replicas: Replicas, energy: Tensor, T: Tensor, log_u: Tensor) -> list[int]:
    """The chain whose state each chain takes over in a swap."""
    order = replicas.order(energy, T, log_u)
    replicas.pass_turn()
    return order.tolist()


def observe(replicas: Replicas, energy: Tensor) -> None:
    if replicas.counts(energy):
        replicas.follow(energy, replicas.weight)


@pytest.mark.parametrize("gap", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.5, 4.0])
def test_swaps_balance(gap: float, noise: float):
    """P(swap at gap) / P(swap at -gap) = exp(c gap), on average over normal errors of both energies, too.

    σ² is the variance of an error. Negative controls: without the penalty c²σ², or with half or twice as much, the
    ratio is another one.
    """
    T, c = (1.5, 3.0), 1 / 1.5 - 1 / 3.0
    forth, back = (swap_probability(x, T, noise, noise) for x in (gap, -gap))
    assert math.log(forth / back) == pytest.approx(c * gap, abs=0.01)
    for wrong in (0.0, 0.5, 2.0) if noise >= 4 and gap >= 1 else ():
        forth, back = (swap_probability(x, T, noise, wrong * noise) for x in (gap, -gap))
        assert abs(math.log(forth / back) - c * gap) > 0.04 * gap


def test_swaps_are_permutations_of_neighbours():
    """Pairs (0, 1) and (2, 3) take turns with (1, 2) in a ladder of four. The last energies move with the states."""
    replicas = Replicas(bdl.Exchange(ladder=(1, 2, 3, 4), energy_var=0.0), 8, theta(8))
    T, always = replicas.factor, torch.full((8,), -1e9, dtype=D64)
    energy = torch.arange(8, dtype=D64).flip(0)
    assert T.tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert swapped(replicas, energy, T, always) == [1, 0, 3, 2, 5, 4, 7, 6]
    assert swapped(replicas, energy, T, always) == [0, 2, 1, 3, 4, 6, 5, 7]
    assert swapped(replicas, energy, T, always) == [1, 0, 3, 2, 5, 4, 7, 6]
    assert replicas.rates.tolist() == [1, 1, 1] and replicas.tried.tolist() == [4, 2, 4]
    observe(replicas, energy)
    swapped(replicas, energy, T, always)
    observe(replicas, energy[[0, 2, 1, 3, 4, 6, 5, 7]])
    assert replicas.square.tolist() == [0] * 8


@pytest.mark.parametrize("shared", [0.0, 5.0])
def test_estimated_variance(shared: float):
    """Constant energies have independent errors of variance 3, and an error that all chains share in a batch.

    The estimate is 3 within 4.5 standard errors, because the shared error cancels in the gap. It is infinite before the
    second step.
    """
    replicas, draw = Replicas(bdl.Exchange(ladder=(1, 2)), 400, theta(400)), torch.Generator().manual_seed(0)
    assert replicas.variance() == math.inf
    for _ in range(400):
        common = shared**0.5 * torch.randn((), generator=draw, dtype=D64)
        observe(replicas, 3**0.5 * torch.randn(400, generator=draw, dtype=D64) + common)
    v = replicas.variance()[::2]
    assert v.mean().item() == pytest.approx(3, abs=4.5 * v.std().item() / 200**0.5)
    assert v.std().item() / 200**0.5 < 0.05


def energies(
    dynamics, e: float, steps: int, swaps=True, chains=3072, noise=0.0, energy_var: Any = 0.0, energy: Any = "batch"
):
    """Mean energy over T at the three rungs of a 2-D Gaussian, which should be 1, and the sampler.

    Chains start from exact draws. noise: variance of the error of the energies, which every step draws.
    """
    factor = LADDER.repeat(chains // 3)
    start = GAUSSIAN.sample(chains, torch.Generator().manual_seed(3)) * factor.sqrt()[:, None]
    options: dict = (
        {"exchange": bdl.Exchange(LADDER.tolist(), 1, energy_var, energy)} if swaps else {"temperature": factor}
    )
    run, draw = Chains(GAUSSIAN, dynamics, start, lr=e, **options), torch.Generator().manual_seed(9)
    total = torch.zeros(chains, dtype=D64)

    def closure():
        return run.closure() + noise**0.5 * torch.randn(chains, generator=draw, dtype=D64)

    for k in range(steps + steps // 4):
        run.sampler.step(closure if noise else run.closure)
        if k >= steps // 4:
            total += GAUSSIAN.energy(run.theta) / factor
    return Estimate.over_chains((total / steps).view(-1, 3)), run.sampler


def right(estimate: Estimate, allowed=0.0, se=0.004) -> bool:
    """Are all mean energies 1? Power: an energy 2% (5 se) too high at one rung, beyond what is allowed, is seen."""
    verdict = bool((np.abs(estimate.mean - 1) < Z * estimate.se + allowed).all())
    assert not verdict or estimate.se.max() < se, "no power: more steps"
    return verdict


@pytest.mark.parametrize(
    "dynamics, e, steps",
    [
        pytest.param(bdl.HMC(leapfrog=5), 0.05, 300, id="hmc", marks=pytest.mark.slow),  # as in the test of estimates
        pytest.param(bdl.MALA(), 0.15, 400, id="mala", marks=pytest.mark.slow),
        pytest.param(bdl.BAOAB(0.1), 0.05, 600, id="baoab-0.1"),
        pytest.param(bdl.BAOAB(0.5), 0.08, 600, id="baoab-0.5", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_rungs_keep_their_law_exactly(dynamics, e: float, steps: int):
    """A dynamics whose law on a Gaussian has no error has none with swaps either."""
    estimate, sampler = energies(dynamics, e, steps)
    assert right(estimate)
    assert (sampler.swap_rates > 0.5).all()
    assert sampler.target_chains == list(range(0, 3072, 3))


@pytest.mark.parametrize(
    "dynamics, e, steps",
    [
        pytest.param(bdl.SGLD(), 0.02, 1200, id="sgld", marks=pytest.mark.slow),
        pytest.param(bdl.SGHMC(), 0.02, 700, id="sghmc"),
        pytest.param(bdl.SGNHT(0.1, 1e-3), 0.02, 700, id="sgnht", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_rungs_keep_their_law_to_first_order(dynamics, e: float, steps: int):
    """With other dynamics the error at any rung is at most that of chains without swaps, here e tr(A)/4 = 2.8%."""
    assert right(energies(dynamics, e, steps)[0], allowed=e * float(PRECISION.trace()) / 4, se=0.007)


def no_rescaling(m, order, g, friction, lr, temperature, inverse_mass):
    pass


def whole_momentum(m, order, g, friction, lr, temperature, inverse_mass):
    m.mul_((temperature / temperature[order]).sqrt().unsqueeze(-1))


@pytest.mark.slow  # the law of BAOAB, which is exact, stands above
@pytest.mark.parametrize("wrong", [no_rescaling, whole_momentum])
def test_momenta_must_be_rescaled_in_mid_kick(wrong, monkeypatch):
    """Negative controls. A momentum that is not rescaled heats the cold rung. A momentum that is rescaled together with
    half of its kick leaves an error of first order in lr, where BAOAB has none."""
    monkeypatch.setattr(underdamped, "rescale_swapped_momentum", wrong)
    assert not right(energies(bdl.BAOAB(0.1), 0.05, 600)[0])


@pytest.mark.parametrize("with_lr", slow_where(lambda with_lr: not with_lr, [True, False]))
def test_momenta_scale_with_the_lr_of_each_rung(with_lr: bool, monkeypatch):
    """Where lr is proportional to the temperature of its rung, displacements scale with sqrt(lr T).

    The momentum in mid-kick has an error of O(lr), which now differs between rungs: 4% are allowed. The negative
    control rescales as if all rungs had the mean lr.
    """
    rescale = underdamped.rescale_swapped_momentum
    if not with_lr:
        monkeypatch.setattr(
            underdamped,
            "rescale_swapped_momentum",
            lambda m, order, g, a, lr, T, P: rescale(m, order, g, a, lr.mean(), T, P),
        )
    assert right(energies(bdl.BAOAB(0.1), 0.02 * LADDER.repeat(1024), 500)[0], 0.04, se=0.006) == with_lr


@pytest.mark.parametrize("energy_var, allowed", [("estimated", 0.01), (0.0, None)])
def test_noisy_energies(energy_var, allowed):
    """The penalty for estimated errors of variance 9 nats² leaves 1 %. Without it the cold rung is a fifth too hot."""
    steps = 200 if allowed is None else 700  # a fifth is 20 standard errors of 200 steps
    estimate, sampler = energies(bdl.BAOAB(0.1), 0.05, steps, noise=9.0, energy_var=energy_var)
    if allowed is None:
        assert not right(estimate, 0.1) and estimate.mean[0] > 1.15
        return
    assert right(estimate, allowed)
    assert (sampler.swap_rates > 0.2).all()


def test_full_energies_have_no_error():
    """Swaps by `full_loss` are exact, whatever error the batch energies have, and no penalty makes them rarer."""
    estimate, sampler = energies(bdl.BAOAB(0.1), 0.05, 500, noise=9.0, energy_var="estimated", energy="full")
    assert right(estimate)
    assert (sampler.swap_rates > 0.6).all()


@pytest.mark.slow  # test_full_energies_have_no_error has the right value
def test_estimate_is_not_for_exact_energies():
    """It counts changes of U as errors, and the cold rung is a little too cold. Accept/reject kernels always use 0."""
    assert not right(energies(bdl.BAOAB(0.1), 0.05, 500, energy_var="estimated")[0])
    assert right(energies(bdl.HMC(leapfrog=5), 0.05, 300, energy_var="estimated")[0])


WELL = DoubleWell(height=8.0, tilt=0.5)


@pytest.mark.parametrize(
    "dynamics, lr, steps, allowed",
    [
        pytest.param(bdl.HMC(leapfrog=5), 0.003, 600, 0.0, id="hmc", marks=pytest.mark.slow),
        pytest.param(bdl.SGHMC(0.3), 0.003, 2000, 0.02, id="sghmc", marks=pytest.mark.slow),
    ],
)
def test_a_ladder_crosses_the_barrier(dynamics, lr: float, steps: int, allowed: float):
    """Chains start in the wrong well, behind 8 nats. With swaps every rung has the right share of either well."""
    ladder, chains = (1.0, 2.0, 4.0, 8.0), 1024
    start = torch.ones(chains, 1, dtype=D64)
    run = Chains(WELL, dynamics, start, lr=lr, exchange=bdl.Exchange(ladder, energy_var=0.0))
    x = run.run(steps, every=2, burn_in=steps)[..., 0]
    estimate = Estimate.over_chains((x < 0).double().mean(0).view(-1, 4))
    expected = [float(WELL.cdf(0.0, T)) for T in ladder]
    assert (np.abs(estimate.mean - expected) < Z * estimate.se + allowed).all()
    assert expected[0] > 0.7 and estimate.se[0] < 0.02
    alone = Chains(WELL, dynamics, start[:200], lr=lr).run(steps, every=5)
    assert (alone < 0).double().mean() < 0.15


class Two:
    """Six chains of two parameters in ladders of three. The loss depends on the step, as that of a batch does."""

    def __init__(self, dynamics, exact=False, **arguments):
        self.a, self.b = (nn.Parameter(torch.linspace(x, x + 1, 6, dtype=D64)[:, None]) for x in (0.5, -0.5))
        settings = dict(num_data=20, lr=0.2, chains=6, exchange=bdl.Exchange((1.0, 1.5, 3.0))) | arguments
        self.sampler, self.exact = bdl.Sampler([self.a, self.b], dynamics, **settings), exact

    def closure(self):
        self.sampler.zero_grad()
        draw = torch.Generator().manual_seed(0 if self.exact else self.sampler.steps)
        target = torch.randn(2, 1, 1, generator=draw, dtype=D64)
        loss = ((self.a - target[0]).square() + (self.b - target[1]).square())[:, 0] / 2
        loss.sum().backward()
        return loss.detach()

    def go(self, steps: int) -> Two:
        for _ in range(steps):
            self.sampler.step(self.closure)
        return self

    def theta(self):
        return torch.cat([self.a, self.b], 1).detach().clone()


ROWS = [r for r in TABLE if r.name in ("sgld", "sghmc-0.1", "baoab-0.1", "sgnht-0.1", "psgld", "sghmc-estimated")]
LADDERS = [(r.build(2, D64), False) for r in ROWS] + [(bdl.HMC(2, adapt_steps=9), True)]


@pytest.mark.parametrize(
    "dynamics, exact",
    slow_where(lambda dynamics, exact: isinstance(dynamics, bdl.SGLD | bdl.BAOAB | bdl.PSGLD), LADDERS),
)
def test_resumed_ladder_is_the_uninterrupted_one(dynamics, exact: bool):
    """k steps, save, load, m steps give the bits of k + m steps: states, swaps and the estimate of the variance."""
    straight, first, second = (Two(dynamics, exact) for _ in range(3))
    straight.go(60)
    saved = first.go(33).sampler.state_dict()
    with torch.no_grad():
        for mine, theirs in ((second.a, first.a), (second.b, first.b)):
            mine.copy_(theirs)
    second.sampler.load_state_dict(saved)
    for run in (second.go(27), first.go(27)):
        assert torch.equal(run.theta(), straight.theta())
        assert torch.equal(run.sampler.swap_rates, straight.sampler.swap_rates)
        resumed, expected = (x.sampler.replicas.state_dict() for x in (run, straight))
        for key, value in resumed.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected[key])), key
    assert (straight.sampler.swap_rates > 0).all()


def test_a_ladder_that_adapts_resumes_exactly():
    """33 steps, save, load, 27 steps give the temperatures and the states of 60, with the end of adaptation between."""
    adapting = {"exchange": bdl.Exchange(rungs=3, adapt_steps=50)}
    straight, first, second = (Two(bdl.SGHMC(), **adapting) for _ in range(3))
    straight.go(60)
    first.go(33).sampler.replicas.adapt_until(50)
    with torch.no_grad():
        second.a.copy_(first.a)
        second.b.copy_(first.b)
    second.sampler.load_state_dict(first.sampler.state_dict())
    assert torch.equal(second.go(27).theta(), straight.theta())
    ladder = second.sampler.replicas.ladder
    assert torch.equal(ladder, straight.sampler.replicas.ladder) and not torch.equal(
        ladder, Two(bdl.SGHMC(), **adapting).sampler.replicas.ladder
    )


def test_chains_keep_what_they_have_learnt():
    """A swap moves θ, momenta and gradients. Friction of a thermostat, factor of lr and sum of acceptances stay.

    Each chain has one parameter, so that fields with one number per chain have as many numbers as θ.
    """
    learnt = {"xi": bdl.SGNHT(0.1, 1e-3), "mean": bdl.PSGLD(adapt_steps=1), "log_factor accepted": bdl.HMC(1)}
    for stays, dynamics in ((names.split(), dynamics) for names, dynamics in learnt.items()):
        theta = nn.Parameter(torch.tensor([[1.0], [2.0]], dtype=D64))
        sampler = bdl.Sampler(
            [theta], dynamics, num_data=2, lr=1e-30, chains=2, prior=bdl.Uniform(),
            exchange=bdl.Exchange((1.0, 2.0), energy_var=0.0),
        )  # fmt: skip
        for name in stays:
            value = getattr(sampler.chain.state, name)
            value.copy_(torch.tensor([0.1, 0.2], dtype=D64).view_as(value))
        if stays == ["mean"]:
            sampler.chain.state.count = 1  # adaptation is over
        # the first chain has the higher energy, so every swap is made
        sampler.step(closure_of(sampler, lambda theta=theta: -20 * theta[:, 0]))
        assert theta.detach()[:, 0].tolist() == pytest.approx([2.0, 1.0]) and sampler.swap_rates.item() == 1
        for name in stays:
            assert getattr(sampler.chain.state, name)[0] < getattr(sampler.chain.state, name)[1]
        assert set(sampler.state[theta]) == {"xi": {"m"}, "mean": {"mean"}}.get(stays[0], {"gradient"})


def test_swaps_are_not_taken_for_batch_noise():
    """With exact gradients Var(g) shows the moves of one state, some percent of the injected noise, not the swaps."""
    _, sampler = energies(bdl.SGLD(), 0.01, 200)
    _, alone = energies(bdl.SGLD(), 0.01, 200, swaps=False)
    assert (sampler.swap_rates > 0.5).all()
    assert sampler.noise_ratio.mean().item() == pytest.approx(alone.noise_ratio.mean().item(), rel=0.2)


def test_energies_belong_to_the_state_before():
    run = Two(bdl.SGLD(), prior=bdl.Gaussian(2.0))
    for _ in range(5):
        before, loss = run.theta(), run.sampler.step(run.closure)
        torch.testing.assert_close(run.sampler.energy, 20 * loss + before.square().sum(1))


def test_swaps_every_k_steps():
    run = Two(bdl.SGLD(), exchange=bdl.Exchange((1.0, 1.5, 3.0), every=4))
    assert run.go(3).sampler.swap_rates.isnan().all()
    assert run.go(5).sampler.replicas.tried.tolist() == [2, 2]  # two ladders, whose pairs take turns
    assert run.go(8).sampler.replicas.tried.tolist() == [4, 4]


def test_no_swaps_at_temperature_zero():
    """The chains then optimise independently."""
    plain = Two(bdl.SGHMC(), exchange=None, temperature=0.0).go(10)
    assert torch.equal(Two(bdl.SGHMC(), temperature=0.0).go(10).theta(), plain.theta())
    assert plain.sampler.swap_rates is None and plain.sampler.target_chains == list(range(6))


def test_temperatures_are_those_of_the_ladder():
    """`temperature` is that of the first rung. Until the first swap, chains equal those of a temperature per chain."""
    T = 0.5 * torch.tensor([1.0, 1.5, 3.0], dtype=D64).repeat(2)
    ladder = Two(bdl.SGHMC(), exchange=bdl.Exchange((1.0, 1.5, 3.0), every=100), temperature=0.5)
    assert torch.equal(ladder.go(10).theta(), Two(bdl.SGHMC(), exchange=None, temperature=T).go(10).theta())
    assert Two(bdl.MALA(), exact=True, temperature=0.5).sampler.t_eff.tolist() == T.tolist()


@pytest.mark.filterwarnings("ignore:no parameter has a gradient")
@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Two(bdl.SGLD(), weighting=bdl.AdaptiveWeight(low=0.0, high=1.0)), "AdaptiveWeight changes that"),
        (lambda: Two(bdl.SGLD()).sampler.step(), "needs the energy of every step"),
        (lambda: Two(bdl.SGLD(), exchange=bdl.Exchange((1.0, 9.0))).sampler.load_state_dict(
            Two(bdl.SGLD()).sampler.state_dict()), "saved with exchange"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_and_named(make, words: str):
    with pytest.raises(ConfigError, match=words) as e:
        make()
    assert "\n" not in str(e.value)


class Quartic:
    """U = Σ θ⁴: k = d/4, so that rungs of a Gaussian's ladder lie too close together."""

    def __init__(self, dim: int):
        self.dim = dim

    def energy(self, x: Tensor) -> Tensor:
        return x.pow(4).sum(-1)

    def energy_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.energy(x), 4 * x**3


def found(target, adapt_steps: int, steps: int, chains=16, noise=0.0, energy_var: Any = 0.0, rungs: int | None = 4):
    """A sampler whose ladder has adapted, after further steps that count swaps."""
    exchange = bdl.Exchange("auto", energy_var=energy_var, rungs=rungs, adapt_steps=adapt_steps)
    run = Chains(
        target, bdl.HMC(leapfrog=5), 0.5 * torch.ones(chains, target.dim, dtype=D64), lr=0.05, exchange=exchange
    )
    for _ in range(adapt_steps + steps):
        run.sampler.step(run.closure)
    return run.sampler


def in_range(sampler) -> bool:
    """Are all swap rates between 0.25 and 0.4? Their standard error is below 0.02."""
    return bool(((sampler.swap_rates > 0.25) & (sampler.swap_rates < 0.4)).all())


@pytest.mark.parametrize("d", [2, 10, 50])
def test_the_first_ladder_is_right_on_gaussians(d: int):
    """Neighbours swap with probability 0.3 at the distance of `gaussian_distance`, by draws of both energies."""
    ratio = math.exp(gaussian_distance(d))
    draws = torch.distributions.Gamma(torch.tensor(d / 2, dtype=D64), 1.0)
    torch.manual_seed(0)
    u, hot = draws.sample((2, 40_000))
    p = ((1 - 1 / ratio) * (u - ratio * hot)).clamp_max(0).exp()
    assert p.mean().item() == pytest.approx(0.3, abs=Z * p.std().item() / 200)
    wrong = math.exp(2 * gaussian_distance(d))
    assert ((1 - 1 / wrong) * (u - wrong * hot)).clamp_max(0).exp().mean() < 0.15


@pytest.mark.parametrize("d", [2, 50])
def test_a_found_ladder_swaps_as_it_should_on_gaussians(d: int):
    law = GaussianLaw([0.0] * d, torch.eye(d, dtype=D64) * torch.linspace(0.3, 1, d, dtype=D64))
    sampler = found(law, 1200, 800)
    assert in_range(sampler), sampler.swap_rates


def test_a_found_ladder_swaps_as_it_should_on_other_laws():
    """Negative control: without adaptation the ladder is that of a Gaussian, whose rungs are too close for θ⁴."""
    assert in_range(adapted := found(Quartic(20), 2400, 800, chains=48)), adapted.swap_rates
    assert not in_range(found(Quartic(20), 0, 800))
    assert adapted.replicas.ladder[0] == 1 and (adapted.replicas.ladder.diff() > 0).all()


def test_a_ladder_is_fixed_after_it_has_adapted():
    replicas = Replicas(bdl.Exchange(adapt_steps=10), 8, theta(8, 30))
    first = replicas.ladder.clone()
    assert [step for step in range(12) if replicas.adapts(step)] == [5, 6, 7, 8, 9]
    replicas.chance.fill_(1.0)
    replicas.adapt()
    assert replicas.ladder[-1] > first[-1]
    replicas.adapt_until(20)
    assert replicas.adapts(19) and not replicas.adapts(20)
    given = Replicas(bdl.Exchange((1.0, 2.0), adapt_steps=10), 8, theta(8, 30))
    given.adapt_until(20)
    assert not any(map(given.adapts, range(30)))


@pytest.mark.parametrize("chains, d, rungs, target", [
    (10, 1000, 5, [0, 5]), (8, 1000, 4, [0, 4]), (7, 1000, 3, [0, 3, 6]), (3, 1000, 2, [0, 2]), (2, 1000, 2, [0]),
    (40, 2, 3, [*range(0, 40, 3)]),
])  # fmt: skip
def test_any_number_of_chains_fills_a_ladder(chains: int, d: int, rungs: int, target: list[int]):
    """Chains that do not fill their ladder are its first rungs. With few parameters HOTTEST bounds the rungs."""
    replicas = Replicas(bdl.Exchange(), chains, theta(chains, d))
    assert replicas.rungs == rungs and replicas.target == target
    assert f"the first rung, {len(target)} of {chains} chains" in replicas.describe()


def test_short_ladders_keep_their_law():
    """The last of 1,024 ladders lacks its third rung."""
    factor = LADDER.repeat(1024)[:3071]
    start = GAUSSIAN.sample(3071, torch.Generator().manual_seed(3)) * factor.sqrt()[:, None]
    exchange = bdl.Exchange(LADDER.tolist(), energy_var=0.0)
    run = Chains(GAUSSIAN, bdl.BAOAB(0.1), start, lr=0.05, exchange=exchange)
    for _ in range(100):
        run.sampler.step(run.closure)
    for rung in range(3):
        u = GAUSSIAN.energy(run.theta)[rung::3] / LADDER[rung]
        assert u.mean().item() == pytest.approx(1, abs=Z * u.std().item() / len(u) ** 0.5)


def test_lr_falls_with_the_temperature_of_a_rung():
    two = Two(bdl.SGLD(), exchange=bdl.Exchange((1.0, 4.0, 16.0), lr_power=0.5))
    assert two.sampler.settings().lr.tolist() == pytest.approx([0.2, 0.1, 0.05] * 2)
