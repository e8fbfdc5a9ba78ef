"""Tests of `bdl.likelihoods.support`, `.mixed`, `.hurdle` and `.positive`.

Laws with masses at points and laws of positive numbers, against integrals of their densities by scipy.
"""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats as st
import torch
from scipy import integrate

import bdl
from bdl.errors import ConfigError
from bdl.likelihoods.base import by_autograd
from bdl.likelihoods.support import Support

D64 = torch.float64
C, B, TARGETS = 3, 7, 2
SUPPORTS = {
    "line": Support(center=0.3, spread=1.7),
    "above, log": Support(low=-1.0, center=-0.4, spread=0.6),
    "above, linear": Support(low=0.0, tail="linear", center=0.5, spread=1.3),
    "below, log": Support(high=2.0, center=0.2, spread=0.7),
    "below, linear": Support(high=0.0, tail="linear", spread=0.8),
    "between": Support(low=0.0, high=3.0, center=-0.2, spread=1.4),
}
LAWS = {
    "inside": bdl.HurdleNLL((0.5,), (0.3,), center=0.2, spread=1.3),
    "above": bdl.HurdleNLL(low=0.0, spread=0.5),
    "above, rounded": bdl.HurdleNLL(low=0.0, tail="linear", min_std=0.4),
    "below": bdl.HurdleNLL((1.0,), low=None, high=1.0, tail="linear", center=-0.3),
    "between": bdl.HurdleNLL((0.0, 1.0), (-1.0, 0.5), low=0.0, high=1.0, spread=1.2),
    "three": bdl.HurdleNLL((-0.5, 0.0, 0.7), (0.1, 0.2, -0.3)),
    "log-normal": bdl.LogNormalNLL(center=0.2, spread=0.6),
    "log-normal, rounded": bdl.LogNormalNLL(min_std=0.3),
    "gamma": bdl.GammaNLL(center=0.5, spread=0.7),
}


@pytest.fixture(params=LAWS)
def law(request):
    return LAWS[request.param]


def problem(law) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (C, B, K), and targets (C, B, k) at the points and inside the support."""
    generator = torch.Generator().manual_seed(1)
    outputs = 0.7 * torch.randn(C, B, law.num_outputs(TARGETS), generator=generator, dtype=D64)
    u = torch.randn(C, B, TARGETS, generator=generator, dtype=D64)
    if not isinstance(law, bdl.HurdleNLL):
        return outputs, u.exp()
    y = law.support.from_line(u)
    for j, point in enumerate(law.points):
        y[:, j] = point
    return outputs, y


def ends(law) -> list[float]:
    """Places between which a density is integrated."""
    if not isinstance(law, bdl.HurdleNLL):
        return [0.0, 1.0, 10.0, 400.0, 1e4, 1e6]
    low, high = law.support.bounds
    return [low if math.isfinite(low) else -40.0, *(p for p in law.points if low < p < high), min(high, 60.0)]


@pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS)
def test_the_map_to_the_line_and_its_slope_fit_each_other(support):
    u = torch.linspace(-3, 3, 41, dtype=D64, requires_grad=True)
    y = support.from_line(u)
    assert bool((y.diff() > 0).all() and support.contains(y).all())
    torch.testing.assert_close(support.to_line(y), u, rtol=1e-9, atol=1e-9)
    (slope,) = torch.autograd.grad(y.sum(), u)
    torch.testing.assert_close(support.log_slope(y), -slope.log(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS)
def test_moments_of_a_support_are_integrals(support):
    for mean, std in ((0.3, 0.6), (-0.5, 1.1)):
        found = support.moments(torch.tensor(mean, dtype=D64), torch.tensor(std, dtype=D64))
        of = lambda x: float(support.from_line(torch.tensor(mean + std * x, dtype=D64)))  # noqa: B023, E731
        for p, moment in enumerate(found, 1):
            expected, _ = integrate.quad(lambda x: of(x) ** p * st.norm.pdf(x), -12, 12, limit=200)  # noqa: B023
            assert float(moment) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("std", [0.5, 4.0, 40.0])
def test_a_limit_makes_the_moments_those_of_the_smaller_number(std):
    support = Support(low=0.0, center=0.5, spread=0.8, limit=30.0)
    first, second = support.moments(torch.tensor(1.0, dtype=D64), torch.tensor(std, dtype=D64))
    for p, found in ((1, first), (2, second)):
        of = lambda x: min(math.exp(min(0.5 + 0.8 * (1 + std * x), 700.0)), 30.0) ** p * st.norm.pdf(x)  # noqa: B023, E731
        bend = ((math.log(30) - 0.5) / 0.8 - 1) / std
        expected = sum(integrate.quad(of, a, b, limit=200)[0] for a, b in ((-12, bend), (bend, 12)))
        assert float(found) == pytest.approx(expected, rel=1e-7)
    assert float(first) <= 30


@pytest.mark.parametrize(("m", "s"), [(0.3, -0.5), (4.0, 2.0), (800.0, 0.0)])
def test_a_limit_bounds_the_moments_of_a_gamma_law(m, s):
    law, outputs = bdl.GammaNLL(center=0.5, spread=0.7, limit=20.0), torch.tensor([[m, s]], dtype=D64)
    mean, shape = math.exp(0.5 + 0.7 * m), math.exp(-s) / 0.49
    frozen = st.gamma(shape, scale=mean / shape)
    first, second = (
        frozen.expect(lambda y: y**p, lb=0, ub=20) + 20.0**p * frozen.sf(20)  # noqa: B023
        if m < 100 else 20.0**p for p in (1, 2)
    )  # fmt: skip
    assert float(law.mean(outputs)) == pytest.approx(first, rel=1e-6)
    assert float(law.variance(outputs)) == pytest.approx(second - first**2, rel=1e-5, abs=1e-9)


def test_masses_and_density_make_one(law):
    """The density by quadrature plus the masses is 1, and moments and cdf are those of the law."""
    outputs, _ = problem(law)
    outputs = outputs[0, :2]
    points = law.points if isinstance(law, bdl.HurdleNLL) else ()
    one = lambda y: torch.full((2, TARGETS), y, dtype=D64)  # noqa: E731
    at = lambda f, y: float(f(outputs, one(y))[1, 1])  # noqa: E731
    places = ends(law)
    moments = [
        sum(
            integrate.quad(lambda y: y**p * math.exp(at(law.log_density, y)), a, b, limit=300)[0]  # noqa: B023
            for a, b in zip(places, places[1:], strict=False)
        )
        + sum(point**p * math.exp(at(law.log_density, point)) for point in points)
        for p in (0, 1, 2)
    ]
    assert moments[0] == pytest.approx(1, abs=1e-6)
    assert float(law.mean(outputs)[1, 1]) == pytest.approx(moments[1], rel=1e-5)
    assert float(law.variance(outputs)[1, 1]) == pytest.approx(moments[2] - moments[1] ** 2, rel=1e-4)
    for point in points:  # the jump, and between two places the integral of the density
        jump = at(law.cdf, point) - at(law.cdf, point - 1e-5)
        assert jump == pytest.approx(at(law.mass, point), abs=2e-4)
        assert at(law.mass, point) == pytest.approx(math.exp(at(law.log_density, point)))
        assert at(law.mass, point + 0.01) == 0
    a, b = 0.81, 0.93
    expected, _ = integrate.quad(lambda y: math.exp(at(law.log_density, y)), a, b)
    assert at(law.cdf, b) - at(law.cdf, a) == pytest.approx(expected, abs=1e-8)
    assert at(law.cdf, 1e6) == pytest.approx(1) and at(law.cdf, -1e6) == pytest.approx(0)


def test_losses_are_log_densities_and_gradients_those_of_autograd(law):
    outputs, y = problem(law)
    torch.testing.assert_close(law(outputs, y), -law.log_density(outputs, y).sum(-1), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(law(outputs, y), -law.distribution(outputs).log_prob(y), rtol=1e-10, atol=1e-10)
    for memory in (outputs, outputs.mT.contiguous().mT):
        loss, gradient = law.mean_and_gradient(memory, y)
        expected_loss, expected = by_autograd(lambda o: law(o, y).mean(-1), outputs)
        torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    single = law.mean_and_gradient(outputs.float(), y.float())
    assert single[1].dtype == torch.float32
    torch.testing.assert_close(single[1].double(), gradient, rtol=1e-3, atol=1e-5)


def test_draws_have_the_law(law):
    outputs, _ = problem(law)
    outputs = outputs[0, :1]
    torch.manual_seed(0)
    draws = law.marginals(outputs).sample(torch.Size([40_000]))  # (40000, 1, k)
    for y in (-0.2, 0.0, 0.4, 1.0, 2.0):
        expected = law.cdf(outputs, torch.full((1, TARGETS), y, dtype=D64))
        share = (draws <= y).double().mean(0)
        error = 5 * (expected * (1 - expected) / 40_000).clamp_min(0).sqrt() + 1e-9
        assert bool(((share - expected).abs() <= error).all())


def test_scipy_knows_the_laws_of_positive_numbers():
    y = torch.tensor([[0.3], [2.0]], dtype=D64)
    outputs = torch.tensor([[0.4, -0.6], [0.1, 0.8]], dtype=D64)
    m, s = outputs.T.numpy()
    log_normal = st.lognorm(0.6 * np.exp(s / 2), scale=np.exp(0.2 + 0.6 * m))
    shape = np.exp(-s) / 0.7**2
    gamma = st.gamma(shape, scale=np.exp(0.5 + 0.7 * m) / shape)
    each: Any = ((LAWS["log-normal"], log_normal), (LAWS["gamma"], gamma))
    for law, frozen in each:
        torch.testing.assert_close(-law(outputs, y), torch.as_tensor(frozen.logpdf(y[:, 0].numpy())))
        torch.testing.assert_close(law.mean(outputs)[:, 0], torch.as_tensor(frozen.mean()))
        torch.testing.assert_close(law.variance(outputs)[:, 0], torch.as_tensor(frozen.var()))
        torch.testing.assert_close(law.cdf(outputs, y)[:, 0], torch.as_tensor(frozen.cdf(y[:, 0].numpy())))


def test_a_hurdle_without_mass_is_the_normal_law():
    """With a logit of -40 the rest is the law of HeteroscedasticNLL; with rows at the point only it is Bernoulli's."""
    outputs, y = torch.randn(B, 2, dtype=D64), torch.randn(B, 1, dtype=D64)
    both = torch.cat([outputs, torch.full((B, 1), -40.0, dtype=D64)], 1)
    torch.testing.assert_close(bdl.HurdleNLL()(both, y), bdl.HeteroscedasticNLL()(outputs, y))
    three, zeros = torch.randn(B, 3, dtype=D64), torch.zeros(B, 1, dtype=D64)
    labels = bdl.BernoulliNLL()(three[:, 2:], torch.ones(B, 1))
    torch.testing.assert_close(bdl.HurdleNLL()(three, zeros), labels)
    assert not bool(bdl.HurdleNLL().mean_and_gradient(three, zeros)[1][:, :2].any())


def test_the_constant_law_has_the_shares_of_its_targets():
    y = torch.cat([torch.zeros(50, 1), torch.rand(50, 1) + 0.5]).double()
    law = LAWS["above"].constant(y)
    assert float(law.log_prob(torch.zeros(1, 1, dtype=D64)).exp()) == pytest.approx(51 / 102)
    assert float(law.cdf(torch.full((1, 1), 1.0, dtype=D64))) == pytest.approx(0.75, abs=0.06)


@pytest.mark.parametrize(
    ("law", "y", "words"),
    [
        (bdl.LogNormalNLL(), [1.0, 0.0], "1 of 2 values that are not above 0; the first is 0 in row 1"),
        (bdl.GammaNLL(), [[1.0], [-2.0]], "not above 0"),
        (bdl.HurdleNLL(low=0.0), [0.0, -0.1], "not above 0; the first is -0.1"),
        (LAWS["between"], [0.0, 1.0, 1.2], "not between 0 and 1; the first is 1.2"),
    ],
    ids=str,
)
def test_targets_outside_the_support_are_refused(law, y, words):
    with pytest.raises(ConfigError, match=words):
        law.check(torch.tensor(y))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bdl.HurdleNLL(points=()), "points"),
        (lambda: bdl.HurdleNLL(points=(0.0, 1.0)), "one logit each"),
        (lambda: bdl.HurdleNLL(low=1.0, high=0.0), "low must be below high"),
        (lambda: bdl.HurdleNLL(min_std=-1.0), "min_std"),
        (lambda: bdl.LogNormalNLL(spread=0.0), "spread and limit"),
        (lambda: bdl.GammaNLL(spread=-1.0), "spread and limit"),
        (lambda: Support(low=0.0, tail="square"), "tail must be"),  # type: ignore[arg-type]
    ],
)
def test_settings_of_no_law_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
