"""Tests of `bdl.samplers.weighting.weightings`, `.histogram_weighting`, `.histogram`, `.depth` and `.partition`.

The forms of adaptive weighting on a law whose G is known: fixed points, multipliers, floors, units of energy.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from repeats import slow_where
from scipy.stats import gamma

import bdl
from bdl.errors import ConfigError
from bdl.psi import lean, log_psi_and_slope
from bdl.samplers.potential import BoundGradient
from bdl.samplers.weighting.depth import depth
from bdl.samplers.weighting.histogram import Form, Histogram
from bdl.samplers.weighting.partition import FLOOR_SHARE

D64 = torch.float64
G = gamma(5).cdf  # the energy of N(0, I_10) at T = 1 has it
TOP = 20.0  # G = 1 - 1.7e-5
FINE = 8  # points in a bin, over which the weighted law is summed
ZETAS = [0.5, 1.0, 30.0, 300.0]
FLOORS = [0.0, 3.0]  # G = 0 and .18
WIDTH = 0.1


def settled(weighting: bdl.AdaptiveWeight):
    """The histogram at rest under the mean of the weighting's own recursion, and the masses of its bins.

    Nothing is random: every bin's direction is weighed by the bin's mass under exp(-U) / psi^zeta, where psi is the
    weighting's own function of energy.
    """
    h = weighting.init(torch.zeros(1, dtype=D64))
    h.visits.fill_(weighting.psi_form.min_visits)
    edges, psi = h.edges[0].numpy(), h.psi[0].numpy()
    points = np.concatenate([np.linspace(0, edges[0], 50), np.linspace(edges[0], TOP, FINE * h.bins + 1)[1:], [22, 30]])
    points = np.unique(points)
    u, mass = (points[1:] + points[:-1]) / 2, np.diff(G(points))
    bin_of = h.grid().bin_of(u)
    for _ in range(6000):
        h.tabulate()
        weighted = mass * np.exp(-weighting.zeta * h.evaluate(u)[0])
        shares = np.bincount(bin_of, weights=weighted, minlength=h.bins) / weighted.sum()
        step = np.cumsum(shares * psi) - psi * (shares @ psi)  # the mean of `direction`, as the test below confirms
        psi += min(0.5, 1 / weighting.zeta) * step
        if np.abs(step).max() * weighting.zeta < 1e-7:
            break
    h.tabulate()
    return h, shares


def test_direction_is_that_of_the_recursion():
    """theta_i moves by theta_J (1{i >= J} - theta_i) for an energy in bin J."""
    weighting = bdl.AdaptiveWeight(low=0.0, high=5.0, bins=5, form="code")
    h = weighting.init(torch.zeros(2, dtype=D64))
    pull, ours = weighting.direction(h, np.array([2.5, 9.0]), np.array([2, 4]), 1.0)
    np.testing.assert_allclose(pull, [0.6, 1.0])
    theta = np.arange(1, 6) / 5
    np.testing.assert_allclose(ours, [0.6 * ([0, 0, 1, 1, 1] - theta), 1.0 * ([0, 0, 0, 0, 1] - theta)])


@pytest.mark.parametrize("low", FLOORS)
@pytest.mark.parametrize("zeta", slow_where(lambda zeta: zeta in (0.5, 30.0), ZETAS))
@pytest.mark.parametrize("rise", slow_where(lambda rise: rise != "bounded", ["bounded", "clipped", "log"]))
def test_fixed_point_and_multiplier(rise: str, zeta: float, low: float):
    """theta^zeta ∝ G_1 + zeta (G - G_1), and the multiplier is 1 + zeta g / (G_1 + zeta (G - G_1)), within the error of
    bins .1 wide: 12 % of the multiplier's excess over 1, from the eleventh bin on, wherever log theta rises by less
    than .2 a bin. In the first bins above a floor a large zeta changes G_1 + zeta (G - G_1) several times over."""
    weighting = bdl.AdaptiveWeight(zeta=zeta, low=low, high=TOP, bins=round((TOP - low) / WIDTH), form=Form(rise))
    h, shares = settled(weighting)
    edges = h.edges[0].numpy()
    g_1 = G(edges[1])
    exact = g_1 + zeta * (G(edges[1:]) - g_1)
    slope = zeta * gamma(5).pdf(edges[1:-1]) / exact[:-1]  # between two bin centres lies their common edge
    ours = zeta * h.evaluate(edges[1:-1])[1]
    gentle = (slope * WIDTH / zeta < 0.2) & (G(edges[1:-1]) > 1e-3) & (G(edges[1:-1]) < 0.999)
    gentle[:10] = False
    assert gentle.sum() > 50
    np.testing.assert_allclose(ours[gentle], slope[gentle], rtol=0.12)
    if low:  # without a floor, theta of the lowest bins depends on how coarse they are
        theta = h.psi[0].numpy() ** zeta * exact[-1]
        np.testing.assert_allclose(theta[10:-1], exact[10:-1], rtol=0.12)
        assert shares[0] == pytest.approx(1 / (1 + math.log(1 + zeta * (1 - g_1) / g_1) / zeta), rel=0.12)


def test_a_linear_start_is_multiplier_of_authors_network_code():
    """Before any energy theta_i = i/m, so that the multiplier between the bins i and i + 1 is 1 + zeta T / U there."""
    weighting = bdl.AdaptiveWeight(zeta=300.0, low=0.0, high=2500.0, bins=125, form=Form("bounded", 0, "linear"))
    h = weighting.init(torch.zeros(3, dtype=D64))
    u = torch.tensor([30.0, 800.0, 2485.0], dtype=D64)
    upper = np.floor(u.numpy() / 20 + 0.5) * 20 + 20  # the upper edge of the upper of the two bins
    np.testing.assert_allclose(300 * h.evaluate(u.numpy())[1], 300 / upper, rtol=1e-12)


def chains_on(weighting, d=50, count=32, e=0.1, T=1.0, seed=0):
    """Chains on N(0, I_d): the sampler and a function that makes one step."""
    theta = torch.ones(count, d, dtype=D64, requires_grad=True)
    settings = dict(num_data=1, lr=e, temperature=T, prior=bdl.Uniform(), chains=count, seed=seed)
    sampler = bdl.Sampler([theta], bdl.SGLD(), weighting=weighting, **settings)

    def advance():
        return sampler.advance(BoundGradient(lambda out: (out[0].copy_(theta), theta.square().sum(1) / 2)[1]))

    return sampler, advance


def test_floor_descends_until_few_energies_lie_at_it():
    """Energies of N(0, I_50) are about 25 +- 5. The pilot's floor is their .1 % quantile, 7 nats of log G below the
    top; the weighted law reaches about 19 nats before its lowest bin holds less than 5 %. The depth that psi shows is
    that of the exact G within three of its errors."""
    weighting = bdl.AdaptiveWeight(shared=True, rate=lambda k: 0.02, form=Form(min_visits=0), pilot=300)
    sampler, advance = chains_on(weighting)
    while sampler.reweighting.histogram is None or sampler.reweighting.histogram.edges is None:
        advance()
    h = sampler.reweighting.histogram
    log_g = gamma(25, scale=1 / (1 - 0.1 / 2)).logcdf  # of the chain at its step size
    assert -log_g(float(h.edges[0, 0])) == pytest.approx(7, abs=1)
    for _ in range(3000):
        advance()
    assert float((h.recent(300) < h.edges[0, 1]).double().mean()) < FLOOR_SHARE
    assert -log_g(float(h.edges[0, 1])) > 15
    (value, error), exact = depth(h, 1.0), -log_g(float(h.window[: h.seen].median()))
    assert exact > 2 and abs(float(value) - exact) < 3 * float(error) < 2 * exact


def drawn(weighting, d: int, steps: int, chains=8, seed=0):
    """The histogram after energies of N(0, I_d), drawn independently from the law that psi weights at each time, and
    the share of that law below `u` as a function."""
    h, random = weighting.init(torch.zeros(chains, dtype=D64)), np.random.default_rng(seed)
    edges = h.edges[0].numpy()
    points = np.unique(np.concatenate([np.linspace(0, edges[0], 50), np.linspace(edges[0], edges[-1], FINE * h.bins)]))
    points = np.append(points, [edges[-1] * 1.5, edges[-1] * 2])
    u, mass = (points[1:] + points[:-1]) / 2, np.diff(gamma(d / 2).cdf(points))

    def law():
        p = mass * np.exp(-weighting.zeta * log_psi_and_slope(u, lean(h.log_psi), h.grid().centres, open_top=True)[0])
        return p / p.sum()

    for _ in range(steps):
        j = np.searchsorted(law().cumsum(), random.random(chains))
        at = u[j.clip(0, len(u) - 1)]
        weighting.update(h, at, weighting.zeta)
        h.remember(at)
    return h, lambda below: law()[u < below].sum()


FLOOR_LAW = {1.0: 0.475, 4.0: 0.628}  # shares of energies below 14 at the fixed point of bins .35 wide, d = 50


def test_the_fixed_points_of_the_floor_law():
    """The shares above are those of the continuous law, (1 + log(1 + zeta (G - G_1) / G_1) / zeta) over its value at
    G = 1, within the error of the bins: .02."""
    cdf = gamma(25).cdf
    g_1 = cdf(10.35)
    for zeta, share in FLOOR_LAW.items():
        mass = [1 + math.log(1 + zeta * (g - g_1) / g_1) / zeta for g in (cdf(14.0), 1.0)]
        assert mass[0] / mass[1] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("zeta", slow_where(lambda zeta: zeta == 4.0, FLOOR_LAW))
def test_psi_comes_to_rest_at_the_floor_law(zeta: float):
    """After 4,000 steps psi has forgotten its start, and the law that it weights has the share of
    energies below 14 that the fixed point has, within .02: psi averages over some 1,000 of the energies."""
    h, share = drawn(bdl.AdaptiveWeight(zeta=zeta, low=10.0, high=45.0, shared=True), 50, 4000)
    assert h.settled and share(14.0) == pytest.approx(FLOOR_LAW[zeta], abs=0.02)


@pytest.mark.slow  # a negative control of the test above
def test_without_haste_psi_is_slow_and_says_so(monkeypatch):
    """The published step: after 4,000 steps at zeta = 1 the share is .26, far from .475, and psi has not settled."""
    monkeypatch.setattr(Histogram, "hurry", lambda self: None)
    h, share = drawn(bdl.AdaptiveWeight(zeta=1.0, low=10.0, high=45.0, shared=True), 50, 4000)
    assert share(14.0) < 0.35 and not h.settled


@pytest.mark.parametrize("zeta", slow_where(lambda zeta: zeta == 1.0, [1.0, 10.0]))
def test_depth_of_the_energies(zeta: float):
    """-log G at the median energy within three errors, and the error is below 15 % of it: it is told."""
    h, _ = drawn(bdl.AdaptiveWeight(zeta=zeta, low=10.0, high=45.0, shared=True), 50, 5000)
    value, error = (float(each) for each in depth(h, zeta))
    j = int(h.grid().bin_of(np.array([float(h.window.median())]))[0])
    exact = -gamma(25).logcdf(float(h.edges[0, j + 1]))
    assert abs(value - exact) < 3 * error < 0.45 * value


def test_a_chain_that_fell_through_its_bins_claims_no_depth():
    """N(0, I_200) at zeta = 300: the chains fall into the lowest bins and stay. Bins that nobody visited said 32,405
    nats; the least energy that a chain meets lies at about 400. The error is a fifth of the depth at least."""
    sampler, advance = chains_on(bdl.AdaptiveWeight(zeta=300.0, pilot=300), d=200, count=4, e=0.002)
    for _ in range(2500):
        advance()
    h = sampler.reweighting.histogram
    value, error = depth(h, 300.0)
    assert float(h.edges[0, 0]) < 0, "the floor did not pass the least energy"
    assert 0 < float(value.nanmean()) < 450 and float(error[0]) > 0.2 * float(value.nanmean())


def test_one_visited_bin_says_nothing_of_the_depth():
    """Two wide bins that meet below all energies, as zeta="auto" has them: psi falls to 0 in the lower one."""
    wide = bdl.AdaptiveWeight(zeta=200.0, edges=[-150.0, -50.0, 50.0], form="full")
    sampler, advance = chains_on(wide, d=50, count=4)
    for _ in range(300):
        advance()
    assert all(bool(each.isnan().all()) for each in depth(sampler.reweighting.histogram, 200.0))
    assert "nats of log G" not in sampler.explain()


def test_the_full_form_is_largest_where_lower_bin_stays_empty():
    """1 + zeta T / width, whatever the energy and the count of visits; under "slides" the rise waits for visits."""
    bins = {"zeta": 200.0, "edges": [-150.0, -50.0, 50.0], "rate": lambda k: 0.05}
    for form, multiplier in (("full", 3.0), ("slides", 1.0)):
        sampler, advance = chains_on(bdl.AdaptiveWeight(**bins, form=form), d=50, count=4)
        for _ in range(300):
            advance()
        assert sampler.multiplier.tolist() == pytest.approx([multiplier] * 4, rel=1e-4)


def test_a_given_floor_stays():
    sampler, advance = chains_on(bdl.AdaptiveWeight(zeta=3.0, low=20.0, shared=True, pilot=300))
    for _ in range(600):
        advance()
    assert sampler.reweighting.histogram.edges[0, 0] == 20 and sampler.reweighting.histogram.bins == 100


def test_added_bins_leave_psi_as_it_is():
    """The function of energy does not change when bins are added below: psi is level there."""
    sampler, advance = chains_on(bdl.AdaptiveWeight(low=20.0, high=40.0, bins=10))
    for _ in range(300):
        advance()
    h, u = sampler.reweighting.histogram, np.linspace(0, 45, 32)
    before = h.evaluate(u)
    h.extend_down(7)
    assert h.bins == 17 and h.edges[0, 0] == 20 - 7 * 2 and not h.clock.any()
    for one, other in zip(before, h.evaluate(u), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_units_of_temperature_are_bins_times_temperature():
    """At one T both are the same law, here to the bit: T is a power of two."""
    runs = []
    for units, scale in (("nats", 4.0), ("temperature", 1.0)):
        weighting = bdl.AdaptiveWeight(zeta=2.0, low=10 * scale, high=50 * scale, bins=20, units=units)
        sampler, advance = chains_on(weighting, T=4.0)
        for _ in range(200):
            advance()
        runs.append(sampler)
    nats, temperature = runs
    assert torch.equal(nats.chain.theta, temperature.chain.theta) and bool((nats.multiplier > 1.01).any())
    u = torch.full((32,), 77.0, dtype=D64)
    assert torch.equal(nats.log_weight_at(u), temperature.log_weight_at(u))


@pytest.mark.parametrize("units", ["nats", "temperature"])
def test_psi_survives_a_falling_temperature(units: str):
    """U/T has the same law at every T. In nats psi is unsettled by every change of T, and the pilot waits for ever."""
    sampler, advance = chains_on(bdl.AdaptiveWeight(units=units, pilot=300))
    for step in range(2000):
        sampler.param_groups[0]["temperature"] = 8.0 * 0.999**step
        advance()
    h = sampler.reweighting.histogram
    assert (h.edges is not None) == (units == "temperature")
    if units == "temperature":
        assert float(h.clock.min()) > 1 and bool((sampler.multiplier > 1).any())
        assert 0.7 < float((sampler.reweighting.energy / sampler.used.temperature).mean()) / 25 < 1.3


def test_at_zero_temperature_energies_in_its_units_stay():
    sampler, advance = chains_on(bdl.AdaptiveWeight(low=10.0, high=50.0, units="temperature"), T=0.0, count=1)
    advance()
    assert sampler.reweighting.histogram is None and sampler.multiplier.eq(1).all() and sampler.log_weight.eq(0).all()


def test_a_chain_at_zero_temperature_has_no_energy_in_its_units():
    _, advance = chains_on(bdl.AdaptiveWeight(units="temperature"), T=torch.tensor([0.0, 1.0]), count=2)
    with pytest.raises(ConfigError, match='units="temperature" divides energies by T, got .*set T > 0 in every chain'):
        advance()


def test_weights_end_with_the_temperature():
    """Once T has fallen to 0, U/T is infinite, and no state has an importance weight."""
    sampler, advance = chains_on(bdl.AdaptiveWeight(low=10.0, high=50.0, bins=10, units="temperature"))
    for _ in range(50):
        advance()
    u = torch.full((32,), 30.0, dtype=D64)
    assert sampler.log_weight_at(u).ne(0).all()
    sampler.param_groups[0]["temperature"] = 0.0
    assert sampler.log_weight_at(u).eq(0).all()


def test_only_a_distribution_function_has_a_depth():
    """The psi of a contour weighting is a density, from which the fixed point of AdaptiveWeight says nothing."""
    for kind, deep in ((bdl.AdaptiveWeight, True), (bdl.Contour, False)):
        sampler, advance = chains_on(kind(low=10.0, high=50.0, bins=20, shared=True))
        for _ in range(20):
            advance()
        assert "energy bins: 20 from 10 to 50 nats" in sampler.explain()
        assert ("nats of log G below the top" in sampler.explain()) == deep


def test_bounds_in_every_unit():
    """Nats, a quantile of the pilot's energies, and nats per item; here N = 1,000 and energies 0, 1, ..., 999."""
    energies = torch.arange(1000, dtype=D64)[None]

    def edges(**bounds):
        return bdl.AdaptiveWeight(bins=10, **bounds).partition(1000).edges_for(energies)[0]

    torch.testing.assert_close(edges(low=5, high="0.5N")[[0, -1]], torch.tensor([5.0, 500.0], dtype=D64))
    torch.testing.assert_close(edges(low="1%", high="90%")[[0, -1]], torch.tensor([10.0, 899.0], dtype=D64))
    torch.testing.assert_close(edges()[[0, -1]], torch.tensor([1.0, 998 + 0.1 * 997], dtype=D64))


def test_edges_by_hand_need_no_pilot():
    weighting = bdl.AdaptiveWeight(edges=[0, 10, 15, 22, 30, 60])
    sampler, advance = chains_on(weighting)
    advance()
    h = sampler.reweighting.histogram
    assert h.bins == 5 and h.updates == 1 and h.edges.tolist() == [[0, 10, 15, 22, 30, 60]]
    assert h.grid().bin_of(np.array([-3.0, 9.9, 10.0, 29.0, 70.0] + [0.0] * 27))[:5].tolist() == [0, 0, 1, 3, 4]


def test_a_floor_above_the_top_that_the_pilot_found_is_refused():
    _, advance = chains_on(bdl.AdaptiveWeight(low=1000.0, pilot=200))
    with pytest.raises(ConfigError, match="low = 1000 is not below high = .* set low below most of them, or to null"):
        for _ in range(2000):
            advance()


@pytest.mark.parametrize("units", ["nats", "temperature"])
def test_chains_that_share_psi_at_their_own_t_are_described_each(units: str):
    """Bins in U/T are bins in nats at each chain's T. At one T there is one row."""
    weighting = bdl.AdaptiveWeight(low=1.0, high=50.0, bins=10, units=units, shared=True)  # type: ignore[arg-type]
    T = torch.tensor([1.0, 2.0], dtype=torch.float64)
    sampler, advance = chains_on(weighting, T=T, count=2)
    for _ in range(3):
        advance()
    tensors, _ = sampler.psi()
    h = sampler.reweighting.histogram
    unit = T if units == "temperature" else torch.ones(2)
    assert torch.equal(tensors["edges"], h.edges * unit[:, None]) and torch.equal(tensors["temperature"], T)
    for name in ("log_psi", "visits"):
        assert torch.equal(tensors[name], getattr(h, name).expand(2, -1))
    assert all(len(tensors[name]) == 2 for name in ("zeta", "depth", "depth_error"))
    assert tensors["recent_energies"].shape == (3, 2)
    sampler.param_groups[0]["temperature"] = torch.ones(2)
    assert len(sampler.psi()[0]["edges"]) == 1


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
    assert kind(form=name).psi_form == form and len(dataclasses.fields(kind)) <= 13
