"""Tests of `bdl.samplers.weighting.partition`, `.histogram` and `.reweighting`.

The life of a histogram: a pilot finds its range, psi settles and is frozen, a change of T or zeta unsettles it.
"""

import math

import numpy as np
import pytest
import torch
from closures import closure_of
from repeats import slow_where
from scipy.stats import gamma
from weighted_chains import D64, gaussian

import bdl
from bdl.samplers.weighting.histogram import UNSETTLED

PILOT = bdl.AdaptiveWeight().pilot
SHORT = 300  # a pilot where the power of a law is not asked for


@pytest.mark.parametrize("kind", slow_where(lambda kind: kind is bdl.Contour, [bdl.AdaptiveWeight, bdl.Contour]))
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
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(pilot=SHORT), e=4e-4, start=30.0, count=4)
    for _ in range(2 * SHORT):
        advance()
    assert sampler.reweighting.histogram.edges is None


def test_pilot_leaves_a_quick_descent_out_of_the_range():
    """In its first ten steps the energy falls from 720 nats to 5 and stays there. The range must not reach 720."""
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(pilot=SHORT), start=12.0, count=4)
    for _ in range(2 * SHORT):
        advance()
    assert sampler.reweighting.histogram.edges.max() < 40


def test_pilot_starts_again_when_the_temperature_changes():
    """T rises from 1 to 9 just before the end of a window. The range is that of T = 9 alone."""
    _, sampler, advance = gaussian(bdl.AdaptiveWeight(pilot=SHORT))
    for step in range(2 * SHORT - 1):
        if step == SHORT - 1:
            sampler.param_groups[0]["temperature"] = 9.0
            assert sampler.reweighting.histogram.edges is None
        advance()
    assert sampler.reweighting.histogram.edges.min() > 9 * gamma.ppf(1e-4, 5) > gamma.ppf(0.001, 5)


LEFT = [bdl.Contour(pilot=SHORT), bdl.AdaptiveWeight(low="0.1%", pilot=SHORT)]


@pytest.mark.parametrize(
    "weighting", slow_where(lambda w: isinstance(w, bdl.Contour), LEFT), ids=lambda w: type(w).__name__
)
def test_pilot_starts_again_when_the_energies_leave_its_range(weighting):
    """They fall from 45 nats to 5 as T falls from 9 to 1. Four in five are then below `low`, and psi is reset."""
    _, sampler, advance = gaussian(weighting, count=4)
    sampler.param_groups[0]["temperature"] = 9.0
    for _ in range(SHORT + 1):
        advance()
    h = sampler.reweighting.histogram
    sampler.param_groups[0]["temperature"] = 1.0
    while h.edges is not None:
        advance()
        assert h.updates < 500
    assert h.psi.eq(1).all() and not h.log_psi.any() and not h.visits.any() and not h.clock.any() and h.updates == 0
    for _ in range(SHORT + 2):
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
    for _ in range(500):  # its bins hold most energies, so the pilot does not start again
        advance()
    assert sampler.reweighting.histogram.updates == 501
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
        assert not sampler.reweighting.freeze()
        advance()
    sampler.param_groups[0]["temperature"] = 2.0
    for _ in range(least):
        assert not sampler.reweighting.freeze()
        advance()
    steps = 0
    while not sampler.reweighting.freeze():
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
    assert sampler.reweighting.histogram is None and not sampler.reweighting.freeze()


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
    recent = sampler.reweighting.histogram.recent(100)
    assert 0.2 < (recent < 5).double().mean() < 0.8 and 0.0 < (recent > 8).double().mean() < 0.4


def test_a_ramp_of_zeta_does_not_hold_up_the_pilot():
    """The pilot samples without weighting at any zeta. After it, every change of zeta unsettles psi."""
    x = torch.zeros(8, 1, dtype=D64, requires_grad=True)
    sampler = bdl.Sampler([x], bdl.SGLD(), num_data=1, lr=0.1, weighting=bdl.AdaptiveWeight(pilot=SHORT), chains=8)
    closure = closure_of(sampler, lambda: 0.5 * x.square().sum(1))
    for k in range(1000):
        sampler.param_groups[0]["zeta"] = k / 1000
        sampler.step(closure)
    assert sampler.reweighting.histogram.edges is not None
    assert float(sampler.reweighting.histogram.clock.max()) < 0.06 and not sampler.reweighting.freeze()
