"""No step of a sampler on a GPU reads the device, waits for a copy to it, or mixes its tensors with the CPU's.

The tests use fake tensors. These have a device and a shape but no numbers, so a step on "cuda:0" needs no GPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from repeats import slow_where
from table import WIDE, repeats
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bdl
from bdl.engine.graphs import Graphs
from bdl.engine.mlp_gradient import MLPGradient
from bdl.samplers import chain
from bdl.samplers.potential import BoundGradient
from bdl.samplers.priors.base import Prior
from bdl.samplers.priors.independent import ScaleMixture

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
C, CUDA = 4, torch.device("cuda:0")
READ, COPY = torch.ops.aten._local_scalar_dense.default, torch.ops.aten._to_copy.default
EQUAL = torch.ops.aten.equal.default
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


class Waits(Exception):
    pass


class Watch(TorchDispatchMode):
    """Raises Waits where the host waits for the device, once `strict` is set. Numbers read on the CPU are 1."""

    strict = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is READ:
            if self.strict and args[0].device == CUDA:
                raise Waits("the host reads a number from the device")
            return True if args[0].dtype == torch.bool else 1.0
        if func is EQUAL:  # of numbers that a fake tensor does not have
            if self.strict and args[0].device == CUDA:
                raise Waits("the host compares numbers of the device")
            return False
        moves = func is COPY and args[0].device != kwargs.get("device", args[0].device)
        if self.strict and moves and not kwargs.get("non_blocking"):
            raise Waits("the host waits for a copy between devices")
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(chain, "generator", lambda *_: torch.Generator())  # torch has none for an absent device
    stream = object()  # another one for each test, whose tensors have no numbers
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def steps(count: int, lead: tuple[int, ...] = (C,), **settings) -> bdl.Sampler:
    """A sampler after `count` steps on a fake GPU. None is a multiple of 100, where it reads its flag of bad steps."""
    settings = {"dynamics": bdl.SGHMC(), "lr": 0.1, "num_data": 40, "chains": C if lead else None} | settings
    params = [nn.Parameter(torch.randn(*lead, *shape, device=CUDA)) for shape in ((5, 3), (5,))]

    def closure() -> torch.Tensor:
        for p in params:
            p.grad = p.detach().clone()  # autograd needs a real device
        return torch.zeros(lead, device=CUDA)

    with Watch() as watch:
        sampler = bdl.Sampler(params, **settings)
        each = torch.zeros(*lead, 4, 20, device=CUDA)
        sampler.extras |= {"per_example": lambda: each, "curvature": lambda: each[..., 0, :]}
        sampler.chain.steps = 1
        sampler.step(closure)  # what the user gave on the CPU moves to the device
        sampler.chain.steps, watch.strict = 1, True
        for _ in range(count):
            sampler.step(closure)
    return sampler


CHECKED = ("sgrld-diagonal", "recipe-sgrld-diagonal", "recipe-riemannian")


@pytest.mark.parametrize("lead", [pytest.param((), marks=pytest.mark.slow), (C,)], ids=["one chain", "chains"])
@pytest.mark.parametrize("row", slow_where(repeats, [r for r in WIDE if r.noisy and r.name not in CHECKED]), ids=str)
def test_no_step_of_a_dynamics_waits(row, lead):
    """The rows leave out functions that the user gives: the check that they are positive reads the device."""
    sampler = steps(3, lead, dynamics=row.build(20, torch.float32))
    assert sampler.steps == 4 and all(p.device == CUDA for p in sampler.param_groups[0]["params"])


@pytest.mark.parametrize("name", SETTINGS)
def test_no_step_with_these_settings_waits(name):
    sampler = steps(25 if name == "pilot" else 5, **SETTINGS[name])
    assert sampler.energy.device == sampler.multiplier.device == CUDA


def test_the_watch_sees_what_makes_a_step_wait():
    """Negative controls: the tests above notice a temperature on the device, and an energy on the CPU."""
    with pytest.raises(Waits):
        steps(1, temperature=torch.ones(C, device=CUDA))
    with pytest.raises(RuntimeError, match="same device|different devices"):
        steps(1, weighting=bdl.AdaptiveWeight(**BINS), prior=OnCpu())


class Captures(Watch):
    """Raises Waits also where a kernel uses memory of the host, whose address and numbers a CUDA graph would keep."""

    strict = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(t.device != CUDA for t in given) or func is torch.ops.aten.lift_fresh.default:
            raise Waits(f"{func} uses memory of the host")
        return super().__torch_dispatch__(func, types, args, kwargs)


def record(prior=None, loss=None) -> int:
    """Advance by graphs on a fake GPU; returns how many records were made without an exception."""
    layers, made = [nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 2)], []
    for layer in (layers[0], layers[2], layers[4]):
        layer.weight = nn.Parameter(torch.randn(C, layer.out_features, layer.in_features, device=CUDA))
        layer.bias = nn.Parameter(torch.randn(C, layer.out_features, device=CUDA))

    def recorder(work, streams):
        with Captures():
            made.append(work())
        return lambda: None, made[-1]

    loss = loss or bdl.CategoricalNLL()
    gradient, graphs = MLPGradient(layers, C, loss), Graphs(recorder)
    sampler = bdl.Sampler(gradient.params, bdl.SGHMC(), num_data=40, lr=0.1, chains=C, prior=prior or bdl.Gaussian(1.0))
    sampler.chain.steps = 1
    labels = (C, 8) if isinstance(loss, bdl.CategoricalNLL) else (C, 8, 2)
    for step in range(9):
        x, y = graphs.hold(torch.zeros(C, 8, 3, device=CUDA), torch.zeros(labels, device=CUDA).long())
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


def test_the_watch_sees_what_a_graph_cannot_hold():
    """Negative control: a prior whose energy is copied from the CPU, without a wait."""
    with pytest.raises(Waits, match="memory of the host"):
        record(Copied())


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
