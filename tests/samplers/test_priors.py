"""Tests of `bdl.samplers.priors.independent` and `.scales`.

Densities with their constants against scipy, gradients against autograd, scales per tensor and by fan-in.
"""

import json
import math

import numpy as np
import pytest
import torch
from closures import closure_of
from oracles import Estimate
from scipy import stats
from scipy.integrate import quad
from torch import nn

import bdl
from bdl.samplers.priors.scales import NAMED as NAMED_SCALES

Z = 4.5
D64 = torch.float64
PRIORS = {
    "Gaussian": bdl.Gaussian(2.5),
    "Laplace": bdl.Laplace(0.7),
    "StudentT": bdl.StudentT(3.0, 0.7),
    "Cauchy": bdl.StudentT(1.0, 2.0),
    "ScaleMixture": bdl.ScaleMixture(0.3, 1.5, 0.05),
    "Gaussian at 0.4": bdl.Gaussian(2.5, mean=0.4),
    "Laplace at 0.4": bdl.Laplace(0.7, mean=0.4),
    "StudentT at -0.4": bdl.StudentT(3.0, 0.7, mean=-0.4),
}
LAWS = {  # log densities of one coordinate, by scipy
    "Gaussian": lambda x: stats.norm.logpdf(x, scale=2.5**-0.5),
    "Laplace": lambda x: stats.laplace.logpdf(x, scale=0.7),
    "StudentT": lambda x: stats.t.logpdf(x, 3, scale=0.7),
    "Cauchy": lambda x: stats.cauchy.logpdf(x, scale=2),
    "ScaleMixture": lambda x: np.logaddexp(
        math.log(0.3) + stats.norm.logpdf(x, scale=1.5), math.log(0.7) + stats.norm.logpdf(x, scale=0.05)
    ),
    "Gaussian at 0.4": lambda x: stats.norm.logpdf(x, 0.4, scale=2.5**-0.5),
    "Laplace at 0.4": lambda x: stats.laplace.logpdf(x, 0.4, scale=0.7),
    "StudentT at -0.4": lambda x: stats.t.logpdf(x, 3, -0.4, scale=0.7),
}
SHAPES = [(2, 3), (2,), (4, 3, 5, 5), ()]  # a matrix, a vector, a convolution, a number
SIZES = [math.prod(shape) for shape in SHAPES]
VARIANCES = {
    "he": [2 / 3, 1.0, 2 / 75, 1.0],
    "fan_in": [1 / 3, 1.0, 1 / 75, 1.0],
    "smooth": [0.25 / 3, 0.25, 25 / 75, 0.25],
    "steep": [1 / 3, 1.0, 64 / 75, 1.0],
}
NAMED = {  # priors with a scale per tensor: the scale that gives a variance, and how to build one
    "Gaussian": (lambda v: 1 / v, bdl.Gaussian),
    "Laplace": (lambda v: (v / 2) ** 0.5, bdl.Laplace),
    "StudentT": (lambda v: (v * 3 / 5) ** 0.5, lambda scale: bdl.StudentT(5.0, scale)),  # variance scale² df / (df - 2)
}
SCALED = {"Gaussian": "precision", "Laplace": "scale", "StudentT": "scale"}


def log_density(prior, x):
    """(...,) log p of rows x (..., d), constants included."""
    return -(prior.energy(x) + prior.constant(x.shape[-1]))


@pytest.mark.parametrize("name", PRIORS)
def test_density_integrates_to_one(name):
    """The integral of exp(-(energy + constant)) over the line; the quadrature knows where the narrow peak is."""

    def density(x):
        return math.exp(log_density(PRIORS[name], torch.tensor([x], dtype=D64)))

    inside = quad(density, -1, 1, points=[-0.4, -0.1, 0, 0.1, 0.4], epsabs=1e-10)[0]
    tails = quad(density, 1, np.inf, epsabs=1e-10)[0] + quad(density, -np.inf, -1, epsabs=1e-10)[0]
    assert inside + tails == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("chains", [None, 3])
def test_density_is_that_of_scipy(name, chains):
    """The sum over five coordinates agrees per chain, from the peak to far out."""
    lead = () if chains is None else (chains,)
    x = torch.randn(*lead, 5, dtype=D64, generator=torch.Generator().manual_seed(0))
    for scale in (0.01, 1.0, 30.0):
        values = log_density(PRIORS[name], scale * x)
        assert values.shape == lead
        np.testing.assert_allclose(values, LAWS[name](scale * x.numpy()).sum(-1), rtol=1e-12)


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("chains", [None, 3])
def test_gradient_is_that_of_the_energy(name, chains):
    """It is that of autograd over N, added to g. Far out, and in single precision, it stays finite."""
    lead = () if chains is None else (chains,)
    draw = torch.Generator().manual_seed(0)
    theta = torch.randn(*lead, 5, dtype=D64, generator=draw, requires_grad=True)
    before = torch.randn(*lead, 5, dtype=D64, generator=draw)
    g = before.clone()
    PRIORS[name].add_grad_(g, theta.detach(), 40)
    (expected,) = torch.autograd.grad(PRIORS[name].energy(theta).sum(), theta)
    torch.testing.assert_close(g, before + expected / 40, rtol=1e-10, atol=1e-12)
    far, g = torch.full((*lead, 5), 1e3), torch.zeros(*lead, 5)
    PRIORS[name].add_grad_(g, far, 1)
    assert g.isfinite().all() and (g > 0).all() and PRIORS[name].energy(far).isfinite().all()


@pytest.mark.parametrize("name", NAMED)
def test_a_list_is_a_scale_per_tensor(name):
    """Density and gradient are those of one prior per tensor, each with one scale. A tensor or a tuple does as well."""
    scales, build = [0.5, 2.0, 1.3, 0.8], NAMED[name][1]
    theta = torch.randn(3, sum(SIZES), dtype=D64, generator=torch.Generator().manual_seed(0))
    for given in (scales, tuple(scales), torch.tensor(scales, dtype=D64)):
        prior = build(given).bind(SHAPES, theta)
        parts = [build(s) for s in scales]
        pieces = theta.split(SIZES, 1)
        expected = sum(log_density(part, piece) for part, piece in zip(parts, pieces, strict=True))
        torch.testing.assert_close(log_density(prior, theta), expected, rtol=1e-12, atol=1e-9)
        g, each = torch.zeros_like(theta), [torch.zeros_like(piece) for piece in pieces]
        prior.add_grad_(g, theta, 7)
        for part, gradient, piece in zip(parts, each, pieces, strict=True):
            part.add_grad_(gradient, piece, 7)
        torch.testing.assert_close(g, torch.cat(each, 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gain", VARIANCES)
@pytest.mark.parametrize("name", NAMED)
def test_named_scales_are_variances_over_fan_in(name, gain):
    """Variances are so many over the fan-in, for convolutions too; vectors and numbers have their own."""
    of_variance, build = NAMED[name]
    like = torch.zeros(sum(SIZES), dtype=D64)
    named = getattr(build(gain).bind(SHAPES, like), SCALED[name])
    listed = getattr(build([of_variance(v) for v in VARIANCES[gain]]).bind(SHAPES, like), SCALED[name])
    torch.testing.assert_close(named, listed, rtol=1e-12, atol=0)
    expected = torch.cat([torch.full((n,), of_variance(v)) for n, v in zip(SIZES, VARIANCES[gain], strict=True)])
    torch.testing.assert_close(named, expected.double(), rtol=1e-6, atol=0)


def test_names_tell_the_layers_apart():
    """A single layer is an inner one: it is the first and the last."""
    shapes = [(8, 4), (8,), (6, 8), (6,), (1, 6), (1,)]
    assert NAMED_SCALES["steep"].variances(shapes) == [1 / 4, 1.0, 1 / 8, 1.0, 64 / 6, 1.0]
    assert NAMED_SCALES["smooth"].variances(shapes[:2]) == [0.25 / 4, 0.25]


def test_student_t_without_variance_takes_it_as_square_of_scale():
    scale = bdl.StudentT(2.0, "he").bind([(2, 8)], torch.zeros(16)).scale
    torch.testing.assert_close(scale, torch.full((16,), 0.5))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))


@pytest.mark.parametrize("chains", [None, 3])
def test_sampler_binds_a_name_to_its_tensors(chains):
    """The axis of chains does not count as fan-in, and frozen tensors have no scale."""
    net = convolutional()
    net[2].bias.requires_grad_(False)
    stack = net if chains is None else bdl.ChainStack(net, chains)
    sampler = bdl.Sampler(
        stack.named_parameters(), bdl.SGLD(), num_data=5, lr=0.1, prior=bdl.Gaussian("he"), chains=chains
    )
    expected = [27 / 2] * 108 + [1.0] * 4 + [4 / 2] * 8
    torch.testing.assert_close(sampler.prior.precision, torch.tensor(expected))


@pytest.mark.parametrize("prior", [bdl.Laplace("he"), bdl.StudentT(5.0, [0.5, 1.0]), bdl.ScaleMixture()], ids=str)
def test_energy_and_gradient_through_the_sampler(prior):
    """U = N loss - log p(θ), and a step of SGLD at T = 0 is -lr ∇U/N."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2).double()
    theta = torch.cat([p.detach().flatten() for p in net.parameters()]).requires_grad_()
    sampler = bdl.Sampler(net.parameters(), bdl.SGLD(), num_data=5, lr=0.01, temperature=0.0, prior=prior)
    closure = closure_of(sampler, lambda: net(torch.ones(1, 3, dtype=D64)).square().sum())
    loss = 5 * closure() + sampler.prior.energy(theta)
    (gradient,) = torch.autograd.grad(sampler.prior.energy(theta), theta)
    gradient = gradient / 5 + torch.cat([p.grad.flatten() for p in net.parameters()])
    sampler.step(closure)
    assert sampler.energy.item() == pytest.approx(loss.item(), rel=1e-12)
    moved = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(moved, theta.detach() - 0.01 * gradient, rtol=1e-12, atol=1e-12)


def variances_without_data(prior, temperature: float) -> Estimate:
    """Variances of the coordinates of two tensors under MALA where the loss is 0, from 1,024 chains."""
    a, b = (torch.zeros(1024, n, dtype=D64, requires_grad=True) for n in (1, 2))
    a.grad, b.grad = torch.zeros_like(a), torch.zeros_like(b)
    sampler = bdl.Sampler(
        [a, b], bdl.MALA(), num_data=10, lr=10 * 0.6, temperature=temperature, prior=prior, chains=1024
    )
    total = torch.zeros(1024, 2, dtype=D64)
    for step in range(1200):
        sampler.step(lambda: torch.zeros(1024, dtype=D64))
        if step >= 200:
            total += torch.stack([a.detach().square().mean(1), b.detach().square().mean(1)], 1)
    return Estimate.over_chains(total / 1000)


@pytest.mark.parametrize(
    "prior, expected",
    [
        pytest.param(bdl.Laplace([0.7, 1.2]), [2 * 0.7**2, 2 * 1.2**2], id="Laplace"),
        pytest.param(bdl.StudentT(10.0, [0.8, 1.2]), [0.8, 1.2**2 * 10 / 8], id="StudentT", marks=pytest.mark.slow),
    ],
)
def test_prior_alone_is_sampled(prior, expected):
    """MALA, which is exact at this lr, runs without data. Power: T = 1.05, some 10% of variance, is seen."""
    estimate = variances_without_data(prior, 1.0)
    assert (2 * Z * estimate.se / estimate.mean).max() < 0.1, "no power"
    assert (np.abs(estimate.z(expected)) < Z).all()
    assert (variances_without_data(prior, 1.05).z(expected) > Z).any()


def test_zero_is_a_precision_but_no_scale():
    """Precision 0 is the improper uniform prior, whose constant is NaN."""
    assert math.isnan(bdl.Gaussian(0.0).constant(3))
    assert math.isnan(bdl.Gaussian([1.0, 0.0]).bind([(2,), (1,)], torch.zeros(3)).constant(3))
    assert math.isnan(bdl.Uniform().constant(3))


def test_other_scales_have_another_identity():
    """Equal scales have equal identities, however they were given; names are for people."""
    like = torch.zeros(6, dtype=D64)

    def of(prior):
        return prior.bind([(2, 2), (2,)], like).identity()

    assert of(bdl.Gaussian("fan_in")) == of(bdl.Gaussian([2.0, 1.0])) != of(bdl.Gaussian([1.0, 2.0]))
    assert of(bdl.Laplace([0.5, 1.0])) != of(bdl.Laplace([0.5, 1.0 + 2**-40])) and of(bdl.Uniform())
    assert json.loads(json.dumps(of(bdl.Gaussian("fan_in")))) == of(bdl.Gaussian("fan_in"))
    assert str(bdl.Laplace(0.5)) == "Laplace, scale 0.5" and "he" in str(bdl.StudentT(scale="he"))
