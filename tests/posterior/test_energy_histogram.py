"""EnergyHistogram: psi and the multiplier as the sampler evaluates them."""

import numpy as np

from bdl.posterior.energy_histogram import EnergyHistogram
from bdl.posterior.store import SampleStore


def test_multiplier_is_the_slope_of_log_psi():
    rng = np.random.default_rng(0)
    h = EnergyHistogram(np.linspace(0, 10, 11), rng.normal(size=10).cumsum(), np.ones(1), zeta=2.0, temperature=0.3)
    u = rng.uniform(-1, 11, 200)
    u = u[np.abs(u[:, None] - h.centres).min(1) > 1e-3]  # the slope jumps at the centres
    slope = (h.log_psi_at(u + 1e-5) - h.log_psi_at(u - 1e-5)) / 2e-5
    np.testing.assert_allclose(h.multiplier_at(u), 1 + 2.0 * 0.3 * slope, rtol=1e-7)
    assert (h.multiplier_at(np.array([-1.0, 0.4])) == 1).all()
    above = h.multiplier_at(np.array([9.4, 9.6, 11.0]))  # the highest region has no upper edge
    assert above[0] != 1 and (above == above[0]).all()


def test_log_psi_is_linear_inside_and_constant_outside():
    rng = np.random.default_rng(1)
    h = EnergyHistogram(
        np.linspace(-3, 5, 9), rng.normal(size=8), np.ones(1), zeta=1.0, temperature=1.0, cumulative=False
    )
    u = rng.uniform(-5, 7, (20, 10))
    np.testing.assert_allclose(h.log_psi_at(u), np.interp(u, h.centres, h.log_psi), rtol=1e-12, atol=1e-12)


def test_multiplier_at_edges_is_that_of_segments_between_centres():
    h = EnergyHistogram(np.linspace(0, 4, 5), np.array([0.0, 1.0, 3.0, 2.0]), np.ones(1), zeta=2.0, temperature=0.5)
    np.testing.assert_allclose(h.multiplier_at(h.edges), [1, 2, 3, 0, 0])


def test_share_outside_counts_finite_energies():
    energies = np.array([[0.5, -1.0], [np.nan, 2.0], [np.inf, 0.0]])
    h = EnergyHistogram(np.linspace(0, 1, 3), np.zeros(2), energies, zeta=1.0, temperature=1.0)
    assert h.share_outside == 2 / 4


def test_a_run_without_weighting_has_none(run):
    assert EnergyHistogram.read_all(SampleStore(run), 0) == []


def test_bins_that_the_pilot_has_not_found_are_no_histogram(weighted, monkeypatch):
    store = SampleStore(weighted)
    saved, about = store.weighting(0) or ({}, {})
    monkeypatch.setattr(store, "weighting", lambda stack: (saved | {"edges": saved["edges"] * np.nan}, about))
    assert EnergyHistogram.read_all(store, 0) == []


def test_the_saved_histogram_is_that_of_the_first_chain(weighted):
    store = SampleStore(weighted)
    (saved, _), h = store.weighting(0) or ({}, {}), EnergyHistogram.read_all(store, 0)[0]
    assert h.frozen and h.cumulative and h.kind == "batch"
    np.testing.assert_array_equal(h.log_psi, saved["log_psi"][0])
    np.testing.assert_array_equal(h.energies, saved["recent_energies"][:, 0])
    records = store.records()[:-1]  # the last sample has no batch energy
    expected = np.array([r.log_weight[0] for r in records if r.log_weight is not None and r.energy_batch is not None])
    energies = np.array([r.energy_batch[0] for r in records if r.energy_batch is not None])
    np.testing.assert_allclose(h.zeta * h.log_psi_at(energies), expected, atol=1e-9)
