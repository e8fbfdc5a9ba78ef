"""Tests of `bdl.samplers.weighting.base`, `.histogram` and `.reweighting`.

log psi is one function of the energy. Its slope acts on the gradient, its value on the importance weight.
"""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from weighted_chains import D64, from_top, rises

import bdl
from bdl.samplers.weighting.histogram import Form

KINDS = [bdl.AdaptiveWeight, bdl.Contour]
psis = st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=5)
energies = st.floats(-20.0, 40.0)
BINS = dict(low=0.0, high=10.0, bins=5)  # centres 1, 3, 5, 7, 9


def fitted(weighting, psi):
    """A histogram with the given psi (m,), all of whose bins have been visited often enough to count in full."""
    h = weighting.init(torch.zeros(1, dtype=D64))
    h.psi[:] = torch.as_tensor(psi, dtype=D64)
    h.visits.fill_(weighting.psi_form.min_visits)
    h.tabulate()
    return h


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
