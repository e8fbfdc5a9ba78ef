"""Parts of the tables with known answers: the author's code, the listing's law, edges by hand, modes at cycle ends."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from literature.cyclical import Method, Run, counted
from literature.energies import MIXTURE, NORMAL, alike, fixed_point, narrow_below
from literature.functions import verdict
from literature.functions_code import race_of_code
from literature.functions_race import METHODS, Job, Phase, log_form, run_code
from literature.gaussians_listing import Listing, listing_draws, near_origin
from literature.mixtures import DATA, Ridge
from literature.targets import PUBLISHED, Mixture, Sphere, WellingTeh, grid25, integrate, simulate_welling_teh
from literature.targets.base import value_and_grad
from literature.toy import draw_data, root_mean_square, simulate

D64 = torch.float64


def by_hand(f0: float, lr: float, pull: float, gain: float, width: float, bins: int, threshold: float) -> int:
    """Iterations of the author's code on f = |x|² without noise, where f after a step is f (1 - 2 lr multiplier)²."""
    theta, j, f, k = [0.1] * bins, bins - 1, f0, 0
    while f >= threshold:
        k += 1
        f *= (1 - 2 * lr * (1 + pull * math.log(theta[j] / theta[j - 1]) / width)) ** 2
        j = min(max(int(f / width + 1), 1), bins - 1)
        gamma = min(1.0, gain / (k**0.75 + 1000))
        theta = [t + gamma * theta[j] * ((i >= j) - t) for i, t in enumerate(theta)]
    return k


@pytest.mark.parametrize("pull", [0.0, 30.0])
def test_the_race_of_the_authors_code_by_hand(pull: float):
    """T = 1e-16 takes the noise away, but ζT stays. The gradients' noise moves f by less than 1 % of one step."""
    settings = replace(
        PUBLISHED["sphere"], start=(2.9, 3.1), temperature=1e-16, zeta=pull * 1e16, bin_width=0.5, threshold=0.4
    )
    start = torch.full((2, 30), 3.0, dtype=D64)
    ours = race_of_code(Sphere(30), settings, settings.zeta, 100, start, 1000, torch.Generator())
    exact = by_hand(270.0, settings.lr, pull, settings.gain, 0.5, 100, settings.threshold)
    assert ours.tolist() == [exact, exact] and (exact < 120 if pull else exact > 150)


def test_the_code_runs_with_its_own_zeta_for_ten_bins():
    """With ζ = 500 instead of 200 the multiplier after some steps is larger: other counts, from the same starts."""
    job, phase = Job("powell", None, 0), Phase("report", 400, 3)  # type: ignore[arg-type]
    ten = run_code(job, 10, phase)
    assert ten.isfinite().all() and not torch.equal(ten, run_code(job, 100, phase))


def test_the_form_of_code_has_an_empty_bin_below_lowest_energy():
    settings = PUBLISHED["powell"]
    h = log_form(settings).init(torch.zeros(1, dtype=D64))
    assert h.edges is not None and h.edges[0, :2].tolist() == [-2, 0] and h.bins == 100
    assert h.grid().bin_of(np.array([0.0])) == 1 and h.form.rise == "log" and h.form.min_visits == 0


def test_names_of_methods_differ():
    assert len({m.name for m in METHODS}) == len(METHODS)


@pytest.mark.parametrize(
    "ratio, success, words",
    [(1.4, 1.0, "agrees"), (0.5, 1.0, "faster"), (1.6, 0.8, "slower, 20% fail"), (math.nan, 0.0, "fails")],
)
def test_verdicts(ratio: float, success: float, words: str):
    assert verdict(ratio, success) == words


def test_the_listing_mixes_the_symmetric_parts_unnormalised():
    """Precisions (S⁻¹ + S⁻ᵀ) / 2 = diag(10, 1) / 10.81 and 10 / 100.81; weights ∝ |S|^½ undo the missing |S|^-½."""
    covariances = [[[1.081, 0], [0, 10.81]], [[10.081, 0], [0, 10.081]]]
    weights = [math.sqrt(1.081 * 10.81), 10.081]
    law = Mixture(weights, [[0, 0], [5, 5]], covariances)
    x = 5 * torch.randn(50, 2, dtype=D64, generator=torch.Generator().manual_seed(0))
    offset = Listing().energy(x) + law.log_prob(x)
    torch.testing.assert_close(offset, offset[:1].expand(50))
    torch.testing.assert_close(Listing().grad(x), value_and_grad(law.energy, x)[1])


def test_the_listings_draws_have_covariance_of_lower_triangles():
    """Five standard errors, of 100,000 draws a mode."""
    draws = listing_draws(200_000, torch.Generator().manual_seed(0)).unflatten(0, (2, -1))
    for x, s in zip(draws, ([[1, -0.9], [-0.9, 10]], [[10, 0.9], [0.9, 10]]), strict=True):
        torch.testing.assert_close(torch.cov(x.T), torch.tensor(s, dtype=D64), rtol=0.03, atol=0.06)
    assert float(near_origin(torch.tensor([[0.0, 0.0], [5.0, 5.0], [4.0, 0.5]]))) == pytest.approx(2 / 3)


@pytest.mark.parametrize("law, span, low", [(NORMAL, (-9, 9), 0.0), (MIXTURE, (-11, 10), 1.4)])
def test_narrow_low_bins_bring_the_fixed_point_closer_to_the_cdf(law, span, low):
    exact = integrate(law, *span, 20_000)
    gaps = []
    for edges in (np.array(alike(low, low + 5)), np.array(narrow_below(low, low + 5))):
        assert len(edges) == 51 and (np.diff(edges) > 0).all()
        gaps.append(np.abs(fixed_point(exact, edges, 2.0) ** 2 - exact.energy_cdf(edges[1:]).numpy())[:-1].max())
    assert gaps[1] < 0.7 * gaps[0]


def test_the_ridge_of_the_chosen_data():
    ridge = Ridge.of(WellingTeh(simulate_welling_teh(seed=DATA)))
    assert ridge.barrier == pytest.approx(0.6, abs=0.05)
    assert np.allclose(ridge.modes, [(-0.10, 1.14), (1.03, -1.13)], atol=0.05)
    assert Ridge.of(WellingTeh(simulate_welling_teh(seed=14))).barrier == 0


def test_the_noise_of_the_toy_data_is_rescaled():
    x, y = simulate(3)
    assert root_mean_square(y + 1 - 2 * x) == pytest.approx(0.5)
    assert abs(root_mean_square(draw_data(3)[1]) - 1) > 1e-3


def test_modes_at_the_ends_of_cycles():
    """Two chains of 8 recorded states in 4 cycles; the second one returns to its first mode."""
    law = grid25()
    at = torch.tensor([[0, 0], [0, 0], [0, 1], [1, 1], [2, 5], [2, 5], [3, 0], [3, 0]])  # (states, chains) modes
    r = Run(Method("", lambda k: 0.0, lambda k: True, lambda k: True, ""), law.means[at], torch.ones(8).bool())
    c = counted(law, r, length=20, steps=80)
    assert c.ends.tolist() == [4, 3] and c.modes["a tenth"].tolist() == [4, 3]
    assert c.random == pytest.approx(25 * (1 - 0.96**4))
