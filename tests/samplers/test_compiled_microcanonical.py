"""Tests of `bdl.samplers.compiled.microcanonical`: a step of MCLMC in C is the one of the dataclass, to rounding.

`tests/lightning/test_walks.py` compares many steps in one call with single ones, to the byte.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch

import bdl
from bdl import native
from bdl.samplers.compiled import microcanonical, steps
from bdl.samplers.compiled.microcanonical import CompiledMCLMC

pytestmark = pytest.mark.skipif(native.load(CompiledMCLMC.source) is None, reason="no C compiler")

CHAINS, D, N = 3, 37, 50  # D is no multiple of the width of any vector
EPS = torch.finfo(torch.float32).eps
ADAPT = 24  # L is found at step 18
KERNELS = {
    "mclachlan": bdl.MCLMC(energy_var=0.1, energy_var_start=0.5, adapt_steps=ADAPT),
    "leapfrog": bdl.MCLMC("leapfrog", energy_var=0.1, adapt_steps=ADAPT),
    "given length": bdl.MCLMC(energy_var=0.1, length=3.0, adapt_steps=ADAPT),
    "no adaptation": bdl.MCLMC(),
    "adjusted": bdl.MCLMC(energy_var=0.1, adapt_steps=ADAPT, adjusted=True),
}
PRIORS = {
    "wide": bdl.Gaussian(1.0),
    "per tensor": bdl.Gaussian([1.0, 5.0]),
    "centred": bdl.Gaussian(2.0, mean=0.7),
    "both": bdl.Gaussian([1.0, 5.0], mean={"parameter 0": torch.tensor(0.3), "parameter 1": torch.tensor(-1.0)}),
    "uniform": bdl.Uniform(),
}


class Chains:
    """θ (CHAINS, D) in two tensors under a quartic energy; `wall`: not finite where a coordinate is beyond it."""

    def __init__(
        self, kernel, allowed: bool, prior=PRIORS["wide"], chains: int | None = CHAINS, wall=torch.inf, **more
    ):
        start, lead = torch.Generator().manual_seed(1), () if chains is None else (chains,)
        self.params = [torch.randn(*lead, n, generator=start).requires_grad_() for n in (D - 4, 4)]
        named = [(f"parameter {i}", p) for i, p in enumerate(self.params)]
        settings = {"lr": 0.02, "temperature": 1.0, "seed": 2} | more
        self.sampler = bdl.Sampler(named, kernel, num_data=N, prior=prior, chains=chains, **settings)
        self.sampler.host = replace(self.sampler.host, compiled=allowed)
        self.wall = wall

    def closure(self) -> torch.Tensor:
        self.sampler.zero_grad()
        energy = sum((2 * p.square() + p.square().square() / 4).sum(-1) for p in self.params) / N
        energy = torch.where(self.params[0][..., 0] < self.wall, energy, torch.inf)
        energy.sum().backward()
        return energy.detach()

    def step(self) -> None:
        self.sampler.step(self.closure)

    @property
    def takes(self) -> bool:
        now = self.sampler.settings()
        return self.sampler.moves.compiled.takes(self.sampler.prior, N, now.lr, now.temperature)

    def follow(self, other: Chains) -> None:
        for mine, theirs in zip(self.params, other.params, strict=True):
            mine.data.copy_(theirs.data)
        self.sampler.load_state_dict(other.sampler.state_dict())


def assert_same_steps(ours: Chains, theirs: Chains, steps: int) -> None:
    """Each step from the same state.

    A step rounds each number some twenty times. ΔE is a difference of energies of 100 nats at most, so that it has an
    error of 100 EPS or so, and ΔE²/d one of 200 EPS |ΔE|/d, of which |ΔE| is below 10 here. lr follows from the log of
    a mean of ΔE²/d, whose relative error is below 1e-2 however small the last one is.
    """
    assert ours.takes and not theirs.takes
    for _ in range(steps):
        theirs.follow(ours)
        ours.step(), theirs.step()
        one, other = ours.sampler.chain.state, theirs.sampler.chain.state
        assert one.steps == other.steps
        for name in ("theta", "direction", "gradient", "mean", "square", "potential", "length", "undone", "level"):
            a, b = getattr(one, name), getattr(other, name)
            assert torch.allclose(a, b, rtol=0, atol=40 * EPS * max(1.0, float(b.abs().max()))), name
        for name, atol in (("log_factor", 4e-3), ("errors", 1e-2), ("weights", 1e-2), ("error", 2000 * EPS)):
            assert torch.allclose(getattr(one, name), getattr(other, name), rtol=1e-2, atol=atol), name


@pytest.mark.parametrize("chains", [CHAINS, None])
@pytest.mark.parametrize("kernel", KERNELS)
def test_both_forms_agree_to_rounding(kernel, chains):
    ours, theirs = (Chains(KERNELS[kernel], allowed, chains=chains) for allowed in (True, False))
    assert_same_steps(ours, theirs, ADAPT + 6)
    s = ours.sampler.chain.state
    if kernel != "no adaptation":
        assert (s.log_factor != 0).all() and (s.error > 0).all()
        assert bool((s.length == 3.0).all()) == (kernel == "given length")
    assert bool((s.level != 0).all()) == (kernel == "adjusted")


@pytest.mark.parametrize("prior", PRIORS)
def test_the_prior_is_added_alike(prior):
    ours, theirs = (Chains(KERNELS["mclachlan"], allowed, PRIORS[prior]) for allowed in (True, False))
    assert_same_steps(ours, theirs, 6)


def test_temperature_and_a_changing_lr_are_those_of_the_step():
    ours, theirs = (Chains(KERNELS["mclachlan"], allowed, temperature=0.3) for allowed in (True, False))
    for lr in (0.02, 0.01, 0.03):
        for each in (ours, theirs):
            each.sampler.param_groups[0]["lr"] = lr
        assert_same_steps(ours, theirs, 2)


def test_steps_without_a_finite_energy_are_undone_alike():
    """Some chains begin at the wall and meet it; the step turns around, and lr falls by 4 while they adapt."""
    ours, theirs = (Chains(KERNELS["mclachlan"], allowed, wall=0.5, lr=0.3) for allowed in (True, False))
    for each in (ours, theirs):
        each.params[0].data[:, 0] = torch.tensor([0.49, 0.4, -0.1])
    assert_same_steps(ours, theirs, ADAPT - 1)
    assert ours.sampler.chain.state.undone.sum() > 2
    assert_same_steps(ours, theirs, 7)
    assert (ours.params[0][:, 0] < 0.5).all()


def test_a_step_of_another_strength_is_seen(monkeypatch):
    """Negative control: a first kick that is 1 % too strong."""
    kicks, drifts = microcanonical.STAGES["mclachlan"]
    wrong = {"mclachlan": ((1.01 * kicks[0], *kicks[1:]), drifts)}
    monkeypatch.setattr(microcanonical, "STAGES", wrong)
    ours, theirs = (Chains(KERNELS["no adaptation"], allowed) for allowed in (True, False))
    with pytest.raises(AssertionError, match="theta"):
        assert_same_steps(ours, theirs, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.sampler.param_groups[0].update(lr=torch.full((CHAINS,), 0.01)),
        lambda c: c.sampler.param_groups[0].update(temperature=torch.ones(CHAINS)),
        lambda c: setattr(c.sampler, "host", replace(c.sampler.host, compiled=False)),
    ],
    ids=["lr per chain", "T per chain", "compile=false"],
)
def test_other_settings_are_left_to_torch(change):
    chains = Chains(KERNELS["mclachlan"], True)
    assert chains.takes
    change(chains)
    assert not chains.takes
    chains.step()


def test_other_kernels_priors_types_and_large_chains_go_to_torch(monkeypatch):
    assert not Chains(bdl.HMC(2), True).takes
    assert not Chains(KERNELS["mclachlan"], True, bdl.Laplace(1.0)).takes
    theta = torch.zeros(CHAINS, 5, dtype=torch.float64, requires_grad=True)
    sampler = bdl.Sampler([theta], bdl.MCLMC(), num_data=N, lr=0.1, chains=CHAINS)
    assert not sampler.moves.compiled.takes(sampler.prior, N, 0.1, 1.0)
    monkeypatch.setattr(steps, "MOST", CHAINS * D - 1)
    assert not Chains(KERNELS["mclachlan"], True).takes


def gradients_of(chains: Chains, most: int):
    """What `Gradient.walk` does with the energy of the chains, for so many gradients."""

    def gradients(out, losses, after, context) -> int:
        call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(after)
        for number in range(min(most, len(losses))):
            with torch.enable_grad():
                losses[number] = chains.closure()
            for view, p in zip(out, chains.params, strict=True):
                view.copy_(p.grad)
            assert call(context, number) == 0
        return min(most, len(losses))

    return gradients


@pytest.mark.parametrize("most, made", [(100, 8), (16, 8), (13, 6), (12, 6), (1, 0), (0, 0)])
def test_a_walk_that_ends_early_leaves_the_steps_that_were_made(most, made):
    """To the bit, also where it ends in the middle of a step, and the next single steps go on from there."""
    ours, theirs = (Chains(KERNELS["mclachlan"], True) for _ in range(2))
    for _ in range(5):
        ours.step(), theirs.step()
    assert ours.sampler.walk(gradients_of(ours, most), [ours.sampler.settings()] * 8) == made
    for _ in range(made):
        theirs.step()
    for _ in range(3):
        assert ours.sampler.steps == theirs.sampler.steps
        for a, b in zip(ours.sampler.chain.tensors(), theirs.sampler.chain.tensors(), strict=True):
            assert torch.equal(a, b)
        ours.step(), theirs.step()


def test_a_walk_leaves_moved_chains_to_step_that_evaluates_them():
    chains = Chains(KERNELS["mclachlan"], True)
    for _ in range(5):
        chains.step()
    chains.sampler.chain.theta[0, 0] += 1
    assert chains.sampler.walk(gradients_of(chains, 100), [chains.sampler.settings()] * 4) == 0
    assert chains.sampler.steps == 5
    energy = N * chains.closure() + chains.sampler.prior.energy(chains.sampler.chain.theta)
    chains.step()
    assert chains.sampler.energy is not None
    torch.testing.assert_close(chains.sampler.energy, energy.double(), rtol=1e-6, atol=0)


def test_error_in_middle_of_a_step_leaves_chains_where_it_began():
    chains, calls = Chains(KERNELS["mclachlan"], True), []
    chains.step()
    before = chains.sampler.chain.theta.clone()

    def fails() -> torch.Tensor:
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return chains.closure()

    with pytest.raises(KeyboardInterrupt):
        chains.sampler.step(fails)
    assert torch.equal(chains.sampler.chain.theta, before) and chains.sampler.steps == 1


def test_a_machine_without_a_compiler_makes_the_steps_in_torch(monkeypatch):
    monkeypatch.setattr(steps, "library_of", lambda kind: None)
    ours = Chains(KERNELS["mclachlan"], True)
    assert not ours.takes
    ours.step()
