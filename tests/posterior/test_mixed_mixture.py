"""Tests of `bdl.posterior.mixed_mixture` and `.roots`: mixtures of laws with masses, and of positive numbers."""

import math

import pytest
import torch
from by_hand import mixture_of
from scipy import integrate

import bdl
from bdl.posterior.metrics import QUANTILE_GRID, shares_below, value_metrics
from bdl.posterior.prediction import of_mixture

D64 = torch.float64
S, N = 6, 5
LAWS = {
    "inside": bdl.HurdleNLL((0.5,), (0.3,)),
    "above": bdl.HurdleNLL(low=0.0, center=0.2, spread=0.7),
    "far above": bdl.HurdleNLL(low=0.0, center=2.0, spread=0.1),
    "above, linear": bdl.HurdleNLL(low=0.0, tail="linear", center=0.5),
    "below": bdl.HurdleNLL((1.0,), high=1.0, tail="linear"),
    "between": bdl.HurdleNLL((0.0, 1.0), (-1.0, 0.5), low=0.0, high=1.0),
    "three": bdl.HurdleNLL((-0.5, 0.0, 0.7), (0.1, 0.2, -0.3)),
    "two below": bdl.HurdleNLL((-0.75, 0.0), (-0.4, 0.8), low=0.0, spread=0.6),
    "one on either side": bdl.HurdleNLL((-0.5, 1.5), (0.4, 0.2), low=0.0, high=1.0),
    "log-normal": bdl.LogNormalNLL(center=0.2, spread=0.6),
    "gamma": bdl.GammaNLL(center=0.2, spread=0.6),
}
MIXED = [law for name, law in LAWS.items() if name != "gamma"]


def make(law, spread: float = 1.0):
    """(prediction, outputs (S, N, K) in double precision, weights (S, 1, 1))."""
    generator = torch.Generator().manual_seed(4)
    outputs = spread * torch.randn(S, N, law.num_outputs(1), generator=generator)
    weights = torch.tensor([1.0, 2.0, 0.0, 4.0, 3.0, 1.0])
    w = (weights.double() / weights.double().sum()).view(-1, 1, 1)
    return of_mixture(mixture_of(outputs, law, weights)), outputs.double(), w


def targets(law) -> torch.Tensor:
    """(N, 1): its points, and numbers inside the support."""
    y = torch.tensor([0.2, 0.35, 0.9, 0.6, 0.05], dtype=D64)
    points = law.points if isinstance(law, bdl.HurdleNLL) else ()
    y[: len(points)] = torch.tensor(points, dtype=D64)
    return y[:, None]


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("q", [1e-4, 0.05, 0.3, 0.5, 0.8, 0.95, 0.9999])
def test_a_quantile_is_the_smallest_value_that_reaches_its_probability(law, q):
    prediction, outputs, w = make(law)
    cdf = lambda y: (w * law.cdf(outputs, y)).sum(0)  # noqa: E731
    found = prediction.mixture.quantile(q)
    points, sits = law.points if isinstance(law, bdl.HurdleNLL) else (), torch.zeros(N, 1, dtype=torch.bool)
    for point in points:  # to the last bit, so that intervals hold it
        at = torch.full((N, 1), point, dtype=D64)
        here = (cdf(at) >= q) & (cdf(at - 1e-5) < q)
        assert bool((found[here] == point).all())
        sits |= here
    assert bool(((cdf(found) - q).abs()[~sits] <= min(2e-6, 3e-3 * q, 3e-3 * (1 - q))).all())


@pytest.mark.parametrize("law", MIXED, ids=[name for name in LAWS if name != "gamma"])
@pytest.mark.parametrize("spread", [0.3, 1.5])
def test_crps_of_masses_is_the_integral_of_the_squared_difference(law, spread):
    prediction, outputs, w = make(law, spread)
    y = targets(law)
    low, high = law.support.bounds
    points = law.points if isinstance(law, bdl.HurdleNLL) else ()
    far = [math.exp(t) for t in range(1, 41, 3)]  # the tail of a log-normal law is seen on a scale of logarithms
    ends = sorted({max(low, -80.0), *points, *y.flatten().tolist(), *far, min(high, far[-1])})
    ends = [end for end in ends if min(low, *points, 0) <= end <= max(high, *points, 0)]
    cdf = lambda x: (w * law.cdf(outputs, torch.full((N, 1), x, dtype=D64))).sum(0)  # noqa: E731
    expected = torch.zeros(N, 1, dtype=D64)
    for a, b in zip(ends, ends[1:], strict=False):
        seen = (y <= a).double()
        square = lambda x, s=seen: (cdf(x) - s).square().numpy()  # noqa: E731
        expected += torch.from_numpy(integrate.quad_vec(square, a, b, 1e-7, 1e-5)[0])
    torch.testing.assert_close(prediction.crps(y).double(), expected, rtol=5e-3, atol=2e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_crps_ends_at_the_limit_of_the_law(sign):
    """One network that is sure of nothing: its tail beyond the limit counts no more than in the predicted mean."""
    wild = torch.tensor([[[0.0, 0.0, 0.0]], [[0.0, 9.0, 0.0]]])
    scores = []
    for limit in (20.0, 1000.0):
        bound = {"low": 0.0} if sign > 0 else {"high": 0.0}
        law = bdl.HurdleNLL((0.0,), (-40.0,), limit=limit, **bound)
        prediction = of_mixture(mixture_of(wild, law))
        assert 0 < sign * float(prediction.mean) < limit and math.isfinite(float(prediction.std))
        scores.append(float(prediction.crps(torch.tensor([float(sign)]))))
    assert 0 < scores[0] < scores[1] < 1000


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_change_of_units_moves_densities_and_leaves_probabilities(law):
    prediction, _, _ = make(law)
    y = targets(law)
    moved = prediction.rescaled(3.0, 2.0)
    points = len(law.points) if isinstance(law, bdl.HurdleNLL) else 0
    change = torch.tensor([0.0] * points + [math.log(2)] * (N - points))
    torch.testing.assert_close(moved.log_density(3 + 2 * y), prediction.log_density(y) - change, rtol=1e-5, atol=1e-5)
    each = prediction.log_density_of_each(y) - change[:, None]
    torch.testing.assert_close(moved.log_density_of_each(3 + 2 * y), each, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moved.cdf(3 + 2 * y), prediction.cdf(y), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(moved.crps(3 + 2 * y), 2 * prediction.crps(y), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(moved.below(3 + 2 * y) < moved.cdf(3 + 2 * y), torch.arange(N)[:, None] < points)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_targets_of_the_law_are_calibrated_also_at_its_points(law):
    """Of 4,000 draws the shares below the quantiles are q, and the conformal intervals of one half hold the other."""
    torch.manual_seed(3)
    outputs = 0.5 * torch.randn(1, 1, law.num_outputs(1)).expand(1, 4000, -1)
    prediction = of_mixture(mixture_of(outputs, law))
    y = law.marginals(outputs[0].double()).sample()
    q = torch.tensor(QUANTILE_GRID, dtype=D64)
    assert bool(((shares_below(prediction, y, q) - q).abs() < 5 * (q * (1 - q) / 4000).sqrt()).all())
    scores = value_metrics(prediction, y)
    assert scores["coverage_90"] > 0.9 - 5 * math.sqrt(0.09 / 4000) and scores["quantile_error"] < 0.03
    half = torch.arange(4000) % 2 == 0
    first, second = (prediction.part(part.nonzero()[:, 0]) for part in (half, ~half))
    low, high = bdl.ConformalIntervals.fit(first, y[half])(second)
    held = ((low <= y[~half]) & (y[~half] <= high)).double().mean()
    assert float(held) > 0.9 - 7 * math.sqrt(0.09 / 2000)
