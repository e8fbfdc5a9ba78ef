"""`Sampler.advance`, the short way from a known gradient, is `Sampler.step`."""

import pytest
import torch
from closures import closure_of
from repeats import slow_where
from torch import Tensor

import bdl
from bdl.samplers.potential import BoundGradient
from bdl.samplers.weighting.base import Weighting

CHAINS, D, STEPS = 4, 6, 50
DYNAMICS = {
    "sgd": bdl.SGD(0.9),
    "sgld": bdl.SGLD(),
    "sghmc": bdl.SGHMC(0.3),
    "estimated": bdl.SGHMC(0.3, grad_var="estimated"),
    "sgnht": bdl.SGNHT(0.3, rate=0.01),
    "baoab": bdl.BAOAB(0.3),
    "psgld": bdl.PSGLD(a=0.9),
    "bbb": bdl.MeanField(),
}
FULL_BATCH = {  # the centres of `Quadratic` must then not move
    "hmc": bdl.HMC(leapfrog=3),
    "mala": bdl.MALA(),
    "mclmc": bdl.MCLMC(adapt_steps=20),
    "metropolis": bdl.Metropolis(),
}
WEIGHTINGS = {"flat": bdl.Flat(), "weighted": bdl.AdaptiveWeight(low=0.0, high=30.0, bins=10)}


class Quadratic:
    """θ (CHAINS, D) in two tensors, one of them a matrix, with the loss |θ - c|² / 20 around centres that move."""

    def __init__(self, dynamics: bdl.Dynamics, weighting: Weighting):
        start = torch.Generator().manual_seed(3)
        self.params = [torch.randn(CHAINS, *s, generator=start).requires_grad_() for s in ((2,), (2, 2))]
        self.sampler = bdl.Sampler(
            self.params, dynamics, num_data=10, lr=0.05, weighting=weighting, chains=CHAINS, seed=1
        )
        self.batches = torch.Generator().manual_seed(4)

    def centres(self) -> list[Tensor]:
        if self.sampler.dynamics.full_batch:
            return [torch.ones_like(p) for p in self.params]
        return [torch.randn(p.shape, generator=self.batches) for p in self.params]

    def losses(self, centres: list[Tensor]) -> Tensor:
        return sum((p - c).flatten(1).square().sum(1) / 20 for p, c in zip(self.params, centres, strict=True))

    def step(self) -> None:
        centres = self.centres()
        self.sampler.step(closure_of(self.sampler, lambda: self.losses(centres)))

    def advance(self, measure: bool) -> None:
        centres = self.centres()

        def gradient(out: list[Tensor]) -> Tensor:
            with torch.enable_grad():
                losses = self.losses(centres)
                for into, g in zip(out, torch.autograd.grad(losses.sum(), self.params), strict=True):
                    into.copy_(g)
            return losses.detach()

        self.sampler.advance(BoundGradient(gradient), measure)


@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS)
@pytest.mark.parametrize("dynamics", DYNAMICS.values(), ids=DYNAMICS)
@pytest.mark.parametrize("measure", slow_where(bool, [True, False]))
def test_the_short_way_is_the_step_to_the_bit(dynamics, weighting, measure):
    if dynamics.variational and weighting.needs_energy:
        pytest.skip("a variational approximation takes no weighting")
    one, other = Quadratic(dynamics, weighting), Quadratic(dynamics, weighting)
    for _ in range(STEPS):
        one.step()
        other.advance(measure)
    assert torch.equal(one.sampler.chain.theta, other.sampler.chain.theta)
    assert one.sampler.steps == other.sampler.steps == STEPS
    assert torch.equal(one.sampler.multiplier, other.sampler.multiplier)
    if measure or weighting.needs_energy:
        assert torch.equal(one.sampler.energy, other.sampler.energy)
    else:
        assert other.sampler.energy is None


@pytest.mark.parametrize("dynamics", FULL_BATCH.values(), ids=FULL_BATCH)
def test_short_way_of_a_kernel_on_all_data_is_its_step_to_bit(dynamics):
    one, other = Quadratic(dynamics, bdl.Flat()), Quadratic(dynamics, bdl.Flat())
    for _ in range(STEPS):
        one.step()
        other.advance(measure=False)
    assert torch.equal(one.sampler.chain.theta, other.sampler.chain.theta)
    assert torch.equal(one.sampler.energy, other.sampler.energy)
    assert not torch.equal(one.params[0], Quadratic(dynamics, bdl.Flat()).params[0])


def test_a_bad_gradient_ends_the_short_way_too():
    chain = Quadratic(bdl.SGLD(), bdl.Flat())
    with pytest.raises(bdl.DivergedError, match="the gradient of parameter 1 is not finite at step 0"):
        written = lambda out: [g.fill_(v) for g, v in zip(out, (0.0, torch.nan), strict=True)][0].sum((1,))  # noqa: E731
        chain.sampler.advance(BoundGradient(written))


def test_a_bad_loss_ends_the_short_way_too():
    chain = Quadratic(bdl.SGLD(), bdl.Flat())

    def gradient(out: list[Tensor]) -> Tensor:
        for g in out:
            g.zero_()
        return torch.tensor([1.0, 1.0, torch.inf, 1.0])

    with pytest.raises(bdl.DivergedError, match="the loss is not finite at step 0"):
        chain.sampler.advance(BoundGradient(gradient), measure=False)


def test_where_the_short_way_may_be_taken():
    chain = Quadratic(bdl.SGLD(), bdl.Flat())
    sampler = chain.sampler
    assert sampler.is_plain
    hook = sampler.register_step_post_hook(lambda *_: None)
    assert not sampler.is_plain
    hook.remove()
    assert sampler.is_plain
    theta = [torch.zeros(CHAINS, D, requires_grad=True)]
    assert bdl.Sampler(theta, bdl.HMC(), num_data=1, lr=0.1, chains=CHAINS).is_plain
