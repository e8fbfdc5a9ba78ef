"""Tests of `bdl.samplers.weighting.base`, `.weightings`, `.reweighting` and `.partition`.

Adaptive weighting: log psi is one function; its slope acts on the gradient, its value on the importance weight.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles import Estimate, Well, langevin_law, refine
from repeats import slow_where
from scipy.stats import chi2, gamma

import bdl
from bdl.psi import lean
from bdl.samplers.weighting.histogram import UNSETTLED, Form, Histogram

D64 = torch.float64
KINDS = [bdl.AdaptiveWeight, bdl.Contour]


def fitted(weighting, psi):
    """A histogram with the given psi (m,), all of whose bins have been visited often enough to count in full."""
    h = weighting.init(torch.zeros(1, dtype=D64))
    h.psi[:] = torch.as_tensor(psi, dtype=D64)
    h.visits.fill_(weighting.psi_form.min_visits)
    h.tabulate()
    return h


# ---- one function ----------------------------------------------------------------------------------------------------

psis = st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=5)
energies = st.floats(-20.0, 40.0)
BINS = dict(low=0.0, high=10.0, bins=5)  # centres 1, 3, 5, 7, 9


@pytest.mark.parametrize("kind", KINDS)
@given(psi=psis, u=energies, zeta=st.floats(0, 5), T=st.floats(0, 5))
@settings(max_examples=60, deadline=None)
def test_multiplier_is_the_slope_of_log_psi(kind, psi, u, zeta, T):
    """sampler.multiplier = 1 + zeta T times the numerical derivative of log psi; sampler.log_weight = zeta log psi."""
    assume(abs(u - 2 * round((u - 1) / 2) - 1) > 1e-3)  # not at a kink, where there are two slopes
    weighting = kind(zeta=zeta, **BINS)
    sampler = bdl.Sampler(
        [torch.nn.Parameter(torch.zeros(1))], bdl.SGLD(), num_data=4, lr=0.1, temperature=T, weighting=weighting
    )
    sampler.param_groups[0]["params"][0].grad = torch.ones(1)
    h = sampler.reweighting.histogram = fitted(weighting, psi)

    def log_psi(v):
        return h.evaluate(np.array([v]))[0].item()

    slope, value = (log_psi(u + 1e-5) - log_psi(u - 1e-5)) / 2e-5, log_psi(u)
    sampler.step(lambda: torch.tensor(u / 4, dtype=D64))
    assert sampler.multiplier.item() == pytest.approx(1 + zeta * T * slope, abs=1e-6 * (1 + zeta * T))
    assert sampler.log_weight.item() == pytest.approx(zeta * value, abs=1e-12)


def rises(psi, rise: str = "bounded"):
    """(m - 1,) of log psi from bin to bin: 1 - θ_(J-1)/θ_J, or the difference of the logarithms, clipped or not."""
    psi = np.maximum(psi, 1e-300)
    if rise == "bounded":
        return (1 - np.minimum(psi[:-1], psi[1:]) / np.maximum(psi[:-1], psi[1:])) * np.sign(np.diff(psi))
    return np.diff(np.log(psi)).clip(*((-1, 1) if rise == "clipped" else (-np.inf, np.inf)))


def from_top(steps):
    """log psi (m,) at the bin centres, 0 in the top bin, from its rises."""
    return np.append(-np.cumsum(steps[::-1])[::-1], 0.0)


@pytest.mark.parametrize("rise", ["bounded", "clipped", "log"])
@given(psi=psis)
@settings(max_examples=30, deadline=None)
def test_log_psi_is_continuous_and_piecewise_linear(rise, psi):
    """Straight lines join its values at the bin centres. It is constant below them and goes on with its last slope
    above them, where a contour weighting is constant too."""
    adaptive, contour = (kind(shared=True, form=Form(rise), **BINS) for kind in KINDS)
    at_centres, last = from_top(rises(np.array(psi), rise)), rises(np.array(psi), rise)[-1]
    u = np.linspace(-3, 13, 1601)
    level = np.interp(u, [1, 3, 5, 7, 9], at_centres)
    values = {k: fitted(k, psi).evaluate(u)[0] for k in (adaptive, contour)}
    np.testing.assert_allclose(values[contour], level, atol=1e-12)
    np.testing.assert_allclose(values[adaptive], level + last / 2 * np.maximum(u - 9, 0), atol=1e-12)


@given(visits=st.lists(st.integers(0, 30), min_size=5, max_size=5))
@settings(max_examples=60, deadline=None)
def test_slope_is_bounded_and_small_where_bins_have_few_visits(visits):
    """|d log psi/du| <= 1 / width. Between bins with few visits it is scaled by the smaller number of visits."""
    weighting = bdl.AdaptiveWeight(shared=True, **BINS)
    h = fitted(weighting, [1e-300, 1e-9, 0.5, 0.50001, 1.0])
    h.visits = torch.tensor([visits], dtype=D64)
    h.tabulate()
    slope = h.evaluate(np.array([2.0, 4.0, 6.0, 8.0]))[1]
    full = np.array([1, 1 - 1e-9 / 0.5, 1 - 0.5 / 0.50001, 1 - 0.50001]) / 2
    trust = np.minimum(1, np.minimum(visits[1:], visits[:-1]) / np.float64(weighting.psi_form.min_visits))
    np.testing.assert_allclose(slope, full * trust, atol=1e-12)
    every = bdl.AdaptiveWeight(shared=True, form=Form(min_visits=0), **BINS)
    h.form = every.psi_form
    h.tabulate()
    np.testing.assert_allclose(h.evaluate(np.array([2.0, 4.0, 6.0, 8.0]))[1], full, atol=1e-12)


# ---- the fixed point -------------------------------------------------------------------------------------------------


class Normal:
    """U = x²/2."""

    low, high = 0.0, 6.0
    start = 0.0

    def energy(self, x):
        return x * x / 2

    def grad(self, x):
        return x


class Mixture:
    """2/5 N(-2, 1) + 3/5 N(1, 1)."""

    low, high = 1.4, 8.0
    start = -0.5

    def energy(self, x):
        first, second = -((x + 2) ** 2) / 2 + math.log(0.4), -((x - 1) ** 2) / 2 + math.log(0.6)
        return math.log(2 * math.pi) / 2 - np.logaddexp(first, second)

    def grad(self, x):
        share = 1 / (1 + 1.5 * np.exp(((x + 2) ** 2 - (x - 1) ** 2) / 2))
        return share * (x + 2) + (1 - share) * (x - 1)


BIN_COUNT, STEP = 40, 0.03
X = np.linspace(-7, 7, 401)  # spacing .035, injected noise of a step .24: sums over it are exact


def interpolated(target, log_psi, open_top=True):
    """log psi (m,) at the bin centres as a function of u, and its slope."""
    width = (target.high - target.low) / len(log_psi)
    centres = target.low + width * (np.arange(len(log_psi)) + 0.5)

    last = np.diff(log_psi)[-1] / width * open_top

    def slope(u):
        inside = (u > centres[0]) & (u < centres[-1])
        j = ((u - centres[0]) / width).astype(int).clip(0, len(log_psi) - 2)
        return np.where(inside, np.diff(log_psi)[j] / width, np.where(u < centres[0], 0, last))

    return lambda u: np.interp(u, centres, log_psi) + last * np.maximum(u - centres[-1], 0), slope


def masses(target, log_psi, zeta: float, e: float, open_top=True) -> np.ndarray:
    """(m,) mass of every bin under the weighted law. The outer bins include all that lies beyond them.

    e: step of the chain whose law it is. At e = 0 the law is exp(-U) psi(U)^-zeta, by quadrature.
    """
    value, slope = interpolated(target, log_psi, open_top)
    if e:
        drift = target.grad(X) * (1 + zeta * slope(target.energy(X)))
        x, p = refine(X, langevin_law(drift, e, 1.0, X), 40)
    else:
        x = np.linspace(-7, 7, 14001)
        p = np.exp(-target.energy(x) - zeta * value(target.energy(x)))
    j = ((target.energy(x) - target.low) / (target.high - target.low) * len(log_psi)).astype(int)
    mass = np.bincount(j.clip(0, len(log_psi) - 1), weights=p, minlength=len(log_psi))
    return mass / mass.sum()


def fixed_point(target, kind, zeta: float, e: float, bins=BIN_COUNT, rise="bounded") -> np.ndarray:
    """psi (m,) at which the mean of the recursion vanishes, while its piecewise-linear log psi weights the chain.

    Chains sample exp(-U) psi_lin(U)^-zeta, so the mass of bin j is mass_j = ∫_j g psi_lin^-zeta, not g_j θ_j^-zeta. The
    two agree as the bins shrink. For AdaptiveWeight θ_i = Σ_{j<=i} mass_j θ_j / Σ_j mass_j θ_j. For Contour
    θ_i ∝ mass_i θ_i^zeta.
    """
    psi, before = np.ones(bins), np.zeros(bins)
    while np.abs(psi - before).max() > 1e-6:
        adaptive = kind is bdl.AdaptiveWeight
        terms = masses(target, from_top(rises(psi, rise if adaptive else "clipped")), zeta, e, adaptive)
        terms = terms * psi if kind is bdl.AdaptiveWeight else terms * psi**zeta
        new = np.cumsum(terms) if kind is bdl.AdaptiveWeight else terms
        before, psi = psi, np.sqrt(psi * new / terms.sum())
    return psi


def chains(target, weighting, count: int, seed: int, start=None, e=STEP, dynamics=bdl.SGLD(), **arguments):  # noqa: B008
    """x, the sampler and a function that makes one step, on a target in one dimension with N = 1."""
    x = torch.full((count, 1), target.start, dtype=D64) if start is None else start.clone()
    x.requires_grad_()
    settings = dict(num_data=1, lr=e, prior=bdl.Uniform(), weighting=weighting, chains=count, seed=seed) | arguments
    sampler = bdl.Sampler([x], dynamics, **settings)
    x.grad = torch.zeros_like(x)

    def closure():
        x.grad.copy_(torch.from_numpy(target.grad(x.detach().numpy())))
        return torch.from_numpy(target.energy(x.detach().numpy()))[:, 0]

    return x, sampler, lambda: sampler.step(closure)


def decaying(k: int) -> float:
    """Step of the stochastic approximation, which averages over about the last third of the run."""
    return min(0.1, 4 / (k + 40))


def learned(target, kind, zeta: float, bins=BIN_COUNT, rate=decaying) -> Estimate:
    """psi after 2,000 steps of 256 chains that share it, from four independent runs."""
    ends = []
    for seed in range(4):
        weighting = kind(zeta=zeta, low=target.low, high=target.high, bins=bins, rate=rate, shared=True)
        _, sampler, advance = chains(target, weighting, 256, seed)
        for _ in range(2000):
            advance()
        ends.append(sampler.reweighting.histogram.psi[0])
    return Estimate.over_chains(torch.stack(ends))


def tolerance(estimate: Estimate) -> float:
    """Five standard errors, the largest over the bins, because four runs give a rough one for a single bin. It errs on
    the large side, because only one or two bins are independent."""
    return 5 * estimate.se.max()


SPREADS = [(target, zeta) for target in (Normal(), Mixture()) for zeta in (0.5, 1.0, 2.0)]


@pytest.mark.parametrize(
    "target, zeta",
    slow_where(lambda target, zeta: zeta != 2.0 or isinstance(target, Mixture), SPREADS),
    ids=lambda value: str(value) if isinstance(value, float) else type(value).__name__,
)
def test_psi_reaches_the_discrete_fixed_point(target, zeta: float):
    """psi agrees with the fixed point for the chain's step size. Power: the tolerance is below .03, and the fixed point
    of 1.4 zeta is further off."""
    estimate = learned(target, bdl.AdaptiveWeight, zeta)
    tol = tolerance(estimate)
    assert tol < 0.03, "no power: more steps"
    expected = fixed_point(target, bdl.AdaptiveWeight, zeta, STEP)
    assert estimate.mean[-1] == pytest.approx(1, abs=1e-9)
    assert np.abs(estimate.mean - expected).max() < tol
    wrong = fixed_point(target, bdl.AdaptiveWeight, 1.4 * zeta, STEP)
    assert np.abs(estimate.mean - wrong).max() > tol


@pytest.mark.parametrize("target", [Normal(), Mixture()], ids=lambda t: type(t).__name__)
def test_fixed_point_is_the_cdf_to_the_power_one_over_zeta(target):
    """As lr -> 0 the oracle above is G(u)^(1/zeta) at the right bin edges: at zeta = 1 with 40 bins to .01 for rises of
    the logarithm and to .05 for bounded ones, at zeta = 2 only in the limit of narrow bins. So tests must compare with
    the discrete form."""

    def gap(zeta: float, bins: int, rise="bounded") -> float:
        G = np.cumsum(masses(target, np.zeros(bins), 0.0, 0.0))
        return np.abs(fixed_point(target, bdl.AdaptiveWeight, zeta, 0.0, bins, rise) - G ** (1 / zeta)).max()

    assert gap(1.0, 40, "log") < 0.01 and gap(1.0, 40) < 0.05
    assert 0.1 < gap(2.0, 40) < 0.15
    assert gap(2.0, 640) < 0.8 * gap(2.0, 40)


class Exponential:
    """U = |x|: no bin is much heavier than the next."""

    low, high, start = 0.0, 4.0, 0.0

    def energy(self, x):
        return np.abs(x)

    def grad(self, x):
        return np.sign(x)


def slow(k: int) -> float:
    """Step for Contour, whose recursion is slower by the mean of psi, which is one over the number of bins."""
    return min(0.05, 60 / (k + 1200))


def test_contour_reaches_the_bin_masses():
    """psi is the density of energy, within five standard errors and the shift of the fixed point by interpolation and
    step size, which is computed. Power: the tolerance is below .08, and a uniform psi is off by .27."""
    target, bins = Exponential(), 8
    estimate = learned(target, bdl.Contour, 1.0, bins, slow)
    g = np.diff(1 - np.exp(-np.linspace(0, 4, bins + 1)))
    g[-1] += math.exp(-4)
    tol = tolerance(estimate) + np.abs(fixed_point(target, bdl.Contour, 1.0, STEP, bins) - g).max()
    assert tol < 0.08, "no power"
    assert np.abs(estimate.mean - g).max() < tol


@pytest.mark.slow
def test_contour_survives_a_heavy_bin():
    """2 U ~ χ²₁: the lowest of 12 bins holds 68%. It is more than e times as heavy as the next, which exceeds the
    largest rise of log psi. psi must still be close to the bin masses (.68, .16, .07, ...)."""
    target = Normal()
    g = np.diff(chi2.cdf(2 * np.linspace(target.low, target.high, 13), 1))
    estimate = learned(target, bdl.Contour, 1.0, 12, slow)
    assert np.abs(estimate.mean - g).max() < 0.1


# ---- reweighting -----------------------------------------------------------------------------------------------------


class Asymmetric(Well):
    low, high, start = -1.2, 4.0, 0.0


WELL, WELL_STEP = Asymmetric(height=1.2, tilt=0.45), 0.01
X_WELL = np.linspace(-2.4, 2.4, 961)  # a fine grid, because the drift jumps where log psi bends


def shares(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    """P(x > 0) and P(U < 0) under masses p on a grid x; p need not sum to 1."""
    return np.array([p[x > 0].sum(), p[WELL.energy(x) < 0].sum()]) / p.sum()


def chain_shares(weighted: bool, log_psi, zeta: float) -> np.ndarray:
    """The shares under the law of the chain at its step size, for these nodes of log psi, with weights or without."""
    value, slope = interpolated(WELL, log_psi)
    drift = WELL.grad(X_WELL) * (1 + zeta * slope(WELL.energy(X_WELL)))
    x, p = refine(X_WELL, langevin_law(drift, WELL_STEP, 1.0, X_WELL), 3)
    return shares(x, p * np.exp(zeta * value(WELL.energy(x))) if weighted else p)


def true_shares(T: float = 1.0) -> np.ndarray:
    """The shares under exp(-U/T)."""
    x = np.linspace(-4, 4, 80001)
    return shares(x, np.exp(-WELL.energy(x) / T))


def reweighted(weighting, steps: int, learn: int = 0, dynamics=bdl.SGLD(), e=WELL_STEP, count=1024, **arguments):  # noqa: B008
    """Learn psi, freeze it, sample: means (C, 5) of w 1{x > 0}, w 1{U < 0}, w, 1{x > 0}, 1{U < 0}; and the sampler."""
    start = torch.where(torch.arange(count) % 3 == 0, 1.0, -1.0).double().unsqueeze(1)
    x, sampler, advance = chains(WELL, weighting, count, 3, start, e, dynamics, **arguments)
    for _ in range(learn):
        advance()
    while not sampler.freeze_weighting():
        advance()
    sums = torch.zeros(count, 5, dtype=D64)
    for step in range(steps):
        right = (x.detach()[:, 0] > 0).double()  # the x that this step's energy and weight belong to
        advance()
        if step % 5 == 0:
            w, deep = sampler.log_weight.exp(), (sampler.energy < 0).double()
            sums += torch.stack([w * right, w * deep, w, right, deep], 1)
    return sums / len(range(0, steps, 5)), sampler


def ratios(sums) -> Estimate:
    """Σ w 1{x > 0} / Σ w and Σ w 1{U < 0} / Σ w, with standard errors between chains (delta method)."""
    w = sums[:, 2:3]
    share = sums[:, :2].sum(0) / w.sum()
    rest = (sums[:, :2] - share * w) / w.mean()
    return Estimate(share.numpy(), (rest.std(0) / len(sums) ** 0.5).numpy())


def near(sums, expected, stated=0.0) -> bool:
    """Are both weighted shares the expected ones, to 4.5 standard errors and a stated O(lr)?"""
    estimate = ratios(sums)
    tol = 4.5 * estimate.se + stated
    assert tol.max() < 0.06, "no power: more steps"
    return bool((np.abs(estimate.mean - expected) < tol).all())


@pytest.mark.parametrize(
    "bins, zeta",
    slow_where(lambda *case: case != (26, 2.0), itertools.product((7, 13, 26), (0.5, 1.0, 2.0))),
)
def test_reweighting_a_double_well(bins: int, zeta: float):
    """exp(zeta log psi) recovers P(x > 0) = .32 and P(U < 0) = .42 with bins .74, .4 and .2 nats wide.

    Within 4.5 standard errors, below .04, they are those of the chain at its step size. The law of that chain is off by
    O(lr) (computed): by less than .02 and .09, the second because the multiplier makes wells steeper. Without weights
    both shares are off by more than three times that. Power: .04 in P(x > 0), which is off by .07 to .22 without.
    """
    weighting = bdl.AdaptiveWeight(zeta=zeta, low=WELL.low, high=WELL.high, bins=bins, shared=True, rate=lambda k: 0.02)
    sums, sampler = reweighted(weighting, 2500, learn=2000)
    nodes = sampler.reweighting.histogram.log_psi[0].numpy()
    law, true, plain = chain_shares(True, nodes, zeta), true_shares(), sums[:, 3:].mean(0).numpy()
    assert near(sums, law)
    assert (np.abs(law - true) < [0.02, 0.09]).all()
    assert (np.abs(plain - true) > 3 * np.abs(law - true)).all() and np.abs(plain - true).min() > 0.06
    se = sums[:, 3:].std(0).numpy() / len(sums) ** 0.5
    assert (np.abs(plain - chain_shares(False, nodes, zeta)) < 4.5 * se).all()


def test_reweighting_with_a_psi_per_chain():
    """P(x > 0) is right within 4.5 standard errors plus the O(lr) of the chain, which is the worst of four chains' psi.
    Together they are below .05. Without weights the share is off by more than twice that."""
    weighting = bdl.AdaptiveWeight(zeta=1.0, low=WELL.low, high=WELL.high, bins=26)
    sums, sampler = reweighted(weighting, 4000)
    true = true_shares()
    bias = max(abs(chain_shares(True, row, 1.0) - true)[0] for row in sampler.reweighting.histogram.log_psi[:4].numpy())
    estimate = ratios(sums)
    tol = 4.5 * estimate.se[0] + bias
    assert tol < 0.05, "no power"
    assert abs(estimate.mean[0] - true[0]) < tol
    assert abs(sums[:, 3].mean().item() - true[0]) > 2 * tol


@pytest.mark.parametrize(
    "bins, zeta", slow_where(lambda *case: case != (8, 1.0), itertools.product((7, 8, 10), (0.5, 1.0, 2.0)))
)
def test_reweighting_under_contour(bins: int, zeta: float):
    """Bins are .74, .65 and .52 nats wide. The multiplier changes its sign, so the drift jumps and the error is of
    order sqrt(lr): .025 is allowed, .024 was measured at worst. Without weights, at zeta = 1 and 2, a share is off by
    more than .05."""
    weighting = bdl.Contour(zeta=zeta, low=WELL.low, high=WELL.high, bins=bins, shared=True, rate=lambda k: 0.02)
    sums, _ = reweighted(weighting, 2000, learn=1200, e=0.005)
    assert near(sums, true_shares(), stated=0.025)
    plain = sums[:, 3:].mean(0).numpy()
    assert zeta < 1 or np.abs(plain - true_shares()).max() > 0.05


class Steps(Histogram):
    """The published variant, a negative control. log psi is a step function, and its slope is the difference to the bin
    below, so that multiplier and weight belong to two functions. Energies beyond the bins are clamped. It is frozen
    after the steps that the sound form needs: chains of the steep variant may diverge before psi settles."""

    settled = True

    def evaluate(self, u):
        rows, j = self.grid().rows, self.grid().bin_of(u)
        log_psi = lean(self.psi.clamp_min(1e-300).log())
        here, below = log_psi[rows, j], log_psi[rows, np.maximum(j - 1, 0)]
        return here, (here - below) / float(self.edges.diff()[0, 0])


@dataclass(frozen=True)
class Published(bdl.AdaptiveWeight):
    def init(self, energies, num_data=1):
        h = super().init(energies, num_data)
        return Steps(**h.state_dict(), form=h.form)


@pytest.mark.parametrize("bins", [7, pytest.param(26, marks=pytest.mark.slow)])
def test_published_variant_does_not_lead_back(bins: int):
    """Where AdaptiveWeight passes above, it gives P(x > 0) .1 or more too high and P(U < 0) .2 too low."""
    weighting = Published(zeta=1.0, low=WELL.low, high=WELL.high, bins=bins, shared=True, rate=lambda k: 0.02)
    sums, _ = reweighted(weighting, 2500, learn=2500)
    assert not near(sums, true_shares(), stated=0.02)
    assert (ratios(sums).mean - true_shares()) @ [1, -1] > 0.2


@pytest.mark.parametrize(
    "dynamics, e, T",
    [
        pytest.param(bdl.SGLD(), 0.005, 0.7, id="SGLD", marks=pytest.mark.slow),
        pytest.param(bdl.SGHMC(0.1), 0.003, 1.0, id="SGHMC", marks=pytest.mark.slow),
        pytest.param(bdl.SGHMC(0.5), 0.005, 0.7, id="SGHMC-half", marks=pytest.mark.slow),
        pytest.param(bdl.BAOAB(0.5), 0.005, 1.0, id="BAOAB", marks=pytest.mark.slow),
        pytest.param(bdl.SGNHT(0.1, rate=1e-3), 0.003, 1.0, id="SGNHT"),
        pytest.param(bdl.PSGLD(damping=1e-5, adapt_steps=500), 0.02, 1.0, id="PSGLD"),
        pytest.param(bdl.SGRLD(lambda x: (-x / 2).exp()), 0.008, 1.0, id="SGRLD", marks=pytest.mark.slow),
    ],
)
def test_reweighting_with_every_dynamics(dynamics, e: float, T: float):
    """The multiplier of the gradient makes the same law under momenta, a thermostat and metrics, and at T = .7. The
    allowed O(lr) is .01 and .02. Without weights both shares are off by more than .06."""
    weighting = bdl.AdaptiveWeight(zeta=1.0, low=WELL.low, high=WELL.high, bins=7, shared=True, rate=lambda k: 0.02)
    sums, _ = reweighted(weighting, 2500, learn=1500, dynamics=dynamics, e=e, count=768, temperature=T)
    assert near(sums, true_shares(T), stated=np.array([0.01, 0.02]))
    assert np.abs(sums[:, 3:].mean(0).numpy() - true_shares(T)).min() > 0.06


# ---- life of a histogram ---------------------------------------------------------------------------------------------


PILOT = bdl.AdaptiveWeight().pilot


def gaussian(weighting, d=10, count=64, T=1.0, e=0.2, start=1.0, seed=0, **arguments):
    """`count` chains on N(0, I) in d dimensions with N = 5: theta, the sampler and a function that makes one step."""
    theta = torch.full((count, d), float(start), dtype=D64, requires_grad=True)
    arguments = dict(lr=5 * e, temperature=T, prior=bdl.Uniform(), chains=count, seed=seed) | arguments
    sampler = bdl.Sampler([theta], bdl.SGLD(), num_data=5, weighting=weighting, **arguments)

    def closure():
        sampler.zero_grad()
        loss = theta.square().sum(1) / 2 / 5
        loss.sum().backward()
        return loss

    return theta, sampler, lambda: sampler.step(closure)


@pytest.mark.parametrize("kind", KINDS)
def test_pilot_finds_the_range(kind):
    """In ten dimensions U ~ Gamma(5)/(1 - e/2). low, high are its .1% and 99.9% quantiles, high with a tenth of margin.

    The standard error of a quantile is sqrt(p (1-p)/n)/density. At e = 1 the steps of a chain are independent, so n is
    the number of all 64,000 energies. Five standard errors are 7% of low and 1.5% of high.
    """
    _, sampler, advance = gaussian(kind(), e=1.0)
    for step in range(PILOT):
        assert sampler.reweighting.histogram is None or sampler.reweighting.histogram.edges is None
        assert sampler.multiplier.eq(1).all() and sampler.log_weight.eq(0).all(), step
        advance()
    low, high = gamma.ppf([0.001, 0.999], 5) * 2
    h = sampler.reweighting.histogram
    quantiles = [h.edges[0, 0].item(), (h.edges[0, -1].item() + 0.1 * h.edges[0, 0].item()) / 1.1]
    density = gamma.pdf([low / 2, high / 2], 5) / 2
    se = np.sqrt(0.001 / (64 * PILOT)) / density
    assert (np.abs(quantiles - np.array([low, high])) < 5 * se).all()
    advance()
    assert sampler.reweighting.histogram.updates == 1


def test_pilot_waits_while_the_energies_drift():
    """The descent from far away lasts longer than two windows of the pilot."""
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(), e=4e-4, start=30.0, count=4)
    for _ in range(2 * PILOT):
        advance()
    assert sampler.reweighting.histogram.edges is None


def test_pilot_leaves_a_quick_descent_out_of_the_range():
    """In its first ten steps the energy falls from 720 nats to 5 and stays there. The range must not reach 720."""
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(), start=12.0, count=4)
    for _ in range(2 * PILOT):
        advance()
    assert sampler.reweighting.histogram.edges.max() < 40


def test_pilot_starts_again_when_the_temperature_changes():
    """T rises from 1 to 9 just before the end of a window. The range is that of T = 9 alone."""
    _, sampler, advance = gaussian(bdl.AdaptiveWeight())
    for step in range(2 * PILOT - 1):
        if step == PILOT - 1:
            sampler.param_groups[0]["temperature"] = 9.0
            assert sampler.reweighting.histogram.edges is None
        advance()
    assert sampler.reweighting.histogram.edges.min() > 9 * gamma.ppf(1e-4, 5) > gamma.ppf(0.001, 5)


@pytest.mark.parametrize("weighting", [bdl.Contour(), bdl.AdaptiveWeight(low="0.1%")], ids=lambda w: type(w).__name__)
def test_pilot_starts_again_when_the_energies_leave_its_range(weighting):
    """They fall from 45 nats to 5 as T falls from 9 to 1. Four in five are then below `low`, and psi is reset."""
    _, sampler, advance = gaussian(weighting, count=4)
    sampler.param_groups[0]["temperature"] = 9.0
    for _ in range(PILOT + 1):
        advance()
    h = sampler.reweighting.histogram
    sampler.param_groups[0]["temperature"] = 1.0
    while h.edges is not None:
        advance()
        assert h.updates < 500
    assert h.psi.eq(1).all() and not h.log_psi.any() and not h.visits.any() and not h.clock.any() and h.updates == 0
    for _ in range(PILOT + 2):
        advance()
    assert h.edges[0, 0] < 5 < h.edges[0, -1] < 40 and h.updates > 0


def test_a_short_pilot():
    """A pilot of 150 steps ends after 150 energies without drift. One shorter than a check of the range is refused."""
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(pilot=150))
    for _ in range(150):
        assert sampler.reweighting.histogram is None or sampler.reweighting.histogram.edges is None
        advance()
    advance()
    assert sampler.reweighting.histogram.updates == 1
    for _ in range(1000):  # its bins hold most energies, so the pilot does not start again
        advance()
    assert sampler.reweighting.histogram.updates == 1001
    with pytest.raises(bdl.errors.ConfigError, match="pilot must be at least 100 steps, got 99"):
        bdl.AdaptiveWeight(pilot=99)


def test_psi_is_silent_at_zero_temperature():
    """At T = 0 the multiplier is 1 and psi learns nothing. Afterwards it learns again."""
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(low=0.0, high=20.0, bins=10))
    for _ in range(50):
        advance()
    assert (sampler.multiplier > 1).any()
    before = sampler.reweighting.histogram.psi.clone()
    sampler.param_groups[0]["temperature"] = 0.0
    for _ in range(10):
        advance()
        assert sampler.multiplier.eq(1).all()
    assert torch.equal(sampler.reweighting.histogram.psi, before) and sampler.reweighting.histogram.updates == 50
    sampler.param_groups[0]["temperature"] = 1.0
    advance()
    assert not torch.equal(sampler.reweighting.histogram.psi, before)


def test_freezing_waits_until_psi_has_settled():
    """At a constant rate of .05 one step is at most .05 time constants, so that psi needs 3/.05 steps after T last
    changed, and more by the share of its start in the lowest bin. A frozen psi stays constant."""
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(low=0.0, high=20.0, bins=10, rate=lambda k: 0.05))
    least = math.floor(-math.log(UNSETTLED) / 0.05)
    for _ in range(least):
        assert not sampler.freeze_weighting()
        advance()
    sampler.param_groups[0]["temperature"] = 2.0
    for _ in range(least):
        assert not sampler.freeze_weighting()
        advance()
    steps = 0
    while not sampler.freeze_weighting():
        advance()
        assert (steps := steps + 1) < 10 * least
    h = sampler.reweighting.histogram
    assert float(h.left.mean()) <= UNSETTLED
    psi, log_psi = sampler.reweighting.histogram.psi.clone(), sampler.reweighting.histogram.log_psi.clone()
    advance()
    assert torch.equal(sampler.reweighting.histogram.psi, psi) and torch.equal(
        sampler.reweighting.histogram.log_psi, log_psi
    )


PER_CHAIN = pytest.param(torch.full((64,), 1.0, dtype=D64))


@pytest.mark.parametrize("temperature", [1.0, PER_CHAIN], ids=["number", "tensor"])
def test_change_of_temperature_in_place_is_noticed(temperature):
    """The clock of psi restarts, also when a (C,) tensor in param_groups is changed in place."""
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(low=0.0, high=20.0, bins=10), T=temperature)
    for _ in range(5):
        advance()
    clock = sampler.reweighting.histogram.clock.clone()
    sampler.param_groups[0]["temperature"] *= 2
    advance()
    assert bool(((sampler.reweighting.histogram.clock > 0) & (sampler.reweighting.histogram.clock < clock)).all())


def test_flat_has_nothing_to_freeze():
    _, sampler, advance = gaussian(bdl.Flat())
    advance()
    assert sampler.reweighting.histogram is None and not sampler.freeze_weighting()


@pytest.mark.parametrize("low, high", [(100.0, 200.0), (-5.0, -1.0)])
def test_bins_that_miss_the_energies_are_refused(low: float, high: float):
    """Energies are about 5. The message says where bins and energies are."""
    _, _, advance = gaussian(bdl.AdaptiveWeight(low=low, high=high))
    with pytest.raises(bdl.errors.ConfigError, match=f"bins miss the energies: low = {low:g}, high = {high:g}"):
        for _ in range(2 * PILOT):
            advance()


def test_bins_that_hold_some_energies_are_kept():
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(low=5.0, high=8.0, zeta=0.1))
    for _ in range(250):
        advance()
    below, above = sampler.reweighting.histogram.outside()
    assert 0.2 < below < 0.8 and 0.0 < above < 0.4


# ---- kinds of energy -------------------------------------------------------------------------------------------------


def energy_read(sampler) -> torch.Tensor:
    """The energy that the weighting has last read, in the shape of `sampler.energy`."""
    return sampler.reweighting.energy.reshape(sampler.energy.shape)


def noisy_batches(energy: str, chains, steps=30, **arguments):
    """Yield (sampler, batch energy, full energy at the θ of the step's gradient) of a chain on noisy losses."""
    lead = () if chains is None else (chains,)
    theta = torch.ones(*lead, 3, dtype=D64, requires_grad=True)
    weighting = bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=20.0, bins=10, energy=energy, **arguments)
    sampler = bdl.Sampler(
        [theta], bdl.SGLD(), num_data=5, lr=0.1, prior=bdl.Gaussian(2.0), weighting=weighting, chains=chains
    )
    draw = torch.Generator().manual_seed(0)

    def mean_loss():
        return theta.square().sum(-1) / 2

    sampler.full_loss = mean_loss
    for _ in range(steps):
        with torch.no_grad():
            error = torch.randn(lead, generator=draw, dtype=D64)
            prior = theta.square().sum(-1)
            full, batch = 5 * mean_loss() + prior, 5 * (mean_loss() + error) + prior

        def closure(error=error):
            sampler.zero_grad()
            loss = mean_loss() + error
            loss.sum().backward()
            return loss

        sampler.step(closure)
        yield sampler, batch, full


@pytest.mark.parametrize("chains", [None, 3])
@pytest.mark.parametrize("energy", ["batch", "ema", "full"])
def test_weighting_reads_its_kind_of_energy(energy: str, chains):
    """`Sampler.energy` is always N times the batch loss plus the prior energy. psi reads the kind that is set."""
    smoothed, psi = None, None
    for sampler, batch, full in noisy_batches(energy, chains):
        smoothed = batch if smoothed is None else 0.95 * smoothed + 0.05 * batch
        expected = {"batch": batch, "ema": smoothed, "full": full}[energy]
        torch.testing.assert_close(sampler.energy, batch)
        torch.testing.assert_close(energy_read(sampler), expected)
        if psi is not None:
            weight = 2.0 * torch.from_numpy(psi.evaluate(expected.reshape(-1).numpy())[0]).reshape(batch.shape)
            torch.testing.assert_close(sampler.log_weight, weight)
        psi = Histogram(**_copy(sampler.reweighting.histogram.state_dict()), form=sampler.reweighting.histogram.form)
    assert sampler.log_weight.abs().max() > 0


def _copy(state: dict) -> dict:
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}


def test_full_energy_is_refreshed_every_n_steps():
    """It is computed at steps 0, 4, 8, ... and kept in between."""
    kept = None
    for step, (sampler, _, full) in enumerate(noisy_batches("full", None, refresh=4)):
        kept = full if step % 4 == 0 else kept
        torch.testing.assert_close(energy_read(sampler), kept)


def test_full_energy_without_full_loss_is_refused():
    weighting = bdl.AdaptiveWeight(low=0.0, high=20.0, energy="full")
    _, _, advance = gaussian(weighting)
    with pytest.raises(bdl.errors.ConfigError, match="full_loss"):
        advance()


@pytest.mark.parametrize("energy", ["batch", "ema", "full"])
def test_readings_are_not_changed_by_later_steps(energy: str):
    """Tensors that were read after one step keep their values."""
    readings = []
    for sampler, _, _ in noisy_batches(energy, 3):
        now = (sampler.energy, energy_read(sampler), sampler.multiplier, sampler.log_weight)
        readings.append((now, [value.clone() for value in now]))
    assert all(torch.equal(a, b) for now, then in readings for a, b in zip(now, then, strict=True))


@pytest.mark.parametrize(
    "arguments",
    [
        dict(zeta=-1.0), dict(zeta=1e10), dict(bins=1), dict(low=2.0, high=1.0), dict(low="5", high=5),
        dict(energy="sum"),
        dict(form="steep"), dict(units="kT"),
        dict(refresh=0), dict(low="0.1 %%"), dict(low="101%"), dict(high="3M"), dict(high=math.inf),
        pytest.param(dict(zeta=math.nan)), pytest.param(dict(low=math.nan, high=1.0)),
    ],
    ids=str,
)  # fmt: skip
def test_bad_arguments_are_refused(arguments):
    """The message names the offending value."""
    (value, *_) = arguments.values()
    with pytest.raises(bdl.errors.ConfigError, match=str(value)):
        bdl.AdaptiveWeight(**arguments)


@pytest.mark.parametrize("arguments", [dict(rise="steep"), dict(start="i/m"), dict(min_visits=-1)], ids=str)
def test_bad_arguments_of_a_form_are_refused(arguments):
    (value,) = arguments.values()
    with pytest.raises(bdl.errors.ConfigError, match=str(value)):
        Form(**arguments)


@pytest.mark.parametrize(
    ("kind", "name", "form"),
    [
        (bdl.AdaptiveWeight, "slides", Form("bounded", 10, "flat", True)),
        (bdl.AdaptiveWeight, "code", Form("log", 0, "linear", True)),
        (bdl.Contour, "slides", Form("clipped", 10, "flat", False)),
        (bdl.Contour, "code", Form("log", 0, "linear", False)),
    ],
)
def test_a_form_by_its_name(kind, name, form):
    assert kind(form=name).psi_form == form and len(dataclasses.fields(kind)) <= 12


def test_a_ramp_of_zeta_does_not_hold_up_the_pilot():
    """The pilot samples without weighting at any zeta. After it, every change of zeta unsettles psi."""
    x = torch.zeros(8, 1, dtype=D64, requires_grad=True)
    sampler = bdl.Sampler([x], bdl.SGLD(), num_data=1, lr=0.1, weighting=bdl.AdaptiveWeight(), chains=8)

    def closure():
        sampler.zero_grad()
        u = 0.5 * x.square().sum(1)
        u.sum().backward()
        return u.detach()

    for k in range(3000):
        sampler.param_groups[0]["zeta"] = k / 3000
        sampler.step(closure)
    assert sampler.reweighting.histogram.edges is not None
    assert float(sampler.reweighting.histogram.clock.max()) < 0.06 and not sampler.freeze_weighting()
