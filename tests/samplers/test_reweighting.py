"""Tests of `bdl.samplers.weighting.reweighting`: importance weights lead back from the weighted law to exp(-U/T)."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from oracles import Estimate, Well, langevin_law, refine
from repeats import slow_where
from weighted_chains import D64, chains, interpolated

import bdl
from bdl.psi import lean
from bdl.samplers.weighting.histogram import Histogram


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
    while not sampler.reweighting.freeze():
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


@pytest.mark.slow
@pytest.mark.parametrize("bins", [7, 26])
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
        pytest.param(bdl.BAOAB(0.5), 0.005, 1.0, id="BAOAB", marks=pytest.mark.slow),
        pytest.param(bdl.SGNHT(0.1, rate=1e-3), 0.003, 1.0, id="SGNHT", marks=pytest.mark.slow),
        pytest.param(bdl.PSGLD(damping=1e-5, adapt_steps=500), 0.02, 1.0, id="PSGLD", marks=pytest.mark.slow),
        pytest.param(bdl.SGRLD(lambda x: (-x / 2).exp()), 0.008, 1.0, id="SGRLD", marks=pytest.mark.slow),
    ],
)
def test_reweighting_with_every_dynamics(dynamics, e: float, T: float):
    """The multiplier of the gradient makes the same law under momenta, a thermostat and metrics, and at T = .7. The
    allowed O(lr) is .01 and .02. Without weights both shares are off by more than .06."""
    weighting = bdl.AdaptiveWeight(zeta=1.0, low=WELL.low, high=WELL.high, bins=7, shared=True, rate=lambda k: 0.02)
    sums, _ = reweighted(weighting, 1250, learn=1500, dynamics=dynamics, e=e, count=1536, temperature=T)
    assert near(sums, true_shares(T), stated=np.array([0.01, 0.02]))
    assert np.abs(sums[:, 3:].mean(0).numpy() - true_shares(T)).min() > 0.06
