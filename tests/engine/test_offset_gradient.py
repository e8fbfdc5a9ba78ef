"""Tests of `bdl.engine.offset_gradient` and `bdl.likelihoods.heads`.

The posterior of a rate under exposures, the reductions of an offset, and the fast gradient against autograd.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from closures import closure_of
from torch import nn

import bdl
from bdl.engine.choose import choose_gradient, of_stack
from bdl.engine.gradient import Gradient, InTurn
from bdl.engine.offset_gradient import OffsetGradient
from bdl.engine.stack import ChainStack
from bdl.likelihoods import Likelihood, WithOffset
from bdl.models import MLP

COUNTS = {"poisson": bdl.PoissonNLL(), "negative binomial": bdl.NegativeBinomialNLL()}
C, B = 3, 12


def rows(*lead: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x (..., B, 4) and y (..., B, 1): the last column of x is an offset."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(*lead, B, 4, generator=random)
    return x, torch.poisson(torch.full((*lead, B, 1), 2.0), random)


def written(gradient: Gradient, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    out = [torch.empty_like(p) for p in gradient.params]
    return [gradient.write(x, y, out), *out]


def test_posterior_of_a_rate_has_the_moments_of_a_grid():
    """y_i ~ Poisson(e_i exp(b)), b ~ N(0, 1): independent draws by long paths of HMC, from many chains."""
    exposure, y = torch.tensor([0.1, 0.5, 2.0, 4.0]), torch.tensor([[0.0], [1.0], [3.0], [9.0]])
    grid = np.linspace(-3, 4, 20_001)
    log_p = float(y.sum()) * grid - float(exposure.sum()) * np.exp(grid) - grid**2 / 2
    p = np.exp(log_p - log_p.max())
    mean, square = (float((p * grid**k).sum() / p.sum()) for k in (1, 2))
    std = math.sqrt(square - mean**2)

    chains = 512
    stack: Any = ChainStack(WithOffset(nn.Linear(1, 1)), chains, shared=True)
    x = torch.stack([torch.zeros(4), exposure.log()], 1)
    gradient = choose_gradient(stack, bdl.PoissonNLL())
    sampler = bdl.Sampler(
        stack.parameters(), bdl.HMC(5), num_data=4, lr=0.02, chains=chains, prior=bdl.Gaussian(1.0), seed=1
    )
    closure = closure_of(sampler, lambda: gradient.losses(x, y))
    draws = []
    for step in range(120):
        sampler.step(closure)
        if step >= 40 and step % 20 == 0:
            draws.append(stack.net.net.bias.detach().flatten().double())
    b = torch.cat(draws).numpy()
    assert abs(b.mean() - mean) < 4 * std / math.sqrt(len(b))
    assert abs(b.std() / std - 1) < 4 / math.sqrt(len(b))  # kurtosis up to 7: b is less heavy than that


@pytest.mark.parametrize("likelihood", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("compiled", [False, "auto"])
def test_the_fast_gradient_equals_autograd(likelihood: Likelihood, shared: bool, compiled):
    stack = ChainStack(WithOffset(MLP((3, 8, likelihood.num_outputs(1)))), C, shared=shared)
    batch = rows(*([] if shared else [C]))
    gradient = choose_gradient(stack, likelihood, compiled)
    assert isinstance(gradient, OffsetGradient)
    for ours, autograd in zip(written(gradient, *batch), written(of_stack(stack, likelihood), *batch), strict=True):
        assert torch.allclose(ours, autograd, rtol=1e-4, atol=1e-6)


def test_a_dispersion_of_one_constant_is_fast_too():
    net = WithOffset(bdl.with_constant_scale(MLP((3, 8, 1))))
    stack, likelihood = ChainStack(net, C, shared=True), bdl.NegativeBinomialNLL()
    gradient = choose_gradient(stack, likelihood)
    assert isinstance(gradient, OffsetGradient)
    for ours, autograd in zip(written(gradient, *rows()), written(of_stack(stack, likelihood), *rows()), strict=True):
        assert torch.allclose(ours, autograd, rtol=1e-4, atol=1e-6)


def test_a_loss_without_density_goes_through_autograd():
    stack = ChainStack(WithOffset(MLP((3, 8, 1))), C, shared=True)
    assert isinstance(choose_gradient(stack, nn.PoissonNLLLoss()), InTurn)


def test_offset_of_log_2_doubles_the_mean_and_keeps_a():
    net, (x, _) = WithOffset(MLP((3, 8, 2))), rows()
    more = x.clone()
    more[:, -1] += math.log(2)
    once, twice = (torch.cat([p.exp() for p in net(x).chunk(2, -1)], 1) for x in (x, more))
    assert torch.allclose(twice, once * torch.tensor([2.0, 1.0]), rtol=1e-5)


def test_an_offset_of_zero_is_the_network_inside():
    net, (x, _) = WithOffset(MLP((3, 8, 1))), rows()
    x[:, -1] = 0
    assert torch.equal(net(x), net.net(x[:, :-1]))
