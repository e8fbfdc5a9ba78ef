"""Adaptive weighting: one function log psi, its slope in the gradient, its value in the weight, its fixed point."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, gamma, norm

import bdl
from bdl.samplers.weighting import MAX_RISE, MIN_VISITS, SETTLED, WINDOW
from oracles import Estimate, Well, langevin_law, refine

D64 = torch.float64
KINDS = [bdl.AdaptiveWeight, bdl.Contour]


def fitted(weighting, psi):
    """A histogram whose bins have all been seen often enough, with the given psi (R, m)."""
    h = weighting.init(torch.zeros(1, dtype=D64))
    h.psi = torch.as_tensor(psi, dtype=D64).reshape(1, -1)
    h.visits = torch.full_like(h.psi, MIN_VISITS)
    weighting._tabulate(h)
    return h


# ---- one function -----------------------------------------------------------------------------------------------------

psis = st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=5)
energies = st.floats(-20.0, 40.0)
BINS = dict(low=0.0, high=10.0, bins=5)  # centres 1, 3, 5, 7, 9


@pytest.mark.parametrize("kind", KINDS)
@given(psi=psis, u=energies, zeta=st.floats(0, 5), T=st.floats(0, 5))
@settings(max_examples=60, deadline=None)
def test_multiplier_is_the_slope_of_log_psi(kind, psi, u, zeta, T):
    """sampler.multiplier = 1 + zeta T x the numerical derivative of what sampler.log_weight = zeta log psi is made of."""
    assume(abs(u - 2 * round((u - 1) / 2) - 1) > 1e-3)  # not at a kink, where there are two slopes
    weighting = kind(zeta=zeta, **BINS)
    sampler = bdl.Sampler([torch.nn.Parameter(torch.zeros(1))], bdl.SGLD(), num_data=4, lr=0.1, temperature=T, weighting=weighting)
    h = sampler._histogram = fitted(weighting, psi)

    def log_psi(v):
        return weighting.log_psi(h, torch.tensor([v], dtype=D64)).item()

    slope, value = (log_psi(u + 1e-5) - log_psi(u - 1e-5)) / 2e-5, log_psi(u)
    sampler.step(lambda: torch.tensor(u / 4, dtype=D64))
    assert sampler.multiplier.item() == pytest.approx(1 + zeta * T * slope, abs=1e-6 * (1 + zeta * T))
    assert sampler.log_weight.item() == pytest.approx(zeta * value, abs=1e-12)


@given(psi=psis)
@settings(max_examples=60, deadline=None)
def test_log_psi_is_continuous_and_piecewise_linear(psi):
    """It joins log psi at the bin centres (rises bounded by MAX_RISE) by straight lines, and is constant outside."""
    weighting = bdl.AdaptiveWeight(**BINS)
    h = fitted(weighting, psi)
    rises = np.clip(np.diff(np.log(psi)), -MAX_RISE, MAX_RISE)
    at_centres = np.append(-np.cumsum(rises[::-1])[::-1], 0.0)
    u = np.linspace(-3, 13, 1601)
    found = weighting.log_psi(h, torch.from_numpy(u))
    np.testing.assert_allclose(found, np.interp(u, [1, 3, 5, 7, 9], at_centres), atol=1e-12)


@given(visits=st.lists(st.integers(0, 30), min_size=5, max_size=5))
@settings(max_examples=60, deadline=None)
def test_slope_is_bounded_where_hardly_anything_was_seen(visits):
    """|d log psi/du| <= MAX_RISE / width, and the less visited of two bins takes its share of that."""
    weighting = bdl.AdaptiveWeight(**BINS)
    h = fitted(weighting, [1e-300, 1e-9, 0.5, 0.50001, 1.0])
    h.visits = torch.tensor([visits], dtype=D64)
    weighting._tabulate(h)
    slope = weighting.slope(h, torch.tensor([2.0, 4.0, 6.0, 8.0], dtype=D64).unsqueeze(1)[:, 0])
    full = np.array([MAX_RISE, MAX_RISE, math.log(0.50001 / 0.5), math.log(1 / 0.50001)]) / 2
    trust = np.minimum(1, np.minimum(visits[1:], visits[:-1]) / np.float64(MIN_VISITS))
    np.testing.assert_allclose(slope, full * trust, atol=1e-12)


# ---- the fixed point ---------------------------------------------------------------------------------------------------


class Normal:
    """U = x²/2."""

    low, high, span = 0.0, 6.0, 5.0
    start = 0.0

    def energy(self, x):
        return x * x / 2

    def grad(self, x):
        return x


class Mixture:
    """2/5 N(-2, 1) + 3/5 N(1, 1)."""

    low, high, span = 1.4, 8.0, 7.0
    start = -0.5

    def energy(self, x):
        return -np.log(0.4 * norm.pdf(x, -2) + 0.6 * norm.pdf(x, 1))

    def grad(self, x):
        left = 1 / (1 + 1.5 * np.exp(((x + 2) ** 2 - (x - 1) ** 2) / 2)) if isinstance(x, np.ndarray) else self._left(x)
        return left * (x + 2) + (1 - left) * (x - 1)

    @staticmethod
    def _left(x):
        return torch.sigmoid(((x - 1) ** 2 - (x + 2) ** 2) / 2 - math.log(1.5))


BIN_COUNT, STEP = 40, 0.01
X = np.linspace(-7, 7, 561)  # spacing .025, noise of a step .14: sums over it are exact


def interpolated(target, log_psi):
    """log psi (m,) at the bin centres as a function of u, and its slope."""
    width = (target.high - target.low) / len(log_psi)
    centres = target.low + width * (np.arange(len(log_psi)) + 0.5)

    def slope(u):
        inside = (u > centres[0]) & (u < centres[-1])
        j = ((u - centres[0]) / width).astype(int).clip(0, len(log_psi) - 2)
        return np.where(inside, np.diff(log_psi)[j] / width, 0)

    return lambda u: np.interp(u, centres, log_psi), slope


def masses(target, log_psi, zeta: float, e: float) -> np.ndarray:
    """Mass of every bin (the outer ones with all beyond) under the weighted law: of the chain at step e, or for e = 0
    ∫ exp(-U) psi(U)^-zeta by quadrature."""
    value, slope = interpolated(target, log_psi)
    if e:
        drift = target.grad(X) * (1 + zeta * slope(target.energy(X)))
        x, p = refine(X, langevin_law(lambda _: drift, e, 1.0, X), 40)
    else:
        x = np.linspace(-7, 7, 22401)
        p = np.exp(-target.energy(x) - zeta * value(target.energy(x)))
    j = ((target.energy(x) - target.low) / (target.high - target.low) * len(log_psi)).astype(int)
    mass = np.bincount(j.clip(0, len(log_psi) - 1), weights=p, minlength=len(log_psi))
    return mass / mass.sum()


def fixed_point(target, kind, zeta: float, e: float, bins=BIN_COUNT) -> np.ndarray:
    """psi (m,) where the mean of the recursion vanishes while its own piecewise-linear log psi does the weighting.

    Chains sample ∝ exp(-U) psi_lin(U)^-zeta, so bin j is met with mass_j = ∫_j g psi_lin^-zeta, not g_j θ_j^-zeta: the
    two agree as the bins shrink. AdaptiveWeight: θ_i = Σ_{j<=i} mass_j θ_j / Σ_j mass_j θ_j. Contour: θ_i ∝ mass_i θ_i^zeta.
    """
    psi = np.ones(bins)
    for _ in range(60):
        rises = np.diff(np.log(psi)).clip(-MAX_RISE, MAX_RISE)
        log_psi = np.append(-np.cumsum(rises[::-1])[::-1], 0)
        terms = masses(target, log_psi, zeta, e)
        terms = terms * psi if kind is bdl.AdaptiveWeight else terms * psi**zeta
        new = np.cumsum(terms) if kind is bdl.AdaptiveWeight else terms
        psi = psi**0.5 * (new / terms.sum()) ** 0.5
    return psi


def chains(target, weighting, count: int, seed: int, start=None, e=STEP):
    """x, sampler and one step of SGLD on a target in one dimension, N = 1 and T = 1."""
    x = torch.full((count, 1), target.start, dtype=D64) if start is None else start.clone()
    x.requires_grad_()
    sampler = bdl.Sampler(
        [x], bdl.SGLD(), num_data=1, lr=e, prior=bdl.Uniform(), weighting=weighting, chains=count, seed=seed
    )
    x.grad = torch.zeros_like(x)

    def closure():
        x.grad.copy_(torch.as_tensor(target.grad(x.detach())))
        return torch.as_tensor(target.energy(x.detach().numpy()))[:, 0]

    return x, sampler, lambda: sampler.step(closure)


def decaying(k: int) -> float:
    """A step of the approximation that averages over the last tenth or so of the run."""
    return min(0.1, 8 / (k + 80))


def learned(target, kind, zeta: float, steps=2500, replicas=4) -> Estimate:
    """psi after a run of 256 chains that share it, over independent runs."""
    found = []
    for seed in range(replicas):
        weighting = kind(zeta=zeta, low=target.low, high=target.high, bins=BIN_COUNT, rate=decaying, shared=True)
        _, sampler, advance = chains(target, weighting, 256, seed)
        for _ in range(steps):
            advance()
        found.append(sampler.histogram.psi[0])
    return Estimate.over_chains(torch.stack(found))


def tolerance(estimate: Estimate) -> float:
    """Five standard errors. That of one bin from four runs is too rough, so it is the largest over the bins (of which
    one or two are independent), which errs on the large side."""
    return 5 * estimate.se.max()


@pytest.mark.parametrize("zeta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("target", [Normal(), Mixture()], ids=lambda t: type(t).__name__)
def test_psi_reaches_the_discrete_fixed_point(target, zeta: float):
    """Against the fixed point of the chain at its own step size. Power: tolerance below .04, while psi as the unweighted
    CDF, or as that of another zeta, is off by more."""
    estimate = learned(target, bdl.AdaptiveWeight, zeta)
    tol = tolerance(estimate)
    assert tol < 0.04, "no power: more steps"
    expected = fixed_point(target, bdl.AdaptiveWeight, zeta, STEP)
    assert estimate.mean[-1] == pytest.approx(1, abs=1e-9)
    assert np.abs(estimate.mean - expected).max() < tol
    other = fixed_point(target, bdl.AdaptiveWeight, 1.4 * zeta, STEP)
    assert np.abs(estimate.mean - other).max() > tol


@pytest.mark.parametrize("target", [Normal(), Mixture()], ids=lambda t: type(t).__name__)
def test_fixed_point_is_the_cdf_to_the_power_one_over_zeta(target):
    """The oracle above, as lr -> 0 and the bins shrink, is G(u)^(1/zeta) at the right bin edges: at zeta = 1 to the
    width of the bins, at zeta = 2 more slowly; and 40 bins are not yet that limit."""
    gap = {}
    for zeta in (1.0, 2.0):
        for bins in (20, 40, 160):
            G = np.cumsum(masses(target, np.zeros(bins), 0.0, 0.0))
            gap[zeta, bins] = np.abs(fixed_point(target, bdl.AdaptiveWeight, zeta, 0.0, bins) - G ** (1 / zeta)).max()
        assert gap[zeta, 20] > gap[zeta, 40] > gap[zeta, 160]
    assert gap[1.0, 160] < 0.03


def test_contour_reaches_the_bin_masses():
    """psi = density of energy. Power as above: the uniform start is off by twenty times the tolerance."""
    target = Normal()
    estimate = learned(target, bdl.Contour, 1.0)
    expected, tol = fixed_point(target, bdl.Contour, 1.0, STEP), tolerance(estimate)
    g = np.diff(chi2.cdf(2 * np.linspace(target.low, target.high, BIN_COUNT + 1), 1))
    assert tol < 0.02
    assert np.abs(estimate.mean - expected).max() < tol
    assert np.abs(expected - g).max() < 0.1 * g.max()  # the step size and the linear interpolation move it so much
    assert np.abs(estimate.mean - 1 / BIN_COUNT).max() > 15 * tol


# ---- reweighting --------------------------------------------------------------------------------------------------------

WELL = Well(height=1.5, tilt=0.47)
WELL.__dict__.update(low=-1.2, high=4.0, start=0.0)
RIGHT = X > 0


def right_share(weighted: bool, log_psi, zeta: float) -> float:
    """P(x > 0) that the chain at step STEP gives with these nodes of log psi, with or without importance weights."""
    value, slope = interpolated(WELL, log_psi)
    drift = WELL.grad(X) * (1 + zeta * slope(WELL.energy(X)))
    fine, p = refine(X, langevin_law(lambda _: drift, STEP, 1.0, X), 10)
    p = p * np.exp(zeta * value(WELL.energy(fine))) if weighted else p
    return p[fine > 0].sum() / p.sum()


def true_share() -> float:
    x = np.linspace(-4, 4, 80001)
    p = np.exp(-WELL.energy(x))
    return p[x > 0].sum() / p.sum()


def reweighted(shared: bool, count: int, steps: int):
    """Learn, freeze, sample: per-chain sums of w 1{x > 0}, w, 1{x > 0}, and the sampler."""
    zeta = 1.0
    weighting = bdl.AdaptiveWeight(zeta=zeta, low=WELL.low, high=WELL.high, bins=26, shared=shared)
    start = torch.where(torch.arange(count) % 3 == 0, 1.0, -1.0).double().unsqueeze(1)
    x, sampler, advance = chains(WELL, weighting, count, 3, start)
    while not sampler.freeze_weighting():
        advance()
    sums = torch.zeros(count, 3, dtype=D64)
    for step in range(steps):
        right = (x.detach()[:, 0] > 0).double()  # the x that this step's energy and weight belong to
        advance()
        if step % 5 == 0:
            w = sampler.log_weight.exp()
            sums += torch.stack([w * right, w, right], 1)
    return sums / len(range(0, steps, 5)), sampler


def ratio(sums) -> tuple[float, float]:
    """Σ w 1 / Σ w and its standard error between chains (delta method)."""
    share = (sums[:, 0].sum() / sums[:, 1].sum()).item()
    rest = sums[:, 0] - share * sums[:, 1]
    return share, (rest.std() / sums[:, 1].mean() / len(sums) ** 0.5).item()


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per-chain"])
def test_reweighting_a_double_well(shared: bool):
    """exp(zeta log psi) recovers P(x > 0) = .28 within 4.5 standard errors plus the O(lr) of the chain, both below .015;
    without weights it is off by more than three times as much. The O(lr) is the worst over the psi of eight chains."""
    sums, sampler = reweighted(shared, 512, 3000)
    nodes = sampler.histogram.log_psi[:8].numpy()
    bias = max(abs(right_share(True, row, 1.0) - true_share()) for row in nodes)
    share, se = ratio(sums)
    tol = 4.5 * se + bias
    assert tol < 0.03, "no power"
    assert abs(share - true_share()) < tol
    assert abs(sums[:, 2].mean().item() - true_share()) > 2 * tol
