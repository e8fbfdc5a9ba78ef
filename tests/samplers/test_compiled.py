"""Tests of `bdl.samplers.compiled.update` and `.steps`: the update in C is that of Python, to rounding.

Every dynamics of the table that has both forms is compared. `tests/lightning/test_walks.py` compares many steps in one
call with single ones.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from repeats import slow_where
from table import TABLE

import bdl
from bdl import native
from bdl.samplers.compiled import steps
from bdl.samplers.compiled.update import CompiledUpdate, form_of, linear_numbers

pytestmark = pytest.mark.skipif(native.load(CompiledUpdate.source) is None, reason="no C compiler")

CHAINS, D, STEPS, N = 3, 37, 100, 50  # D is no multiple of the width of any vector
EPS = torch.finfo(torch.float32).eps
IN_C = [row for row in TABLE if form_of(row.build(2, torch.float32)) is not None]
PRIORS = {
    "wide": bdl.Gaussian(1.0),
    "normal": bdl.Gaussian(3.0),
    "per tensor": bdl.Gaussian([1.0, 5.0]),
    "centred": bdl.Gaussian(2.0, mean=0.7),
    "both": bdl.Gaussian([1.0, 5.0], mean={"parameter 0": torch.tensor(0.3), "parameter 1": torch.tensor(-1.0)}),
    "uniform": bdl.Uniform(),
}


class Chains:
    """θ (CHAINS, D) in two tensors, with the gradient a (θ - c_k)/N of step k, whose c_k are drawn."""

    def __init__(self, dynamics, allowed: bool, prior=PRIORS["wide"], chains: int | None = CHAINS, **settings):
        start, lead = torch.Generator().manual_seed(1), () if chains is None else (chains,)
        self.params = [torch.randn(*lead, n, generator=start).requires_grad_() for n in (D - 4, 4)]
        named = [(f"parameter {i}", p) for i, p in enumerate(self.params)]
        settings = {"lr": 0.1, "temperature": 1.0, "seed": 2} | settings
        self.sampler = bdl.Sampler(named, dynamics, num_data=N, prior=prior, chains=chains, **settings)
        self.sampler.host = replace(self.sampler.host, compiled=allowed)
        self.batches = torch.Generator().manual_seed(3)

    def step(self) -> None:
        for p in self.params:
            p.grad = 4 * (p.detach() - torch.randn(p.shape, generator=self.batches)) / N
        self.sampler.step()

    @property
    def takes(self) -> bool:
        now = self.sampler.settings()
        return self.sampler.moves.compiled.takes(self.sampler.prior, N, now.lr, now.temperature)

    def state(self) -> list[torch.Tensor]:
        return self.sampler.chain.tensors()


def assert_close(one: Chains, other: Chains, steps: int = STEPS) -> None:
    """A step rounds each number some ten times in either form. The dynamics are stable, so that errors only add up."""
    for a, b in zip(one.state(), other.state(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=steps * 10 * EPS * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize("chains", slow_where(lambda chains: chains is None, [CHAINS, None]))
@pytest.mark.parametrize("row", IN_C, ids=str)
def test_both_forms_agree_to_rounding(row, chains):
    ours, theirs = (Chains(row.build(D, torch.float32), allowed, chains=chains) for allowed in (True, False))
    assert ours.takes and not theirs.takes
    for k in range(STEPS):
        for each in (ours, theirs):
            each.sampler.param_groups[0]["lr"] = 0.1 / (1 + k / 50)
            each.sampler.param_groups[0]["temperature"] = 0.0 if 40 <= k < 50 else 1.0
            each.step()
    assert_close(ours, theirs)
    assert not torch.equal(ours.sampler.chain.theta, Chains(row.build(D, torch.float32), True).sampler.chain.theta)


def test_all_dynamics_of_one_matrix_have_a_compiled_form():
    names = {type(row.build(2, torch.float32)).__name__ for row in IN_C}
    assert names == {"SGD", "SGLD", "SGHMC", "BAOAB", "SGNHT"}
    others = [bdl.SGLD([1.0, 2.0]), bdl.SGHMC(grad_var=1.0), bdl.SGHMC(mass="diagonal"), bdl.SGLD(grad_var="estimated")]
    assert [form_of(each) for each in [*others, bdl.SGLRW(), bdl.PSGLD(), bdl.HMC()]] == [None] * 7


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("dynamics", [bdl.SGHMC(0.2), bdl.SGNHT(0.2, rate=None)], ids=["sghmc", "sgnht"])
def test_the_prior_is_added_alike(dynamics, prior):
    ours, theirs = (Chains(dynamics, allowed, PRIORS[prior]) for allowed in (True, False))
    for _ in range(STEPS):  # every 10th step adds the prior by itself, because it measures a temperature
        ours.step(), theirs.step()
    assert ours.takes
    assert_close(ours, theirs)


@pytest.mark.parametrize(
    "settings",
    [{"clip": bdl.ClipNorm(0.3)}, {"exchange": bdl.Exchange((1.0, 1.5, 2.0), every=3)}],
    ids=["clipped", "exchange"],
)
def test_what_comes_between_prior_and_dynamics_keeps_its_place(settings):
    ours, theirs = (Chains(bdl.SGHMC(0.2), allowed, bdl.Gaussian(30.0), **settings) for allowed in (True, False))
    for _ in range(STEPS):
        for each in (ours, theirs):
            for p in each.params:
                p.grad = torch.randn(p.shape, generator=each.batches)
            each.sampler.step(lambda each=each: each.params[0].detach().square().sum(1) / N)
    assert_close(ours, theirs)


@pytest.mark.parametrize("dynamics", [bdl.SGLD(), bdl.SGHMC(0.2), bdl.SGNHT(0.2)], ids=str)
def test_a_weighting_multiplies_the_gradient_alike(dynamics):
    """By one number for each chain, in the pass that adds the prior, but in every 10th step before it."""
    weighting = bdl.AdaptiveWeight(zeta=10.0, low=0.0, high=120.0, bins=20)
    ours, theirs, plain = (
        Chains(dynamics, allowed, bdl.Gaussian(2.0), weighting=each)
        for allowed, each in ((True, weighting), (False, weighting), (True, bdl.Flat()))
    )
    multipliers = []
    for _ in range(STEPS):
        for each in (ours, theirs, plain):
            for p in each.params:
                p.grad = 4 * (p.detach() - torch.randn(p.shape, generator=each.batches)) / N
            each.sampler.step(lambda each=each: each.params[0].detach().square().sum(1) / N)
        multipliers.append(ours.sampler.multiplier)
    assert len(torch.stack(multipliers).unique()) > CHAINS * STEPS / 4  # chains have different ones
    assert_close(ours, theirs)
    assert not torch.allclose(ours.sampler.chain.theta, plain.sampler.chain.theta, atol=0.01)


def test_parameters_without_a_gradient_stay(recwarn):
    chains = Chains(bdl.SGHMC(0.2), True)
    chains.step()
    before = [p.detach().clone() for p in chains.params]
    chains.params[0].grad, chains.params[1].grad = torch.ones_like(before[0]), None
    chains.sampler.step()
    assert torch.equal(chains.params[1], before[1]) and not torch.equal(chains.params[0], before[0])


def test_the_numbers_are_those_of_the_docstring():
    (row,) = linear_numbers(bdl.SGHMC(0.3), [(0.1, 0.02)]) or []
    c = (2 * 0.3 * 0.1 * 0.02) ** 0.5
    assert row == pytest.approx((0.7, -0.1, c, 0.7, -0.1, c), rel=1e-14)
    (row,) = linear_numbers(bdl.SGD(0.9), [(0.1, 0.0)]) or []
    assert row == pytest.approx((0.9, 1.0, 0.0, -0.09, -0.1, 0.0), rel=1e-14)


@dataclass(frozen=True)
class Clamped(bdl.Dynamics):
    """It says that it is linear, and it is for small gradients only."""

    linear = True

    def init(self, theta):
        return bdl.Position(theta)

    def step(self, s, g, lr, tau, z):
        s.theta.sub_(lr * g.clamp(-1, 1)).add_((2 * lr * tau) ** 0.5 * z)
        return s


@dataclass(frozen=True)
class Coupled(Clamped):
    """It says that it is linear, and every coordinate reads the others."""

    def step(self, s, g, lr, tau, z):
        s.theta.sub_(lr * g.mean(-1, keepdim=True)).add_((2 * lr * tau) ** 0.5 * z)
        return s


@pytest.mark.parametrize("dynamics", [Clamped(), Coupled()], ids=["clamped", "coupled"])
def test_dynamics_that_prove_not_linear_make_their_own_steps(dynamics):
    ours, theirs = (Chains(dynamics, allowed) for allowed in (True, False))
    for _ in range(5):
        ours.step(), theirs.step()
    assert not ours.takes and torch.equal(ours.sampler.chain.theta, theirs.sampler.chain.theta)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.sampler.param_groups[0].update(lr=torch.full((CHAINS,), 0.1)),
        lambda c: c.sampler.param_groups[0].update(temperature=torch.ones(CHAINS)),
        lambda c: setattr(c.sampler, "host", replace(c.sampler.host, compiled=False)),
        lambda c: setattr(c.sampler.chain, "lr_factors", torch.ones(D)),
    ],
    ids=["lr per chain", "T per chain", "compile=false", "blocks"],
)
def test_other_settings_are_left_to_torch(change):
    chains = Chains(bdl.SGHMC(0.2), True)
    assert chains.takes
    change(chains)
    assert not chains.takes
    chains.step()


def test_double_precision_other_priors_large_chains_go_to_torch(monkeypatch):
    theta = torch.zeros(CHAINS, 5, dtype=torch.float64, requires_grad=True)
    sampler = bdl.Sampler([theta], bdl.SGHMC(), num_data=N, lr=0.1, chains=CHAINS)
    assert not sampler.moves.compiled.takes(sampler.prior, N, 0.1, 1.0)
    assert not Chains(bdl.SGHMC(), True, bdl.Laplace(1.0)).takes
    monkeypatch.setattr(steps, "MOST", CHAINS * D - 1)
    assert not Chains(bdl.SGHMC(), True).takes


def test_a_chain_whose_memory_has_moved_is_followed():
    ours, theirs = (Chains(bdl.SGNHT(0.2), allowed) for allowed in (True, False))
    for _ in range(4):
        for each in (ours, theirs):
            each.step()
            for p in each.params:
                p.data = p.data.clone()
            each.sampler.load_state_dict(each.sampler.state_dict())
    assert ours.takes
    assert_close(ours, theirs, 4)
