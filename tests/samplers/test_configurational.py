"""The configurational temperature <θ, ∇U>/d: T in equilibrium, the true temperature of a heated chain."""

import pytest
import torch
from literature.targets import Chains, GaussianLaw

import bdl

C, T, LR = 2000, 0.5, 0.05
LAW = GaussianLaw([0.0, 0.0], [[1.0, 0.0], [0.0, 4.0]])


def measured(chains: Chains, steps: int = 400) -> float:
    """The mean over chains and over the second half of the steps."""
    values = []
    for step in range(1, steps + 1):
        chains.step()
        value = chains.sampler.configurational_temperature
        assert (value is not None) == (step % 10 == 0)
        if value is not None and step > steps / 2:
            values.append(value.mean())
    return float(torch.stack(values).mean())


@pytest.mark.parametrize(
    ("dynamics", "noise", "expected"),
    [
        (bdl.SGLD(), None, T),
        (bdl.SGHMC(0.2), None, T),
        (bdl.BAOAB(0.2), None, T),
        (bdl.HMC(leapfrog=3), None, T),
        (bdl.SGLD(), 5.0, T + LR * 25 / 2),  # gradient noise of variance v adds lr v/2
    ],
    ids=["SGLD", "SGHMC", "BAOAB", "HMC", "heated"],
)
def test_it_is_the_temperature_of_the_chain(dynamics, noise, expected):
    """A value has the standard deviation T, a mean of 20 correlated rows of 2,000 chains less than T/√2000 = .02 T."""
    start = torch.randn(C, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0]) * T**0.5
    chains = Chains(LAW, dynamics, start, lr=LR, temperature=T, gradient_noise=noise, seed=1)
    # The integrator's error is 1/(1 - lr λ/2) at most, a mean of 1.6 % over the two directions
    assert measured(chains) == pytest.approx(expected, rel=4 * 0.023 + 0.016)


def test_it_is_unknown_where_a_parameter_has_no_gradient():
    parts = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    sampler = bdl.Sampler(parts, bdl.SGLD(), num_data=10, lr=0.1)
    with pytest.warns(bdl.errors.BdlWarning, match="1 of 2 parameters"):
        for _ in range(10):
            parts[0].grad = torch.ones(2)
            sampler.step()
    assert sampler.configurational_temperature is None
