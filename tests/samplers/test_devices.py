"""No step of a sampler on a GPU reads the device, waits for a copy to it, or mixes its tensors with the CPU's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from repeats import slow_where
from simulated import Counts, Device
from table import WIDE, repeats
from torch import nn

import bdl
from bdl.engine.graphs import Graphs, record_on_cuda
from bdl.engine.mlp_gradient import MLPGradient
from bdl.samplers.potential import BoundGradient
from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.independent import ScaleMixture

pytestmark = pytest.mark.usefixtures("simulated")
C = 4
BINS = {"low": 0.0, "high": 1e3}
SETTINGS = {
    "pilot": {"weighting": bdl.AdaptiveWeight()},
    "adaptive": {"weighting": bdl.AdaptiveWeight(**BINS)},
    "shared, smoothed": {"weighting": bdl.AdaptiveWeight(**BINS, shared=True, energy="ema")},
    "contour": {"weighting": bdl.Contour(**BINS)},
    "T per chain": {"temperature": torch.ones(C)},
    "T per chain, adaptive": {"temperature": torch.ones(C), "weighting": bdl.AdaptiveWeight(**BINS)},
    "lr per chain": {"lr": torch.full((C,), 0.1)},
    "two rungs": {"exchange": bdl.Exchange((1.0, 2.0))},
    "four rungs": {"exchange": bdl.Exchange((1.0, 2.0, 4.0, 8.0))},
    "given variance": {"dynamics": bdl.SGHMC(grad_var=0.1)},
    "estimated variance": {"dynamics": bdl.SGHMC(grad_var="estimated")},
    "thermostat with a given rate": {"dynamics": bdl.SGNHT(rate=1e-3)},
    "clip": {"clip": bdl.ClipNorm(1.0)},
    "Laplace": {"prior": bdl.Laplace(1.0)},
}


def steps(count: int, lead: tuple[int, ...] = (C,), **settings: Any) -> tuple[bdl.Sampler, Counts]:
    """A sampler, and what happens in `count` steps. None is a multiple of 100, where it reads its flag of bad steps."""
    settings = {"dynamics": bdl.SGHMC(), "lr": 0.1, "num_data": 40, "chains": C if lead else None} | settings
    params = [nn.Parameter(torch.randn(*lead, *shape, device="cuda")) for shape in ((5, 3), (5,))]

    def closure() -> torch.Tensor:
        for p in params:
            p.grad = p.detach().clone()
        return torch.zeros(lead, device="cuda")

    sampler = bdl.Sampler(params, **settings)
    each = torch.randn(*lead, 4, 20, device="cuda")
    sampler.extras |= {name: lambda: each for name in ("per_example", "noise_draws")}
    sampler.extras["curvature"] = lambda: each[..., 0, :].square()
    sampler.chain.steps = 1
    sampler.step(closure)  # what the user gave on the CPU moves to the device
    sampler.chain.steps = 1
    with Device.present().counted() as seen:
        for _ in range(count):
            sampler.step(closure)
    return sampler, seen


CHECKED = ("sgrld-diagonal", "recipe-sgrld-diagonal", "recipe-riemannian")


@pytest.mark.parametrize("lead", [pytest.param((), marks=pytest.mark.slow), (C,)], ids=["one chain", "chains"])
@pytest.mark.parametrize("row", slow_where(repeats, [r for r in WIDE if r.noisy and r.name not in CHECKED]), ids=str)
def test_no_step_of_a_dynamics_waits(row, lead):
    """The rows leave out functions that the user gives: the check that they are positive reads the device."""
    sampler, seen = steps(3, lead, dynamics=row.build(20, torch.float32))
    assert sampler.steps == 4 and seen.kernels and not seen.waits


@pytest.mark.parametrize("name", SETTINGS)
def test_no_step_with_these_settings_waits(name):
    sampler, seen = steps(25 if name == "pilot" else 5, **SETTINGS[name])
    assert sampler.energy.is_cuda and sampler.multiplier.is_cuda and not seen.waits


def test_what_makes_a_step_wait_is_seen():
    """Negative controls: the tests above notice a temperature on the device, and an energy on the CPU."""
    assert steps(1, temperature=torch.ones(C, device="cuda"))[1].waits
    with pytest.raises(RuntimeError, match="Expected all tensors on cuda"):
        steps(1, weighting=bdl.AdaptiveWeight(**BINS), prior=OnCpu())


def record(prior: Prior, loss: Any) -> int:
    """Advance by graphs; returns how many were recorded."""
    layers, made = [nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 2)], []
    for layer in (layers[0], layers[2], layers[4]):
        layer.weight = nn.Parameter(torch.randn(C, layer.out_features, layer.in_features, device="cuda"))
        layer.bias = nn.Parameter(torch.randn(C, layer.out_features, device="cuda"))

    def recorder(work, streams):
        made.append(work)
        return record_on_cuda(work, streams)

    gradient, graphs = MLPGradient(layers, C, loss), Graphs(recorder, required=True)
    sampler = bdl.Sampler(gradient.params, bdl.SGHMC(), num_data=40, lr=0.1, chains=C, prior=prior)
    sampler.chain.steps = 1
    labels = (C, 8) if isinstance(loss, bdl.CategoricalNLL) else (C, 8, 2)
    for step in range(9):
        x, y = graphs.hold(torch.zeros(C, 8, 3, device="cuda"), torch.zeros(labels, device="cuda").long())
        sampler.advance(replace(BoundGradient.of(gradient, x, y), launch=graphs.run), measure=step % 2 == 0)
    return len(made)


@pytest.mark.parametrize("loss", [bdl.CategoricalNLL(), bdl.GaussianNLL(0.5)], ids=str)
@pytest.mark.parametrize(
    "prior",
    [bdl.Gaussian(2.0), bdl.Laplace(1.0), bdl.StudentT(3.0, 1.0), bdl.Uniform(), ScaleMixture()],
    ids=lambda prior: type(prior).__name__,
)
def test_a_graph_of_the_gradient_needs_nothing_of_the_host(prior, loss):
    """With the energy and without it."""
    assert record(prior, loss) == 2


def test_what_a_graph_cannot_hold_is_seen():
    """Negative control: a prior whose energy is copied from the CPU, without a wait."""
    with pytest.raises(bdl.ConfigError, match="copies from the host"):
        record(Copied(), bdl.CategoricalNLL())


class OnCpu(Prior):
    """A prior whose energy is a tensor on the CPU."""

    def bind(self, shapes, like):
        return self

    def energy(self, theta):
        return torch.ones(C)

    def add_grad_(self, g, theta, num_data):
        pass

    def constant(self, d):
        return 0.0


class Copied(OnCpu):
    def energy(self, theta):
        return torch.ones(C).to(theta.device, non_blocking=True)
