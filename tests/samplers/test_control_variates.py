"""Tests of `bdl.samplers.potential`.

Energies by control variates: what the noise of a batch becomes, and that nothing else of the step changes.
"""

import functools

import lightning as L
import pytest
import torch
from closures import closure_of

import bdl
from bdl.data.loader import TensorBatches
from bdl.errors import ConfigError

D64 = torch.float64
ITEMS = torch.randn(40, 3, dtype=D64, generator=torch.Generator().manual_seed(1))  # U = Σ |θ - x_i|²/2 + |θ|²/2
REFRESH = 5


class Chain:
    """Two chains of SGLD on batches of 4 items; records what psi read at every step."""

    def __init__(self, energy: str = "control", zeta: float = 2.0):
        self.theta = torch.ones(2, 3, dtype=D64).requires_grad_()
        weighting = bdl.AdaptiveWeight(zeta, 0.0, 400.0, 40, energy=energy, refresh=REFRESH)
        self.sampler = bdl.Sampler(
            [self.theta], bdl.SGLD(), num_data=len(ITEMS), lr=0.05, weighting=weighting, chains=2
        )
        self.batch, self.draw = ITEMS[:4], torch.Generator().manual_seed(2)
        self.sampler.full_loss = functools.partial(self.mean_loss, ITEMS)
        self.sampler.batch_loss = lambda: self.mean_loss(self.batch)

    def mean_loss(self, items: torch.Tensor) -> torch.Tensor:
        return (self.theta[:, None] - items).square().sum(-1).mean(-1) / 2

    def step(self) -> torch.Tensor:
        """One step; returns the energy that psi read, less the full one at the θ of the step: (2,)."""
        self.batch = ITEMS[torch.randperm(len(ITEMS), generator=self.draw)[:4]]
        with torch.no_grad():
            full = self.sampler.full_energy()
        self.sampler.step(closure_of(self.sampler, lambda: self.mean_loss(self.batch)))
        return self.sampler.reweighting.energy - full


def test_the_noise_left_is_the_gradients_along_the_way():
    # U_B(θ) - U(θ) = N (mean_B - mean) of |θ - x|²/2. Its difference between θ and θ_ref is -N (θ - θ_ref)·(x_B - x).
    chain = Chain()
    for step in range(4 * REFRESH):
        before = chain.theta.detach().clone()
        if step % REFRESH == 0:
            reference = before
        error = chain.step()
        along = (before - reference) @ (chain.batch.mean(0) - ITEMS.mean(0))
        torch.testing.assert_close(error, -len(ITEMS) * along, atol=1e-9, rtol=1e-9)


def test_energies_are_unbiased_and_less_noisy_than_of_batches():
    """Power: a bias of 0.09 of their standard deviation, which is 4 standard errors of 2,000 energies."""
    errors = {}
    for energy, steps in (("batch", 250), ("control", 1000)):
        chain = Chain(energy)
        errors[energy] = torch.stack([chain.step() for _ in range(steps)]).flatten()
    control = errors["control"]
    assert abs(control.mean()) < 4 * control.std() / len(control) ** 0.5
    assert control.std() < 0.5 * errors["batch"].std()


def test_the_second_forward_pass_leaves_the_parameters_alone():
    paths = []
    for energy in ("batch", "control"):  # at zeta = 0 psi has no effect, so that both walk one path
        chain = Chain(energy, zeta=0.0)
        for _ in range(12):
            chain.step()
        paths.append(chain.theta.detach())
    assert torch.equal(*paths)


def test_chain_resumed_between_two_refreshes_reads_same_energies():
    whole, first, second = Chain(), Chain(), Chain()
    for _ in range(REFRESH + 2):
        whole.step(), first.step()
    second.sampler.load_state_dict(first.sampler.state_dict())
    with torch.no_grad():
        second.theta.copy_(first.theta)
    second.draw.set_state(first.draw.get_state())
    for _ in range(4):
        whole.step(), second.step()
        assert torch.equal(whole.sampler.reweighting.energy, second.sampler.reweighting.energy)
    assert torch.equal(whole.theta, second.theta)


@pytest.mark.parametrize("compile", ["auto", False])
def test_a_module_supplies_the_loss_of_its_batch(compile):
    x, y = torch.randn(60, 4), torch.randint(3, (60,))
    build = functools.partial(
        bdl.Sampler,
        dynamics=bdl.SGHMC(),
        num_data=60,
        lr=0.01,
        weighting=bdl.AdaptiveWeight(1.0, 0.0, 200.0, 20, energy="control", refresh=10),
    )
    module = bdl.BayesianModule(bdl.ChainStack(bdl.models.MLP((4, 5, 3)), 2), build, compile=compile)
    trainer = L.Trainer(
        max_steps=10, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    )
    trainer.fit(module, TensorBatches(x, y, 10, chains=2))
    weighting = module.sampler.reweighting
    assert weighting.reference is not None and not torch.equal(weighting.reference, module.sampler.chain.theta)
    assert weighting.energy.shape == (2,) and torch.isfinite(weighting.energy).all()
    assert not torch.equal(weighting.energy, module.sampler.energy)


def test_without_the_loss_of_the_batch_it_is_refused():
    chain = Chain()
    chain.sampler.batch_loss = None
    with pytest.raises(ConfigError, match=r'energy="control" needs sampler.batch_loss'):
        chain.step()
