"""On a device without float64, as Apple's GPUs are: every sampler runs, by `bdl.devices`."""

import functools

import pytest
import torch
import toys
from repeats import slow_where
from simulated import Device

import bdl
from bdl.models import MLP

pytestmark = pytest.mark.filterwarnings("ignore::bdl.BdlWarning")
BINS = {"low": 10.0, "high": 300.0, "bins": 20}
SAMPLERS = {
    "SGLD": (bdl.SGLD(), {}),
    "AWSGHMC": (bdl.SGHMC(0.1), {"weighting": bdl.AdaptiveWeight(zeta=2.0, **BINS)}),
    "pilot, T per chain": (
        bdl.SGHMC(0.1),
        {"weighting": bdl.Contour(pilot=100), "temperature": torch.tensor([1.0, 2.0])},
    ),
    "given edges": (bdl.SGHMC(0.1), {"weighting": bdl.AdaptiveWeight(edges=[0.0, 50.0, 100.0], units="temperature")}),
    "exchange": (bdl.SGHMC(0.1), {"exchange": bdl.Exchange((1.0, 2.0))}),
    "HMC": (bdl.HMC(2, adapt_steps=2), {}),
    "MALA": (bdl.MALA(), {}),
    "MCLMC": (bdl.MCLMC(adapt_steps=4), {}),
    "SGNHT": (bdl.SGNHT(0.1), {}),
    "per example": (bdl.SGFS(), {}),
    "variational": (bdl.MeanField(), {"prior": bdl.StudentT(3.0, "he")}),
    "given variance": (bdl.SGHMC(0.1, grad_var=0.1), {"prior": bdl.Laplace(1.0)}),
}


@pytest.fixture
def mps():
    with Device("mps") as device:
        yield device


# What takes numbers of the device in a way of its own; the others repeat it
DISTINCT = ("AWSGHMC", "exchange", "MCLMC", "per example", "variational")


@pytest.mark.parametrize("name", slow_where(lambda name: name not in DISTINCT, SAMPLERS))
def test_a_run_on_a_device_without_float64(name, mps, tmp_path):
    """It samples, monitors, keeps, saves, resumes; the energies are float32."""
    dynamics, settings = SAMPLERS[name]

    def fit(steps: int, resume=None) -> bdl.BayesianModule:
        module = toys.module(chains=2, dynamics=dynamics, lr=0.01, **settings)
        loader = toys.batches(2, toys.N if dynamics.full_batch else toys.BATCH)
        save = bdl.SaveLast(tmp_path / "checkpoints", every=1000)
        keep = bdl.CollectSamples(bdl.schedules.EveryStep(8, 2), tmp_path)
        trainer = toys.trainer(tmp_path, steps, [bdl.Monitor(4), keep, save])
        trainer.fit(module, loader, ckpt_path=resume, weights_only=True)
        return module

    steps = 120 if "pilot" in name else 12
    fit(steps)
    sampler = fit(steps + 4, tmp_path / "checkpoints" / "last.ckpt").sampler
    assert sampler.steps == steps + 4 and sampler.chain.theta.device.type == "mps"
    assert sampler.energy.dtype == torch.float32 and sampler.energy.isfinite().all()
    assert "mps" in str(sampler.chain.theta.device) and "T = " in sampler.explain()


@pytest.mark.parametrize("name", ["AWSGHMC", "exchange", "HMC"])
def test_a_chain_goes_to_such_a_device_and_back(name, mps):
    """From the CPU by a saved state and by `.to`, and back: energies are double where there are doubles."""
    dynamics, settings = SAMPLERS[name]
    x, y = toys.tensors()

    def made() -> tuple[bdl.ChainStack, bdl.Sampler]:
        stack = bdl.ChainStack(MLP((toys.D, 5, toys.K)), 2)
        return stack, bdl.Sampler(stack.named_parameters(), dynamics, num_data=toys.N, lr=0.01, chains=2, **settings)

    def go(stack: bdl.ChainStack, sampler: bdl.Sampler) -> None:
        there = next(stack.parameters()).device
        closure = functools.partial(losses, stack, sampler, x.to(there), y.to(there))
        for _ in range(3):
            sampler.step(closure)

    stack, sampler = made()
    go(stack, sampler)
    for device, kind in (("mps:0", torch.float32), ("cpu", torch.float64)):
        state, values = sampler.state_dict(), stack.state_dict()
        stack.to(device)
        go(stack, sampler)
        assert sampler.energy.dtype == kind
        other, again = made()
        other.to(device)
        again.settings()
        other.load_state_dict({k: v.to(device) for k, v in values.items()})
        again.load_state_dict(state)
        go(other, again)
        assert again.steps == sampler.steps and again.energy.dtype == kind


def losses(stack: bdl.ChainStack, sampler: bdl.Sampler, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    sampler.zero_grad()
    each = bdl.CategoricalNLL()(stack.broadcast(x), y.expand(2, -1)).mean(-1)
    each.sum().backward()
    return each
