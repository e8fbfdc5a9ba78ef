"""Tests of `bdl.samplers.weighting.weightings` and `.histogram`.

psi settles where the mean of its recursion vanishes, which quadrature finds without random numbers.
"""

import math

import numpy as np
import pytest
import torch
from oracles import Estimate, langevin_law, refine
from repeats import slow_where
from scipy.stats import chi2
from weighted_chains import STEP, chains, from_top, interpolated, rises

import bdl

BIN_COUNT = 40
X = np.linspace(-7, 7, 401)  # spacing .035, injected noise of a step .24: sums over it are exact


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
    while np.abs(psi - before).max() > 1e-5:
        adaptive = kind is bdl.AdaptiveWeight
        terms = masses(target, from_top(rises(psi, rise if adaptive else "clipped")), zeta, e, adaptive)
        terms = terms * psi if kind is bdl.AdaptiveWeight else terms * psi**zeta
        new = np.cumsum(terms) if kind is bdl.AdaptiveWeight else terms
        before, psi = psi, np.sqrt(psi * new / terms.sum())
    return psi


def decaying(k: int) -> float:
    """Step of the stochastic approximation, which averages over about the last third of the run."""
    return min(0.1, 4 / (k + 40))


def learned(target, kind, zeta: float, bins=BIN_COUNT, rate=decaying, steps=1000, count=512) -> Estimate:
    """psi after `steps` steps of `count` chains that share it, from four independent runs."""
    ends = []
    for seed in range(4):
        weighting = kind(zeta=zeta, low=target.low, high=target.high, bins=bins, rate=rate, shared=True)
        _, sampler, advance = chains(target, weighting, count, seed)
        for _ in range(steps):
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
    estimate = learned(target, bdl.AdaptiveWeight, zeta, steps=700)
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
    estimate = learned(target, bdl.Contour, 1.0, bins, slow, 1200, 256)
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
    estimate = learned(target, bdl.Contour, 1.0, 12, slow, 2000, 256)
    assert np.abs(estimate.mean - g).max() < 0.1
