"""Tests of `bdl.samplers.weighting.reweighting`, `bdl.samplers.weighting.learnt`: energies that psi is fitted on."""

import pytest
import torch
from closures import closure_of
from weighted_chains import D64, gaussian

import bdl
from bdl.samplers.weighting.histogram import Histogram


def energy_read(sampler) -> torch.Tensor:
    """The energy that the weighting has last read, in the shape of `sampler.energy`."""
    return sampler.reweighting.energy.reshape(sampler.energy.shape)


def noisy_batches(energy: str, chains, steps=30, **arguments):
    """Yield (sampler, batch energy, full energy at the θ of the step's gradient) of a chain on noisy losses."""
    lead = () if chains is None else (chains,)
    theta = torch.ones(*lead, 3, dtype=D64, requires_grad=True)
    weighting = bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=20.0, bins=10, energy=energy, **arguments)
    sampler = bdl.Sampler(
        [theta], bdl.SGLD(), num_data=5, lr=0.1, prior=bdl.Gaussian(2.0), weighting=weighting, chains=chains
    )
    draw = torch.Generator().manual_seed(0)

    def mean_loss():
        return theta.square().sum(-1) / 2

    sampler.full_loss = mean_loss
    for _ in range(steps):
        with torch.no_grad():
            error = torch.randn(lead, generator=draw, dtype=D64)
            prior = theta.square().sum(-1)
            full, batch = 5 * mean_loss() + prior, 5 * (mean_loss() + error) + prior
        sampler.step(closure_of(sampler, lambda error=error: mean_loss() + error))
        yield sampler, batch, full


@pytest.mark.parametrize("chains", [None, 3])
@pytest.mark.parametrize("energy", ["batch", "ema", "full"])
def test_weighting_reads_its_kind_of_energy(energy: str, chains):
    """`Sampler.energy` is always N times the batch loss plus the prior energy. psi reads the kind that is set."""
    smoothed, psi = None, None
    for sampler, batch, full in noisy_batches(energy, chains):
        smoothed = batch if smoothed is None else 0.95 * smoothed + 0.05 * batch
        expected = {"batch": batch, "ema": smoothed, "full": full}[energy]
        torch.testing.assert_close(sampler.energy, batch)
        torch.testing.assert_close(energy_read(sampler), expected)
        if psi is not None:
            weight = 2.0 * torch.from_numpy(psi.evaluate(expected.reshape(-1).numpy())[0]).reshape(batch.shape)
            torch.testing.assert_close(sampler.log_weight, weight)
        psi = Histogram(**_copy(sampler.reweighting.histogram.state_dict()), form=sampler.reweighting.histogram.form)
    assert sampler.log_weight.abs().max() > 0


def _copy(state: dict) -> dict:
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}


def test_full_energy_is_refreshed_every_n_steps():
    """It is computed at steps 0, 4, 8, ... and kept in between."""
    kept = None
    for step, (sampler, _, full) in enumerate(noisy_batches("full", None, refresh=4)):
        kept = full if step % 4 == 0 else kept
        torch.testing.assert_close(energy_read(sampler), kept)


def test_full_energy_without_full_loss_is_refused():
    weighting = bdl.AdaptiveWeight(low=0.0, high=20.0, energy="full")
    _, _, advance = gaussian(weighting)
    with pytest.raises(bdl.errors.ConfigError, match="full_loss"):
        advance()


@pytest.mark.parametrize("energy", ["batch", "ema", "full"])
def test_readings_are_not_changed_by_later_steps(energy: str):
    """Tensors that were read after one step keep their values."""
    readings = []
    for sampler, _, _ in noisy_batches(energy, 3):
        now = (sampler.energy, energy_read(sampler), sampler.multiplier, sampler.log_weight)
        readings.append((now, [value.clone() for value in now]))
    assert all(torch.equal(a, b) for now, then in readings for a, b in zip(now, then, strict=True))
