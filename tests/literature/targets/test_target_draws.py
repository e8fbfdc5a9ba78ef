"""Exact draws against energies, moments and normalising constants.

For draws of exp(-U/T), integration by parts gives E ∂_i U = 0 and E (x_i - m_i) ∂_j U = T δ_ij. With 300,000 draws
the standard error of the second is about .3 % for a Gaussian, so a limit of 4.5 standard errors fails a law that is 2 %
too wide or too narrow. A negative control shows it.
"""

import math

import pytest
import torch
from curved import DoubleWell, Funnel
from literature.targets import GaussianLaw, Mixture, RuggedSurface, WellingTeh, grid25, integrate
from repeats import slow_where
from zoo import EXACT, WARM, stream

N, LIMIT = 300_000, 4.5  # draws, standard errors
CASES = [(name, {}) for name in EXACT] + [(name, {"temperature": 1.7}) for name in WARM]
DIFFERENT = ("banana", "funnel", "linear")  # test_targets.py compares all with their formulas
costly = slow_where(lambda name, settings: name not in DIFFERENT or settings, CASES)
each = pytest.mark.parametrize("name, settings", costly, ids=lambda v: str(v) if v else "")


def z_score(values, expected):
    """Largest distance of the mean over axis 0 from its expectation, in standard errors."""
    error = values.std(0) / math.sqrt(len(values))
    return ((values.mean(0) - expected).abs() / error.clamp_min(1e-300)).max().item()


def stein(target, x, temperature=1.0):
    """The larger z-score of the two identities above."""
    grad = target.grad(x) / temperature
    products = (x - x.mean(0)).unsqueeze(2) * grad.unsqueeze(1)
    return max(z_score(grad, 0), z_score(products, torch.eye(target.dim, dtype=x.dtype)))


@each
def test_draws_belong_to_the_energy(name, settings):
    target = EXACT[name]
    x = target.sample(N, stream(1), **settings)
    assert stein(target, x, **settings) < LIMIT


@pytest.mark.parametrize("name", ["gaussian", "banana", "funnel", "linear"])
def test_negative_control_two_percent_of_variance(name):
    target = EXACT[name]
    x = target.sample(N, stream(1))
    assert stein(target, x.mean(0) + 1.01 * (x - x.mean(0))) > LIMIT


@each
def test_moments_are_those_of_the_draws(name, settings):
    target = EXACT[name]
    x = target.sample(N, stream(2), **settings)
    warm = settings if name != "gaussian" else {}  # its mean does not depend on T
    mean, covariance = target.mean(**warm), target.covariance(**settings)
    assert z_score(x, mean) < LIMIT
    r = x - mean
    assert z_score(r.unsqueeze(2) * r.unsqueeze(1), covariance) < LIMIT


@pytest.mark.parametrize(
    "target, half_width",
    [(EXACT["gaussian"], 25), (Mixture.case(2), 25), (Mixture.case(4), 15)],
    ids=["gaussian", "2 modes", "4 modes"],
)
def test_log_prob_integrates_to_one(target, half_width):
    low, high = target.mean() - half_width, target.mean() + half_width
    grid = integrate(target, low, high, 800)
    total = target.log_prob(grid.nodes).exp().sum() * grid.widths.prod()
    assert abs(total.item() - 1) < 1e-8
    torch.testing.assert_close(grid.covariance(), target.covariance(), rtol=1e-6, atol=1e-8)


def test_the_energy_of_the_funnel():
    x = Funnel().sample(100, stream())
    v, rest = x[:, 0], x[:, 1:]
    normal = torch.distributions.Normal
    expected = normal(0.0, 3.0).log_prob(v) + normal(0.0, (v / 2).exp()[:, None]).log_prob(rest).sum(1)
    torch.testing.assert_close(-Funnel().energy(x), expected)
    assert math.isclose(Funnel().covariance()[3, 3], math.exp(4.5))


def test_modes_get_their_draws():
    mixture = EXACT["mixture of 3"]
    assert mixture.mode_weights(mixture.sample(60, stream(4)).view(20, 3, 2)).shape == (3, 3)
    expected = mixture.responsibilities(mixture.sample(N, stream(5)))
    assert z_score(expected, mixture.weights) < LIMIT
    centres = torch.tensor([[0.0, 0.0], [6.0, 0.0], [3.0, 3.0], [0.0, 0.1]])
    torch.testing.assert_close(mixture.mode_weights(centres), torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))
    grid, n = grid25(), N // 6
    assert (grid.mode_weights(grid.sample(n, stream(6))) - 0.04).abs().max() < LIMIT * math.sqrt(0.04 * 0.96 / n)


def test_published_mixtures():
    """Ji 2023, listings; the upper triangles make the covariances symmetric."""
    one, two, three, four = (Mixture.case(k) for k in (1, 2, 3, 4))
    assert one.covariances[0].tolist() == [[1, 0.8], [0.8, 10]]
    assert two.means.tolist() == [[0, 0], [5, 5]] and two.covariances[1].tolist() == [[10, -0.9], [-0.9, 10]]
    assert three.means.tolist() == [[0, 0], [6, 0], [3, 3]] and three.covariances[:, 0, 1].tolist() == [0.9, -0.9, 0.1]
    assert four.means.tolist() == [[0, 0], [5, 0], [5, 5], [0, 5]] and torch.equal(four.covariances[2], torch.eye(2))
    assert grid25().means.shape == (25, 2) and grid25().means.abs().max() == 4


def test_double_well_against_scipy():
    from scipy.integrate import quad

    well, temperature = DoubleWell(3.0, 0.5), 1.3
    weight = lambda x: math.exp(-(3 * (x * x - 1) ** 2 + 0.5 * x) / temperature)  # noqa: E731
    z = quad(weight, -8, 8)[0]
    assert math.isclose(well.quadrature(temperature).log_z, math.log(z), rel_tol=1e-9)
    for x in (-1.2, 0.0, 0.7):
        assert abs(well.cdf(x, temperature).item() - quad(weight, -8, x)[0] / z) < 1e-6
    mean = quad(lambda x: x * weight(x), -8, 8)[0] / z
    assert math.isclose(well.mean(temperature).item(), mean, rel_tol=1e-8)


def test_energy_cdf_is_chi_square_for_a_gaussian():
    from scipy.stats import chi2

    grid = integrate(GaussianLaw([0.0, 0.0], torch.eye(2)), -8, 8, 800)
    u = torch.tensor([0.1, 0.7, 2.0, 5.0])
    torch.testing.assert_close(grid.energy_cdf(u), torch.as_tensor(chi2.cdf(2 * u, 2)), atol=1e-3, rtol=0)
    assert grid.density().shape == (800, 800)


def test_rugged_surface_has_its_known_minima():
    surface = RuggedSurface()
    known = torch.tensor([[1.0445, -1.0084], [-1.0445, -1.0084]], dtype=torch.float64)
    assert (surface.energy(known) + 8.12465).abs().max() < 1e-4
    grid = surface.quadrature(20.0, 400)
    assert grid.energies.min() > -8.1247
    assert grid.nodes.abs().max() < 1.1 and abs(grid.mass.sum().item() - 1) < 1e-9


def test_welling_teh_has_the_modes_it_says():
    target = WellingTeh()
    x = torch.tensor([[0.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    for _ in range(1000):
        x = x - 0.01 * target.grad(x)
    expected = torch.tensor([[-0.10, 1.14], [1.03, -1.13]], dtype=torch.float64)
    torch.testing.assert_close(x, expected, atol=0.005, rtol=0)
    between = target.energy(x[0] + torch.linspace(0, 1, 50, dtype=torch.float64)[:, None] * (x[1] - x[0])).max()
    assert 0.6 < (between - target.energy(x)).min() < 0.7
    density = integrate(target, -4, 4, 400).density()
    edge = torch.cat([density[0], density[-1], density[:, 0], density[:, -1]])
    assert edge.max() < 1e-8 * density.max()  # the box holds the whole mass
