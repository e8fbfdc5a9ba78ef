"""Tests of `bdl.samplers.dynamics.metropolis`.

Accept/reject kernels are exact at any step size, and the tests tell them from kernels that are nearly right.

The first tests judge single steps: the acceptance probability makes the law stationary, and HMC's map is reversible and
keeps volumes. The others run chains: moments and CDFs of exact laws agree within Z standard errors, at temperatures
that differ between chains. Each of these checks that it would see a temperature 2% too high.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from closures import closure_of
from curved import Banana, DoubleWell
from literature.targets import Chains, GaussianLaw
from oracles import COVARIANCE, Estimate
from repeats import slow_where
from table import KERNELS
from torch import nn
from torch.distributions import Normal

import bdl
from bdl.errors import ConfigError, DivergedError
from bdl.samplers.dynamics import metropolis
from bdl.samplers.dynamics.metropolis import Accepted, accept, path_length

Z = 4.5  # standard errors
N = 20
D64 = torch.float64
ALL = [row.name for row in KERNELS]
NAMES = [row.name for row in KERNELS if row.law != "elsewhere"]  # the kernels that reject, but MCLMC
BUILD = {row.name: row.build(2, D64) for row in KERNELS}
GAUSSIAN = GaussianLaw([0.0, 0.0], COVARIANCE)
BANANA = Banana(bend=0.3, scale=1.5)
WELL = DoubleWell(height=0.7, tilt=0.2)


def evaluation(target, count=None):
    """The function x -> (U/N, its gradient) that a kernel calls, at N = 1. Every call appends to `count`."""

    def evaluate(x):
        if count is not None:
            count.append(1)
        energy, grad = target.energy_and_grad(x)
        return energy.double().unsqueeze(-1), grad

    return evaluate


def at(target, kernel, x) -> Accepted:
    s = kernel.init(x.clone())
    s.potential, s.gradient = target.energy(x), target.grad(x)
    return s


def draws(n=500, d=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x, z = torch.randn(2, n, d, generator=draw, dtype=D64)
    lr, tau = (torch.rand(n, 1, generator=draw, dtype=D64) + 0.1 for _ in range(2))
    return 1.5 * x, z, lr, tau


def acceptance(target, kernel, x, z, lr, tau):
    """Acceptance probabilities (n,) and the proposals (n, d) of one step of the kernel."""
    proposal = []

    def evaluate(y):
        proposal.append(y.clone())
        return evaluation(target)(y)

    s = kernel.kernel(at(target, kernel, x), evaluate, lr, tau, z, torch.full((len(x), 1), -1e9, dtype=D64))
    return s.accepted, proposal[-1]


@pytest.mark.parametrize("target", [GAUSSIAN, BANANA], ids=["gaussian", "banana"])
@pytest.mark.parametrize("name", ["metropolis", "mala"])
def test_acceptance_balances_the_proposals(name: str, target):
    """It is min(1, π(y) q(y, x) / (π(x) q(x, y))), with q from torch.distributions, for any lr and tau per chain."""
    x, z, lr, tau = draws()
    alpha, y = acceptance(target, BUILD[name], x, z, lr, tau)

    def log_flow(a, b):  # log of π(a) q(a, b)
        drift = lr * target.grad(a) if name == "mala" else 0
        log_q = Normal(a - drift, (2 * lr * tau).sqrt()).log_prob(b).sum(-1)
        return log_q - target.energy(a) / tau[:, 0]

    torch.testing.assert_close(alpha, (log_flow(y, x) - log_flow(x, y)).clamp_max(0).exp())
    assert (alpha < 1).float().mean() > 0.2 and alpha.std() > 0.2  # neither all 1 nor all equal


@pytest.mark.parametrize("target", [GAUSSIAN, BANANA], ids=["gaussian", "banana"])
def test_hmc_is_reversible_and_accepts_by_the_energy(target):
    """From (θ', -p') its map leads back to (θ, -p), and the acceptance is min(1, exp(-ΔH/tau))."""
    x, z, lr, tau = draws()
    kernel, lr = bdl.HMC(leapfrog=4), 0.3 * lr
    alpha, y = acceptance(target, kernel, x, z, lr, tau)
    p, h = z * tau.sqrt(), (2 * lr).sqrt()
    momentum, position = p.clone(), x.clone()
    for _ in range(path_length(4, 0)):
        momentum = momentum - h / 2 * target.grad(position)
        position = position + h * momentum
        momentum = momentum - h / 2 * target.grad(position)
    torch.testing.assert_close(position, y)
    _, back = acceptance(target, kernel, y, -momentum / tau.sqrt(), lr, tau)
    torch.testing.assert_close(back, x)
    energy = [target.energy(q) + m.square().sum(1) / 2 for q, m in ((x, p), (y, momentum))]
    torch.testing.assert_close(alpha, ((energy[0] - energy[1]) / tau[:, 0]).clamp_max(0).exp())
    assert (alpha < 1).float().mean() > 0.2


def test_leapfrog_keeps_volumes_and_nearly_the_energy():
    """The Jacobian of (θ, p) -> (θ', p') has determinant 1. The error of H is of order 2 in h, and of order 1 in lr."""
    kernel, tau, one = bdl.HMC(leapfrog=3), 0.7, torch.zeros(1, 1, dtype=D64)

    def flow(state):  # (θ, p) -> (θ', p'); p' follows from the last two positions that the kernel evaluates
        theta, p = state[None, :2], state[None, 2:]
        position, gradient = theta, BANANA.grad(theta)
        seen = []

        def evaluate(y):
            u, g = BANANA.energy_and_grad(y)
            seen.append((y, g))
            return u.unsqueeze(-1), g

        s = kernel.init(theta.clone())
        s.potential, s.gradient = BANANA.energy(theta), gradient
        kernel.kernel(s, evaluate, 0.05, tau, p / math.sqrt(tau), one - 1e9)
        (before, _), (position, last) = seen[-2], seen[-1]
        h = math.sqrt(2 * 0.05)
        return torch.cat([position, (position - before) / h - h / 2 * last], 1)[0]

    state = torch.tensor([0.7, -0.4, 0.3, 1.1], dtype=D64)
    jacobian = torch.autograd.functional.jacobian(flow, state)
    assert torch.linalg.det(jacobian).item() == pytest.approx(1, abs=1e-10)
    x, z, _, _ = draws(2000)
    error = []
    assert 2 * path_length(5, 0) == path_length(11, 0)
    for lr, leapfrog in ((0.02, 5), (0.005, 11)):  # paths of equal length, with h half as large
        alpha, _ = acceptance(BANANA, bdl.HMC(leapfrog=leapfrog), x, z, lr, torch.ones(2000, 1, dtype=D64))
        error.append(-alpha.log().sum())
    assert (error[0] / error[1]).item() == pytest.approx(4, rel=0.15)


def test_mala_is_hmc_of_one_step():
    x, z, lr, tau = draws()
    for ours, theirs in zip(
        acceptance(BANANA, bdl.MALA(), x, z, lr, tau), acceptance(BANANA, bdl.HMC(1), x, z, lr, tau), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@dataclass(frozen=True)
class Nearly(bdl.AcceptReject):
    """MALA and HMC with a mistake, two of them from Ji 2023, or with none."""

    how: str
    adapt_steps: int = 0
    target: float = 0.5

    def init(self, theta):
        return bdl.MALA().init(theta)

    def kernel(self, s, evaluate, lr, tau, z, log_u):
        if "MALA" not in self.how:
            return self.hmc(s, evaluate, lr, tau, z, log_u)
        sign = -1 if self.how == "MALA, Ji 2023: up the gradient" else 1
        y = s.theta - sign * lr * s.gradient + (2 * lr * tau) ** 0.5 * z
        u, g = evaluate(y)
        forth, back = y - s.theta + lr * s.gradient, s.theta - y + lr * g
        log_q = (forth.square() - back.square()).sum(-1, keepdim=True) / (4 * lr * tau)
        log_ratio = (s.potential.unsqueeze(-1) - u) / tau + (0 if self.how == "MALA without q" else log_q)
        return accept(self, s, y, g, u, log_ratio if self.how != "MALA, unadjusted" else 0 * log_ratio, log_u)

    def hmc(self, s, evaluate, lr, tau, z, log_u):
        y, u, g, h, p = s.theta, s.potential.unsqueeze(-1), s.gradient, (2 * lr) ** 0.5, tau**0.5 * z

        def hamiltonian():
            kinetic = p.square().sum(-1, keepdim=True) / 2
            return u + kinetic * {"HMC without p": 0, "HMC, Ji 2023: U - K": -1}.get(self.how, 1)

        start = hamiltonian()
        for _ in range(4):
            p = p - h / 2 * g
            y = y + h * p
            u, g = evaluate(y)
            p = p - h / 2 * g
        return accept(self, s, y, g, u, (start - hamiltonian()) / tau, log_u)


CUTS = torch.tensor([-1.2, -0.9, -0.5, 0.0, 0.5, 0.9, 1.2], dtype=D64)
TEMPERATURES = torch.tensor([0.5, 1.0, 2.0], dtype=D64)


def statistics(target, x, T):
    """(..., k) statistics of x (..., d): CDF and energy in one dimension, else first and second moments and energy."""
    if target.dim == 1:
        below = (x < CUTS.to(x)).to(x.dtype)
        return torch.cat([below, target.energy(x).unsqueeze(-1)], -1)
    return torch.cat([x, x.square(), x.prod(-1, keepdim=True), target.energy(x).unsqueeze(-1)], -1)


def expected(target, T: float) -> np.ndarray:
    if target.dim == 1:
        law = target.quadrature(T)
        return torch.cat([law.cdf(CUTS), law.expect(law.energies)[None]]).numpy()
    mean = target.mean(T) if isinstance(target, Banana) else target.mean()
    second = target.covariance(T) + torch.outer(mean, mean)
    return torch.cat([mean, second.diagonal(), second[0, 1:], torch.tensor([T], dtype=D64)]).numpy()


def averages(target, kernel, lr: float, steps: int, chains: int = 12288) -> list[Estimate]:
    """Estimates at T = .5, 1 and 2, from a third of the chains each, with lr in proportion; burn-in: steps / 10.

    Chains start from exact draws. One that does not leave them has as large an error as its start, and no power.
    """
    T, draw = TEMPERATURES.repeat_interleave(chains // 3), torch.Generator().manual_seed(3)
    start = torch.cat([target.sample(chains // 3, draw, temperature=t) for t in TEMPERATURES.tolist()])
    run = Chains(target, kernel, start, lr=lr * T, temperature=T)
    run.run(0, burn_in=steps // 10)
    total = 0
    for _ in range(steps // 2):
        run.run(2, every=2)
        total = total + statistics(target, run.theta, T)
    return [Estimate.over_chains(part) for part in (total / (steps // 2)).chunk(3)]


def right(target, estimates) -> bool:
    """Are all three laws right? Power: 6% of temperature would be seen at each T, 2% at one T at least."""
    off = [
        (np.abs(expected(target, 1.02 * T) - expected(target, T)) / estimate.se).max()
        for T, estimate in zip(TEMPERATURES.tolist(), estimates, strict=True)
    ]
    assert min(off) > 3 and max(off) > 2 * Z, f"no power: more steps ({np.round(off, 1)})"
    z = [estimate.z(expected(target, T)) for T, estimate in zip(TEMPERATURES.tolist(), estimates, strict=True)]
    return bool((np.abs(z) < Z).all())


CASES = {  # lr at T = 1, and steps
    ("metropolis", "gaussian"): (0.5, 650), ("metropolis", "well"): (0.25, 1200), ("metropolis", "banana"): (1.0, 900),
    ("mala", "gaussian"): (0.2, 400), ("mala", "well"): (0.06, 1400), ("mala", "banana"): (0.5, 800),
    ("hmc", "gaussian"): (0.05, 150), ("hmc", "well"): (0.02, 900), ("hmc", "banana"): (0.1, 200),
}  # fmt: skip
TARGETS = {"gaussian": GAUSSIAN, "well": WELL, "banana": BANANA}


EACH = {("hmc", "banana")}  # laws of MALA and Metropolis: test_law_at_any_step, and those of the exponential below


@pytest.mark.parametrize("name, target", slow_where(lambda *case: case not in EACH, CASES))
def test_law(name: str, target: str):
    assert right(TARGETS[target], averages(TARGETS[target], BUILD[name], *CASES[name, target]))


@pytest.mark.parametrize("lr, low, high", slow_where(lambda lr, *_: lr == 0.02, [(0.02, 0.97, 1.0), (0.9, 0.05, 0.25)]))
def test_law_at_any_step(lr: float, low: float, high: float):
    """MALA at an lr far below and far above the best one. Chains start from exact draws, so they need no burn-in."""
    start = GAUSSIAN.sample(16384, torch.Generator().manual_seed(3))
    run = Chains(GAUSSIAN, bdl.MALA(), start, lr=lr)
    x = run.run(300, every=4)
    assert low < run.sampler.acceptance.mean() < high
    estimate = Estimate.over_chains(torch.cat([x.square(), x.prod(2, keepdim=True)], 2).mean(0))
    assert (np.abs(estimate.z([1, 1, 0.8])) < Z).all() and estimate.se.max() < 0.01


def second_moment_after_a_start_at_two(leapfrog: int, half_periods: int) -> Estimate:
    """Of N(0, 1), 210 steps after 4,000 chains started at θ = 2, where `leapfrog` steps are so many half periods.

    A leapfrog step turns (θ, p) by an angle ψ with h = 2 sin(ψ / 2).
    """
    h = 2 * math.sin(math.pi * half_periods / leapfrog / 2)
    start = torch.full((4000, 1), 2.0, dtype=D64)
    run = Chains(GaussianLaw([0.0], [[1.0]]), bdl.HMC(leapfrog), start, lr=h * h / 2)
    run.run(0, burn_in=210)
    return Estimate.over_chains(run.theta.square())


@pytest.mark.parametrize(
    "leapfrog, half_periods",
    slow_where(
        lambda n, half: (n, half) in {(4, 1), (4, 2), (10, 1)}, [(2, 1), (4, 1), (4, 2), (10, 1), (10, 2), (10, 5)]
    ),
)
def test_hmc_forgets_its_start_at_every_curvature(leapfrog: int, half_periods: int):
    """Also where the mean length of its paths is a whole number of half periods. Power: 10 % of the variance."""
    estimate = second_moment_after_a_start_at_two(leapfrog, half_periods)
    assert abs(estimate.z(1.0)[0]) < Z and estimate.se[0] < 0.1 / 4


def test_paths_of_one_length_are_seen(monkeypatch):
    """Negative control: after 210 whole periods θ² is 4, as it was at the start."""
    monkeypatch.setattr(metropolis, "path_length", lambda mean, step: mean)
    assert second_moment_after_a_start_at_two(10, 2).mean[0] == pytest.approx(4)


@pytest.mark.parametrize("mean", [1, 2, 3, 10, 25])
def test_lengths_of_paths(mean: int):
    """Every length within half of the mean occurs equally often, and neighbouring steps differ."""
    lengths = [path_length(mean, step) for step in range(2000)]
    assert sorted(set(lengths)) == list(range(mean - mean // 2, mean + mean // 2 + 1))
    counts = [lengths.count(length) for length in set(lengths)]
    assert max(counts) - min(counts) <= 10
    assert mean == 1 or all(a != b for a, b in zip(lengths, lengths[1:]))  # noqa: B905, RUF007


MISTAKES = [
    "MALA without q",
    "MALA, Ji 2023: up the gradient",
    "MALA, unadjusted",
    "HMC without p",
    "HMC, Ji 2023: U - K",
]


@pytest.mark.parametrize("how", slow_where(lambda how: how in ("MALA", "HMC"), ["MALA", "HMC", *MISTAKES]))
def test_nearly_right_kernels_are_seen(how: str):
    """Negative controls: kernels with a mistake fail the test that those without a mistake pass."""
    lr, steps = (0.2, 200) if "MALA" in how else (0.07, 100)  # at lr = .1, T = 2 the path is a whole period
    estimates = averages(GAUSSIAN, Nearly(how), lr, steps, chains=3072)
    z = [estimate.z(expected(GAUSSIAN, T)) for T, estimate in zip(TEMPERATURES.tolist(), estimates, strict=True)]
    assert bool((np.abs(z) < Z).all()) == (how not in MISTAKES)


TARGET_OF = [("metropolis", 0.234), ("mala", 0.574), ("hmc", 0.8), ("mala", 0.8)]


@pytest.mark.parametrize("name, target", slow_where(lambda *case: case == ("mala", 0.8), TARGET_OF))
def test_adaptation_reaches_its_target(name: str, target: float):
    """Every chain adapts for itself, from an lr ten times too large or too small. Afterwards the factor is constant,
    and the mean acceptance is the target within .03."""
    kind = type(BUILD[name])
    kernel = kind(target=target, adapt_steps=400)
    lr = torch.tensor([3.0, 0.03], dtype=D64).repeat_interleave(300)
    run = Chains(GAUSSIAN, kernel, GAUSSIAN.sample(600, torch.Generator().manual_seed(3)), lr=lr)
    run.run(0, burn_in=400)
    assert run.sampler.acceptance.isnan().all()
    factor = run.sampler.chain.state.log_factor.clone()
    run.run(0, burn_in=150)
    assert torch.equal(run.sampler.chain.state.log_factor, factor)
    assert (factor[:300].mean() - factor[300:].mean()).item() == pytest.approx(-math.log(100), abs=0.3)
    for part in run.sampler.acceptance.chunk(2):
        assert part.mean().item() == pytest.approx(target, abs=0.03)


def test_acceptance_is_that_of_the_moves():
    """The mean acceptance probability is the share of steps that moved. Its shape is () without chains."""
    run = Chains(GAUSSIAN, bdl.Metropolis(), torch.zeros(2000, 2, dtype=D64), lr=0.5)
    x = run.run(300)
    moved = (x.diff(dim=0) != 0).any(2).double().mean().item()
    assert run.sampler.acceptance.mean().item() == pytest.approx(moved, abs=0.005)
    assert run.sampler.acceptance.shape == (2000,)
    one = single(bdl.Metropolis())
    one.step(one.closure)
    assert (
        one.acceptance.shape == ()
        and bdl.Sampler([nn.Parameter(torch.ones(1))], bdl.SGLD(), num_data=1, lr=1.0).acceptance is None
    )


def single(kernel, target=GAUSSIAN, x=(1.0, 0.5), dtype=D64, **arguments) -> Any:
    """One chain on the energy of a target, as N times a mean loss. Its closure counts its calls."""
    theta = nn.Parameter(torch.tensor(x, dtype=dtype))
    settings = dict(num_data=N, lr=0.1 * N, prior=bdl.Uniform()) | arguments
    sampler: Any = bdl.Sampler([theta], kernel, **settings)
    sampler.calls = 0

    def closure():
        sampler.calls += 1
        sampler.zero_grad()
        loss = target.energy(theta) / N
        loss.backward()
        return loss

    sampler.closure, sampler.theta = closure, theta
    return sampler


@pytest.mark.parametrize("name", ALL)
def test_parameters_changed_by_hand_are_evaluated_again(name: str):
    sampler = single(BUILD[name])
    for _ in range(5):
        sampler.step(sampler.closure)
    with torch.no_grad():
        sampler.theta.add_(1.0)
    expected = GAUSSIAN.energy(sampler.theta.detach()).item()
    sampler.step(sampler.closure)
    assert sampler.energy.item() == pytest.approx(expected)


@pytest.mark.parametrize("name", ALL)
def test_reported_numbers(name: str):
    """Loss and energy belong to the θ before the step, and the energy includes the prior. Batches do not heat.

    A step calls the closure once under MALA, Metropolis and MCLMC with leapfrog, twice under MCLMC with McLachlan's
    integrator, and once for each leapfrog step of HMC. Steps 0, 1, 2, 100, 200 and so on call it once more, at the
    present θ.
    """
    sampler = single(BUILD[name], prior=bdl.Gaussian(2.0), temperature=0.5)
    for _ in range(20):
        before = sampler.theta.detach().clone()
        loss = sampler.step(sampler.closure)
        assert loss.item() == pytest.approx(GAUSSIAN.energy(before).item() / N)
        assert sampler.energy.item() == pytest.approx((GAUSSIAN.energy(before) + before.square().sum()).item())
    paths = sum(path_length(5, step) for step in range(20))
    assert sampler.calls == {"hmc": paths, "hmc-mass": paths, "mclmc": 40, "mclmc-adjusted": 40}.get(name, 20) + 3
    assert sampler.t_eff.item() == 0.5 and sampler.noise_ratio.item() == 0 and sampler.kinetic_temperature.isnan()
    assert sampler.multiplier == 1 and sampler.log_weight == 0
    assert "T = 0.5" in sampler.explain()


@pytest.mark.parametrize("name", slow_where(lambda name: name != "mala", NAMES))
def test_law_includes_the_prior_and_N(name: str):
    """U = N loss + |θ|², a prior of precision 2, at T = .5 gives N(0, T (A + 2 I)⁻¹); 8,000 chains."""
    A = torch.linalg.inv(COVARIANCE)
    theta = nn.Parameter(torch.zeros(8000, 2, dtype=D64))
    sampler = bdl.Sampler(
        [theta], BUILD[name], num_data=N, lr=0.15 * N, temperature=0.5, prior=bdl.Gaussian(2.0), chains=8000
    )
    closure = closure_of(sampler, lambda: GAUSSIAN.energy(theta) / N)
    total, steps = 0, 150 if name != "hmc" else 60
    root = torch.linalg.cholesky(torch.linalg.inv((A + 2 * torch.eye(2)) / 0.5))
    for k in range(2 * steps):
        sampler.step(closure)
        if k >= steps:
            y = theta.detach() @ torch.linalg.inv(root).T
            total = total + torch.cat([y, y.square(), y.prod(1, keepdim=True)], 1) / steps
    estimate = Estimate.over_chains(total)
    assert (np.abs(estimate.z([0, 0, 1, 1, 0])) < Z).all() and estimate.se.max() < 0.01


class HalfLine:
    """The law exp(-x) on x > 0. At x <= 0 energy and gradient, or the gradient alone, are `outside`: not finite."""

    dim = 1

    def __init__(self, outside: float, gradient_only: bool = False):
        self.outside, self.gradient_only = outside, gradient_only

    def energy_and_grad(self, x):
        inside = x[..., 0] > 0
        energy = x[..., 0] if self.gradient_only else torch.where(inside, x[..., 0], self.outside)
        return energy, torch.where(inside.unsqueeze(-1), torch.ones_like(x), self.outside)


DIFFERENT = {("hmc", "inf"), ("hmc", "nan"), ("metropolis", "nan")}
OUTSIDE = [(name, outside) for name in NAMES for outside in (math.inf, -math.inf, math.nan)]


@pytest.mark.parametrize(
    "name, outside", slow_where(lambda name, outside: (name, str(outside)) not in DIFFERENT, OUTSIDE)
)
def test_proposals_without_a_finite_energy_are_rejected(name: str, outside: float):
    """They do no harm: x > 0 keeps its exponential law, with mean 1 and mean square 2, and lr still adapts."""
    kernel = dataclasses.replace(BUILD[name], adapt_steps=60)
    for target in (HalfLine(outside), HalfLine(outside, gradient_only=True))[: 2 if math.isnan(outside) else 1]:
        start = -torch.rand(2048, 1, generator=torch.Generator().manual_seed(3), dtype=D64).log()
        run = Chains(target, kernel, start, lr=0.3)
        x = run.run(60, burn_in=150)[..., 0]
        assert (x > 0).all() and run.sampler.acceptance.isfinite().all() and (run.sampler.acceptance.mean() < 0.95)
        estimate = Estimate.over_chains(torch.stack([x.mean(0), x.square().mean(0)], 1))
        assert (np.abs(estimate.z([1, 2])) < Z).all()


@pytest.mark.parametrize("name", NAMES)
def test_start_without_a_finite_energy_is_refused(name: str):
    with pytest.raises(DivergedError, match="the energy is not finite at step 0"):
        Chains(HalfLine(math.inf), BUILD[name], -torch.ones(2, 1, dtype=D64), lr=0.1).step()


@pytest.mark.parametrize("name", ALL)
def test_a_closure_that_raises_leaves_the_chain_where_it_was(name: str):
    sampler = single(BUILD[name])
    sampler.step(sampler.closure)
    before = sampler.theta.detach().clone()
    for _ in range(5):  # the closure raises at some proposals

        def closure():
            if sampler.calls % 2 == 0:
                raise KeyboardInterrupt
            return sampler.closure()

        try:
            sampler.step(closure)
        except KeyboardInterrupt:
            sampler.calls += 1
            assert torch.equal(sampler.theta, before)
        before = sampler.theta.detach().clone()


@pytest.mark.parametrize("name", ALL)
def test_minibatches_are_refused(name: str):
    """The second step refuses them, in one line that names the remedy."""
    sampler, draw = single(BUILD[name]), torch.Generator().manual_seed(0)
    closure = closure_of(
        sampler, lambda: GAUSSIAN.energy(sampler.theta) / N * (1 + 0.1 * torch.rand((), generator=draw))
    )
    with pytest.raises(
        ConfigError, match="needs all the data in every batch, without dropout.*use a batch of all 20"
    ) as e:
        for _ in range(3):
            sampler.step(closure)
    assert "\n" not in str(e.value) and sampler.steps == 1


@pytest.mark.parametrize("name", NAMES)  # MCLMC rejects nothing, so no old energy remains to be compared with
def test_late_minibatches_are_refused(name: str):
    """Data that change later are noticed within 100 steps."""
    sampler, offset = single(BUILD[name]), torch.zeros(())

    def closure():
        return sampler.closure() + offset

    with pytest.raises(ConfigError, match="needs all the data"):
        for k in range(150):
            offset += k == 30
            sampler.step(closure)
    assert sampler.steps == 100


@pytest.mark.parametrize("name", ALL)
def test_settings_that_no_kernel_can_use_are_refused(name: str):
    kind = type(BUILD[name]).__name__
    with pytest.raises(ConfigError, match=f"{kind} needs the energies of its steps"):
        single(BUILD[name]).step()
    with pytest.raises(ConfigError, match=f"{kind} needs the mean loss over all the data"):
        single(BUILD[name]).step(lambda: None)
    partial = single(BUILD[name])
    partial.host = dataclasses.replace(partial.host, loss_is_whole=False)
    with pytest.raises(ConfigError, match=f"{kind} needs the mean loss over all the data"):
        partial.step(partial.closure)
    cold = single(BUILD[name], temperature=0.0)
    with pytest.raises(ConfigError, match=f"{kind} needs a temperature > 0, got 0.0"):
        cold.step(cold.closure)
    with pytest.raises(
        ConfigError, match=f"{kind} moves by the energies of exp\\(-U/T\\), which AdaptiveWeight changes"
    ):
        single(BUILD[name], weighting=bdl.AdaptiveWeight(low=0.0, high=1.0))
    with pytest.raises(ConfigError, match="leave clip null"):
        single(BUILD[name], clip=bdl.ClipNorm(1.0))


class Two:
    """Chains of two parameters and a frozen third. While `idle` is set, the loss does not depend on the second."""

    def __init__(self, kernel, chains=3, dtype=D64, **arguments):
        self.a, self.b = (nn.Parameter(torch.full((chains, 1), v, dtype=dtype)) for v in (0.5, -0.5))
        self.frozen = nn.Parameter(torch.ones(chains, 2, dtype=dtype), requires_grad=False)
        self.idle = False
        settings = dict(num_data=N, lr=0.1 * N, prior=bdl.Gaussian(1.0), chains=chains) | arguments
        self.sampler = bdl.Sampler([self.a, self.frozen, self.b], kernel, **settings)

    def closure(self):
        self.sampler.zero_grad()
        loss = (self.a**4)[:, 0] / N
        if not self.idle:
            loss = loss + ((self.b - self.a) ** 2)[:, 0] / N
        loss.sum().backward()
        return loss.detach()

    def go(self, steps: int):
        for _ in range(steps):
            self.sampler.step(self.closure)
        return self

    def theta(self):
        return torch.cat([self.a, self.b], 1).detach().clone()


@pytest.mark.parametrize("name", NAMES)
def test_parameters_without_gradient_are_left_alone(name: str):
    """The other parameter moves meanwhile, and samples its law."""
    run = Two(BUILD[name], chains=2000)
    run.idle = True
    run.go(30)
    assert (run.b == -0.5).all() and (run.frozen == 1).all()
    x = torch.stack([run.go(2).a.detach()[:, 0] for _ in range(40)])
    estimate = Estimate.over_chains(x.square().mean(0)[:, None])
    grid = np.linspace(-4, 4, 4001)
    p = np.exp(-(grid**4) - grid**2 / 2)
    assert np.abs(estimate.z(p @ grid**2 / p.sum())) < Z
    assert run.sampler.acceptance.mean() > 0.2


def test_metropolis_needs_no_gradient():
    sampler = single(bdl.Metropolis())

    def closure():
        with torch.no_grad():
            return GAUSSIAN.energy(sampler.theta) / N

    before = sampler.theta.detach().clone()
    for _ in range(30):
        sampler.step(closure)
    assert (sampler.theta.detach() != before).all()


@pytest.mark.parametrize(
    "name, chains, d, dtype",
    slow_where(
        lambda name, chains, d, dtype: d == 2 or (chains is None and name != "mclmc") or name == "hmc",
        [(name, *shape) for name in ALL for shape in ((3, 2, D64), (3, 1, torch.float32), (None, 1, D64))],
    ),
)
def test_resumed_chain_is_the_uninterrupted_one(name: str, chains, d: int, dtype):
    """k steps, save, load, m steps give the bits of k + m steps. They save during adaptation and run past a recheck.

    At d = 1 a field with one number per chain has as many numbers as θ, but must not be treated as a field like θ.
    """
    kernel = dataclasses.replace(BUILD[name], adapt_steps=80)
    d = max(d, 2) if name.startswith("mclmc") else d  # which refuses one dimension
    lead = () if chains is None else (chains,)
    T = 1.0 if chains is None else torch.tensor([0.5, 1.0, 2.0], dtype=dtype)

    def fresh():
        theta = nn.Parameter(torch.linspace(0.5, 1.5, max(chains or 1, 1) * d, dtype=dtype).view(*lead, d))
        sampler: Any = bdl.Sampler([theta], kernel, num_data=N, lr=0.3 * N, temperature=T, chains=chains)
        closure = closure_of(sampler, lambda: (theta**4).sum(-1) / N)

        def go(steps):
            for _ in range(steps):
                sampler.step(closure)

        return theta, sampler, go

    straight, first, second = fresh(), fresh(), fresh()
    straight[2](110)
    first[2](70)
    with torch.no_grad():
        second[0].copy_(first[0])
    second[1].load_state_dict(first[1].state_dict())
    second[2](40)
    first[2](40)
    theta, expected = straight[0], straight[1].chain
    for resumed_theta, resumed in ((run[0], run[1].chain) for run in (first, second)):
        assert torch.equal(theta, resumed_theta)
        for field, value in vars(expected.state).items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(getattr(resumed.state, field))), field
        assert torch.equal(expected.generator.get_state(), resumed.generator.get_state())
        assert expected.state.steps == resumed.state.steps == 110
    assert set(straight[1].state[theta]) == set(expected.vector_fields()) - {"theta"}


@pytest.mark.parametrize("name", ALL)
def test_float32_and_lr_per_chain(name: str):
    """A chain of a stack with lr (C,) equals that chain of a stack with its lr. float32 chains stay finite."""
    lr = torch.tensor([0.5, 1.0, 2.0])
    ends = []
    for dtype in (torch.float32, D64):
        run = Two(BUILD[name], dtype=dtype, lr=lr)
        run.sampler.chain.z.normal_()
        ends.append(run)
    assert all(run.go(3).theta().isfinite().all() for run in ends)
    one = Two(BUILD[name], lr=1.0)
    assert torch.equal(one.go(4).theta()[1], Two(BUILD[name], lr=lr.double()).go(4).theta()[1])


@pytest.mark.parametrize("name", NAMES)
def test_double_continues_the_chain(name: str):
    """After `.double()` in the middle of a run the chain continues from its θ, with its factor of lr."""
    run = Two(dataclasses.replace(BUILD[name], adapt_steps=100), dtype=torch.float32).go(15)
    before, factor = run.theta(), run.sampler.chain.state.log_factor.clone()
    for p in (run.a, run.b, run.frozen):
        p.data = p.data.double()
    run.go(1)
    assert run.theta().dtype == D64
    assert (run.theta() == before.double()).all(1).any() or run.sampler.acceptance is not None
    assert torch.allclose(run.sampler.chain.state.log_factor, factor, atol=1 / 15**0.6)
