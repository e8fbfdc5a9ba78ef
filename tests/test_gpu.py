"""On a GPU: the CPU's numbers where nothing is random, the law where something is, and what only a GPU can break.

A GPU's random stream differs from the CPU's, so chains with injected noise are compared by their law, and with
themselves.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import toys
from lightning.pytorch.callbacks import Callback
from repeats import slow_where
from simulated import Device
from torch import Tensor, nn

import bdl
from bdl.data import Augment, TensorBatches
from bdl.data.augment import Normalise
from bdl.engine.choose import choose_gradient, of_stack
from bdl.engine.graphs import record_on_cuda
from bdl.models import MLP, ResNet
from bdl.psi import lean
from bdl.run.machine import compile_if_possible
from bdl.samplers.whole_steps import WholeSteps

DEVICE = "cuda"
REAL = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not REAL, reason="needs a GPU")


def repeated(names, *default: str) -> list:
    """The names, of which the simulated device tries those of `default` by default."""
    return list(names) if REAL else slow_where(lambda name: name not in default, names)


def tried_elsewhere(test):
    """test_devices.py and test_recorded_steps.py have this claim on the simulated device."""
    return test if REAL else pytest.mark.slow(test)


ROOT = Path(__file__).parents[1]
C, N = 4, 64  # chains, items
SAMPLERS = {
    "sgd": (bdl.SGD(0.9), bdl.Flat()),
    "sgld": (bdl.SGLD(), bdl.Flat()),
    "sghmc": (bdl.SGHMC(0.1), bdl.Flat()),
    "sgnht": (bdl.SGNHT(0.1), bdl.Flat()),
    "psgld": (bdl.PSGLD(damping=0.1), bdl.Flat()),
    "awsgld": (bdl.SGLD(), bdl.AdaptiveWeight(zeta=50.0, low=10.0, high=300.0, bins=20)),
    "awsghmc": (bdl.SGHMC(0.1), bdl.AdaptiveWeight(zeta=50.0, low=10.0, high=300.0, bins=20)),
    "csghmc": (bdl.SGHMC(0.1), bdl.Contour(zeta=0.1, low=10.0, high=300.0, bins=20)),
    "pilot": (bdl.SGHMC(0.1), bdl.AdaptiveWeight(pilot=100, bins=20)),
}


@pytest.fixture(autouse=True)
def simulated_without_a_gpu():
    """Where there is no GPU the tests run on the simulated one, but for those marked `needs_gpu`."""
    with contextlib.nullcontext() if REAL else Device(DEVICE):
        yield


@pytest.fixture
def deterministic(monkeypatch):
    """Deterministic kernels, as trainer=gpu sets them."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def exact(monkeypatch):
    """No TF32: the tolerances are those of single precision."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


class Chains:
    """C chains of a small MLP on batches that are a function of the step."""

    def __init__(self, device: str, dynamics, weighting, temperature=1.0, dtype=torch.float32, **settings):
        self.stack = bdl.ChainStack(MLP((3, 8, 3)), C, seed=1).to(device, dtype)
        self.x, self.y = (t.to(device) for t in toys.tensors(N))
        self.x = self.x.to(dtype)
        settings = {"num_data": N, "lr": 0.05, "seed": 3} | settings
        self.sampler = bdl.Sampler(
            self.stack.named_parameters(), dynamics, temperature=temperature, weighting=weighting, chains=C, **settings
        )

    def go(self, steps: int) -> Chains:
        for _ in range(steps):
            rows = torch.arange(16, device=self.x.device) + 16 * (self.sampler.steps % 4)
            self.sampler.step(functools.partial(self.closure, self.x[rows], self.y[rows]))
        return self

    def closure(self, x: Tensor, y: Tensor) -> Tensor:
        self.sampler.zero_grad()
        losses = bdl.CategoricalNLL()(self.stack.broadcast(x), y.expand(C, -1)).mean(-1)
        losses.sum().backward()
        return losses

    @property
    def theta(self) -> Tensor:
        return torch.cat([p.detach().flatten(1) for p in self.stack.parameters()], 1)

    def numbers(self) -> list[Tensor]:
        h, s = self.sampler.reweighting.histogram, self.sampler
        psi = [] if h is None else [h.psi, h.visits, h.window]
        return [t.cpu() for t in (self.theta, s.energy, s.multiplier, s.log_weight, *psi)]


@contextlib.contextmanager
def waiting_forbidden() -> Iterator[None]:
    if not REAL:
        with Device.present().counted() as seen:
            yield
        assert not seen.waits, seen
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", repeated(SAMPLERS, "sghmc", "awsghmc", "pilot"))
def test_without_noise_a_gpu_computes_what_the_cpu_does(name, exact):
    """20 steps at T = 0: parameters within 1e-5, energies (nats, summed over 64 items) within 1e-3."""
    cpu, gpu = (Chains(device, *SAMPLERS[name], temperature=0.0).go(20) for device in ("cpu", DEVICE))
    torch.testing.assert_close(gpu.theta.cpu(), cpu.theta, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gpu.sampler.energy.cpu(), cpu.sampler.energy, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("name", repeated(["awsghmc", "csghmc"], "csghmc"))
def test_a_weighting_learns_on_a_gpu_what_it_does_on_the_cpu(name):
    """From the same 100 energies (C,), psi, its logarithm and both results agree within 1e-12, in double precision."""
    weighting = SAMPLERS[name][1]
    draws = 40 + 200 * torch.rand(100, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    results = []
    for device in ("cpu", DEVICE):
        h = weighting.init(draws[0].to(device))
        for u in draws.to(device):
            weighting.update(h, u, weighting.zeta)
        after = map(torch.as_tensor, h.evaluate(lean(draws[7].to(device))))
        results.append([t.cpu() for t in (h.psi, h.log_psi, h.visits, *after)])
    for cpu, gpu in zip(*results, strict=True):
        torch.testing.assert_close(gpu, cpu, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", repeated(SAMPLERS, "sgld"))
def test_a_resumed_chain_is_the_uninterrupted_one_bit_for_bit(name, deterministic, tmp_path):
    """Some steps, a file that is read onto the CPU as Lightning does, and 23 more, against all at once.

    The pilot looks at its energies for the first time before step 130. Another seed draws other noise.
    """
    before = 130 if REAL or name == "pilot" else 30
    whole = Chains(DEVICE, *SAMPLERS[name]).go(before + 23)
    first = Chains(DEVICE, *SAMPLERS[name]).go(before)
    torch.save({"net": first.stack.state_dict(), "sampler": first.sampler.state_dict()}, tmp_path / "state")
    saved = torch.load(tmp_path / "state", map_location="cpu", weights_only=True)
    second = Chains(DEVICE, *SAMPLERS[name], seed=3)
    second.stack.load_state_dict(saved["net"])
    second.sampler.load_state_dict(saved["sampler"])
    second.go(23)
    for a, b in zip(whole.numbers(), second.numbers(), strict=True):
        assert torch.equal(a, b)
    if name != "sgd":
        assert not torch.equal(whole.theta, Chains(DEVICE, *SAMPLERS[name], seed=4).go(before + 23).theta)


def test_numbers_per_chain_survive_a_checkpoint_read_onto_cpu(deterministic):
    """With T (C,) on the CPU and a weighting, 10 + 10 steps equal 20 to the bit. T on the GPU gives the same chain."""
    t = torch.tensor([0.5, 1.0, 1.0, 2.0])
    whole = Chains(DEVICE, *SAMPLERS["awsghmc"], temperature=t).go(20)
    first = Chains(DEVICE, *SAMPLERS["awsghmc"], temperature=t).go(10)
    second = Chains(DEVICE, *SAMPLERS["awsghmc"], temperature=t)
    second.stack.load_state_dict(first.stack.state_dict())
    second.sampler.load_state_dict(first.sampler.state_dict())
    there = Chains(DEVICE, *SAMPLERS["awsghmc"], temperature=t.to(DEVICE)).go(20)
    assert torch.equal(whole.theta, second.go(10).theta) and torch.equal(whole.theta, there.theta)


@needs_gpu
@pytest.mark.parametrize("dynamics", [bdl.SGLD(), bdl.SGHMC(0.1), bdl.SGNHT(0.1), bdl.BAOAB(0.1)], ids=str)
def test_the_law_of_4096_chains_on_a_gaussian(dynamics):
    """U = N θ²/2 in 8 dimensions at T = 1. The variance of 32,768 independent numbers must be T/N times the known
    discretisation error, within 4.5 standard errors (3.5 %). A missing factor N or sqrt(2) would show."""
    chains, d, n, lr = 4096, 8, 50, 0.05
    theta = torch.zeros(chains, d, device=DEVICE, requires_grad=True)
    sampler = bdl.Sampler([theta], dynamics, num_data=n, lr=lr, prior=bdl.Uniform(), chains=chains, seed=5)

    def closure() -> Tensor:
        theta.grad = theta.detach().clone()
        return theta.detach().square().sum(-1) / 2

    for _ in range(1500):  # at friction .1 and lr .05 a chain forgets in 40 steps
        sampler.step(closure)
    overdamped = isinstance(dynamics, bdl.SGLD)
    a = 1.0 if overdamped else dynamics.friction
    bias = 1.0 if isinstance(dynamics, bdl.BAOAB) else 1 / (1 - lr / (2 * (2 - a)))
    var, power = theta.detach().double().var().item() * n, (2 / (chains * d)) ** 0.5
    assert abs(var / bias - 1) < 4.5 * power
    assert abs(theta.detach().mean().item()) < 4.5 / (n * chains * d) ** 0.5
    if not overdamped:
        expected = 1.0 if isinstance(dynamics, bdl.BAOAB) else bias
        assert abs(sampler.kinetic_temperature.mean().item() / expected - 1) < 0.1


@tried_elsewhere
@pytest.mark.parametrize("name", repeated(["sgld", "sghmc", "sgnht", "awsghmc", "csghmc"], "sgnht", "csghmc"))
def test_no_step_waits_for_the_device(name):
    """torch raises where the host would wait. The test leaves out the steps at which the flag of bad steps is read."""
    chains = Chains(DEVICE, *SAMPLERS[name]).go(2)
    with waiting_forbidden():
        chains.go(40)


@tried_elsewhere
@pytest.mark.parametrize("ladder", [(1.0, 2.0), (1.0, 2.0, 4.0, 8.0)])
def test_replicas_swap_without_waiting(ladder):
    chains = Chains(DEVICE, bdl.SGHMC(), bdl.Flat(), exchange=bdl.Exchange(ladder, energy_var=0.0)).go(2)
    with waiting_forbidden():
        chains.go(40)
    assert (chains.sampler.swap_rates > 0).all()


def test_divergence_is_noticed_in_100_steps_before_any_saving():
    """The flag holds the first bad step. Loading an earlier state clears it."""
    chains = Chains(DEVICE, bdl.SGHMC(), bdl.Flat()).go(5)
    good, theta = copy.deepcopy(chains.sampler.state_dict()), [p.detach().clone() for p in chains.stack.parameters()]
    x = chains.x.clone()
    chains.x[20] = torch.nan  # in the batch of step 5
    chains.go(3)  # the flag is not read yet
    with pytest.raises(bdl.DivergedError, match="not finite at step 5"):
        chains.go(100)
    with pytest.raises(bdl.DivergedError, match="not finite"):
        chains.sampler.state_dict()
    chains.x = x
    for p, value in zip(chains.stack.parameters(), theta, strict=True):
        p.data.copy_(value)
    chains.sampler.load_state_dict(good)
    assert chains.go(120).sampler.state_dict()["bdl"]["chain"]["step"] == 125


def test_a_chain_moves_to_the_device_with_its_network():
    """Five steps at T = 0 on the CPU, `.to(DEVICE)` and five more steps equal ten steps on the CPU, within 1e-5."""
    moved, stayed = (Chains("cpu", bdl.SGHMC(), bdl.Flat(), temperature=0.0).go(5) for _ in range(2))
    moved.stack.to(DEVICE)
    moved.x, moved.y = moved.x.to(DEVICE), moved.y.to(DEVICE)
    torch.testing.assert_close(moved.go(5).theta.cpu(), stayed.go(5).theta, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chains", [None, 2])
def test_batches_of_images_are_the_same_on_both_devices(chains):
    """Over an epoch and a half, augmented and normalised pixels agree within 1e-6, in the layout that was asked for."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randint(256, (40, 3, 32, 32), generator=draw, dtype=torch.uint8), torch.arange(40) % 10
    augment, transform = Augment(erase=0.5, cutout=8), Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.25), True)
    cpu, gpu = (
        TensorBatches(x, y, 16, chains=chains, seed=2, augment=augment, transform=transform).to(device)
        for device in ("cpu", DEVICE)
    )
    for k in range(3):
        (a, labels), (b, others) = cpu.at(*divmod(k, 2)), gpu.at(*divmod(k, 2))
        torch.testing.assert_close(b.cpu(), a, atol=1e-6, rtol=1e-6)
        assert torch.equal(labels, others.cpu()) and b.device.type == DEVICE
        assert b.flatten(0, -4).is_contiguous(memory_format=torch.channels_last)


def images(chains: int, n: int = 4, shared: bool = False) -> tuple[Tensor, Tensor]:
    """x (C, n, 3, 32, 32) in channels_last, or (n, 3, 32, 32); y (C, n)."""
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(n if shared else chains * n, 3, 32, 32, generator=draw).to(DEVICE)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (chains, n), generator=draw).to(DEVICE)
    return (x if shared else x.unflatten(0, (chains, n))), y


def losses_and_gradients(stack: bdl.ChainStack, x: Tensor, y: Tensor, dtype=torch.float32) -> list[Tensor]:
    stack.zero_grad()
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32, cache_enabled=False):
        losses = bdl.CategoricalNLL()(stack(x), y).mean(-1)
    losses.sum().backward()
    grads = [p.grad for p in stack.parameters() if p.grad is not None]
    return [losses.detach(), torch.cat([g.flatten(1) for g in grads], 1), *(b.float() for b in stack.buffers())]


IMAGES = [(3, False), (3, True), (1, False)]


@pytest.mark.parametrize("norm", repeated(["batch", "filter_response"], "batch"))
@pytest.mark.parametrize("chains,shared", IMAGES if REAL else slow_where(lambda chains, _: chains == 1, IMAGES))
def test_vmap_is_the_loop_on_a_resnet(norm, chains, shared, exact, deterministic):
    """Losses, gradients and running statistics agree within 1e-4 of their norm: sums have another order."""
    x, y = images(chains, shared=shared)
    results = []
    for method in ("vmap", "loop"):
        stack = bdl.ChainStack(ResNet(8, norm=norm), chains, method=method, shared=shared).to(DEVICE)
        results.append(losses_and_gradients(stack, x, y))
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm()


@tried_elsewhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16] if REAL else [torch.float32])
def test_branches_are_the_loop_on_a_resnet(dtype, exact, deterministic):
    """Losses, gradients and statistics after four steps, of which graphs launch three: within 1e-4 of their norm; under
    bf16 within 0.05. Ten networks share eight streams."""
    stacks = [bdl.ChainStack(ResNet(8), 10, seed=1, method=method).to(DEVICE) for method in ("branches", "loop")]
    (x, y), results = images(10), []
    for stack in stacks:
        autograd = of_stack(stack, bdl.CategoricalNLL())
        autograd.context = lambda: torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32, cache_enabled=False)
        casts = dtype != torch.float32
        gradient = choose_gradient(stack, bdl.CategoricalNLL(), autograd=autograd, graphs=True, casts=casts)
        assert gradient.launch is not None
        out = [torch.empty_like(p) for p in gradient.params]
        for _ in range(4):
            here = gradient.hold(x, y)
            losses = gradient.launch(functools.partial(gradient.write, *here, out), "step", ())
        grads = torch.cat([g.flatten(1) for g in out], 1)
        results.append([losses.clone(), grads, *(b.float() for b in stack.buffers())])
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= (1e-4 if dtype == torch.float32 else 0.05) * b.norm()


@needs_gpu
@pytest.mark.parametrize("chains", [2, 8, 32])
def test_vmap_of_a_resnet_beside_a_loop(chains):
    """Their times are printed: as grouped convolutions vmap may lose, and then `Forward.way` has to change."""
    seconds = {}
    for method in ("loop", "vmap"):
        stack, (x, y) = bdl.ChainStack(ResNet(20), chains, method=method).to(DEVICE), images(chains, 128)
        for k in range(8):
            if k == 3:
                torch.cuda.synchronize()
                start = time.perf_counter()
            losses_and_gradients(stack, x, y)
        torch.cuda.synchronize()
        seconds[method] = (time.perf_counter() - start) / 5
    print(f"ResNet20 x {chains}, batch 128: loop {seconds['loop']:.4f} s, vmap {seconds['vmap']:.4f} s a gradient")
    assert all(s > 0 for s in seconds.values())


@needs_gpu
@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiled_stack_computes_what_the_eager_one_does(chains, dtype, exact, deterministic):
    """Loss, gradient and statistics agree within 1e-3 of their norm; under bf16, within 0.05."""
    x, y = images(chains, 16)
    plain, compiled = (bdl.ChainStack(ResNet(8), chains).to(DEVICE) for _ in range(2))
    compile_if_possible(compiled)
    for a, b in zip(*(losses_and_gradients(s, x, y, dtype) for s in (plain, compiled)), strict=True):
        assert (a - b).norm() <= (1e-3 if dtype == torch.float32 else 0.05) * a.norm()


@needs_gpu
def test_a_chain_on_the_device_is_compiled_once(deterministic):
    """Twenty steps under bf16, each with another lr, make no graph after the first step."""
    seen = []
    stack = bdl.ChainStack(ResNet(8), 1).to(DEVICE)
    stack.compile(backend=lambda graph, _: seen.append(graph) or graph.forward)
    sampler = bdl.Sampler(stack.named_parameters(), *SAMPLERS["pilot"][:1], num_data=N, lr=0.01, chains=1)
    x, y = images(1)
    after = []
    for k in range(20):
        sampler.param_groups[0]["lr"] = 0.01 / (k + 1)
        sampler.step(lambda: losses_and_gradients(stack, x, y, torch.bfloat16)[0])
        after.append(len(seen))
    assert after == [len(seen)] * 20 and seen
    torch._dynamo.reset()


class Types(Callback):
    """Remembers the energies, and the dtypes and devices of θ, momenta, gradient, noise and parameters in each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.energies, self.types, self.devices = [], set(), set()
        step = bdl.SGHMC.step

        def watched(dynamics, s, g, lr, tau, z, *extra):
            self.note(s.theta, s.m, g, z)
            return step(dynamics, s, g, lr, tau, z, *extra)

        monkeypatch.setattr(bdl.SGHMC, "step", watched)

    def note(self, *tensors: Tensor) -> None:
        self.types |= {t.dtype for t in tensors}
        self.devices |= {t.device.type for t in tensors}

    def on_train_batch_end(self, trainer, pl_module, *_):
        energy = pl_module.sampler.energy
        self.energies.append(energy.mean())
        self.note(*pl_module.parameters())
        assert energy.dtype == torch.float64


@needs_gpu
@pytest.mark.parametrize("chains", [1, 2])
def test_bf16_keeps_the_chain_in_single_precision(tmp_path, chains, monkeypatch):
    """ResNet8 on 64 images, 60 steps: the mean energy of the last ten is below that of the first ten."""
    (x, y), seen = images(1, N), Types(monkeypatch)
    loader = TensorBatches(x[0].cpu().contiguous(), y[0].cpu(), 16, chains=chains)
    net = bdl.ChainStack(ResNet(8), chains)
    module = toys.module(net, chains, num_data=N, lr=0.05, temperature=1e-3, weighting=bdl.AdaptiveWeight(pilot=100))
    accelerator = "gpu" if DEVICE == "cuda" else DEVICE
    toys.trainer(tmp_path, 60, [seen], accelerator=accelerator, precision="bf16-mixed").fit(module, loader)
    energies = torch.stack(seen.energies)
    assert seen.types == {torch.float32} and seen.devices == {DEVICE} and energies.isfinite().all()
    assert energies[-10:].mean() < energies[:10].mean()


class CountedGraphs:
    """Records CUDA graphs as a run does, and counts records, launches, and the steps that were launched.

    A graph of whole steps asks once for their numbers. Another one holds a part of one step.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.records = self.launches = self.steps = self._size = 0
        monkeypatch.setattr("bdl.engine.choose.recorder_for", lambda device: self)
        index = WholeSteps.index

        def sized(whole: WholeSteps, steps: int) -> Tensor:
            self._size = steps
            return index(whole, steps)

        monkeypatch.setattr(WholeSteps, "index", sized)

    def __call__(self, work, streams=()):
        self._size = 1
        launch, result = record_on_cuda(work, streams)
        self.records, size = self.records + 1, self._size

        def counted() -> None:
            self.launches, self.steps = self.launches + 1, self.steps + size
            launch()

        return counted, result


class At(bdl.callbacks.StepCallback):
    """Acts before given steps, inside a block."""

    def __init__(self, **actions):
        self.actions = {int(name.removeprefix("step_")): action for name, action in actions.items()}

    def on_train_start(self, trainer, pl_module):
        self.trainer, self.module = trainer, pl_module

    def must_see(self, step: int) -> bool:
        return False

    def before_step(self) -> None:
        if action := self.actions.get(self.module.sampler.steps):
            action(self)


def move_parameters(at: At) -> None:
    for p in at.module.parameters():
        p.data = p.data.clone()


def stop(at: At) -> None:
    at.trainer.should_stop = True


# An epoch has 40 steps. The simulated device takes ten times as long for a step, so it makes fewer
EveryStep = bdl.schedules.EveryStep
STEPS, KEEP, STOP = (100, EveryStep(50, 10), 63) if REAL else (60, EveryStep(30, 6), 45)


def fit(folder: Path, *callbacks: Callback, steps: int = STEPS, resume: Path | None = None, loader=None, **settings):
    """The toy module after a run on the GPU in which lr and T change at every step and samples are kept."""
    compiled, deterministic = settings.pop("compile", "auto"), settings.pop("deterministic", True)
    precision = settings.pop("precision", "32-true")
    module = toys.module(chains=3, **settings)
    module.compiled = compiled
    cosine = bdl.schedules.Cosine
    save = bdl.SaveLast(folder / "checkpoints", every=1000)
    callbacks = (
        bdl.Schedule(lr=cosine(0.1, STEPS, final=0.01), temperature=cosine(2.0, STEPS, final=0.5)),
        bdl.CollectSamples(KEEP, folder),
        bdl.Monitor(25),
        save,
        *callbacks,
    )
    trainer = toys.trainer(
        folder, steps, callbacks, accelerator="gpu", deterministic=deterministic, precision=precision
    )
    trainer.fit(module, loader or toys.batches(3, 1), ckpt_path=resume, weights_only=True)
    return module


def left(folder: Path, module: bdl.BayesianModule) -> tuple[dict[str, bytes], list[Tensor]]:
    """Sample files, and parameters, momenta, psi and the random stream, on the CPU."""
    sampler, h = module.sampler, module.sampler.reweighting.histogram
    files = {p.name: p.read_bytes() for p in sorted((folder / "samples").iterdir())}
    psi = [] if h is None else [h.psi, h.log_psi, h.visits, h.window]
    return files, [t.cpu() for t in (*sampler.chain.tensors(), sampler.chain.generator.get_state(), *psi)]


def assert_same(one: tuple[dict[str, bytes], list[Tensor]], other: tuple[dict[str, bytes], list[Tensor]]) -> None:
    assert one[0].keys() == other[0].keys() and len(one[0]) >= 5
    if not REAL:  # the CPU's products of matrices depend on where their memory begins
        for a, b in zip(one[1], other[1], strict=True):
            torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
        return
    assert one[0] == other[0]
    assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


LIGHTNING = {
    "flat": {},
    "weighted": {"weighting": bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=120.0, bins=10)},
    "pilot": {"weighting": bdl.AdaptiveWeight(pilot=100)},
    "thermostat": {"dynamics": bdl.SGNHT(0.5, rate=0.01)},
    "isokinetic": {"dynamics": bdl.SMILE(adapt_steps=30)},
    "controlled": {"dynamics": bdl.CCHMC(0.5, rank=3, adapt_steps=30)},
    "estimated noise": {"dynamics": bdl.SGHMC(0.5, grad_var="estimated")},
    "exchange": {"exchange": bdl.Exchange((1.0, 1.5, 2.0), every=3)},
    "values": {"loss": bdl.GaussianNLL(0.5), "prior": bdl.StudentT(3.0, "he"), "clip": bdl.ClipNorm(0.5)},
    "layers": {"net": nn.Sequential(nn.Linear(toys.D, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, toys.K))},
    "images": {"net": ResNet(8)},
    "images in bf16": {"net": ResNet(8), "precision": "bf16-mixed"},
}
TWO_GRAPHS = ("weighted", "exchange")  # a step launches the gradient's, and that of psi or of a swap


@pytest.fixture
def lightning_deterministic(monkeypatch):
    """The Trainer switches deterministic kernels on, and nobody off."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield
    torch.use_deterministic_algorithms(False)


def toy_loader(name: str) -> TensorBatches | None:
    x, y = toys.tensors()
    if name == "values":
        return TensorBatches(x, x.tanh(), 1, chains=3)
    if name in ("layers", "controlled"):  # which take several items
        return TensorBatches(x, y, 8, chains=3)
    if name.startswith("images"):
        return TensorBatches(images(1, toys.N, shared=True)[0].cpu().contiguous(), y, 8, chains=3)
    return None


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What an uninterrupted run in blocks leaves, and its graphs. Each run is made once."""
    made = {}

    def get(name: str):
        if name not in made:
            folder = tmp_path_factory.mktemp("uninterrupted")
            with pytest.MonkeyPatch.context() as patch:
                graphs = CountedGraphs(patch)
                made[name] = left(folder, fit(folder, loader=toy_loader(name), **LIGHTNING[name])), graphs
        return made[name]

    return get


@tried_elsewhere
@pytest.mark.filterwarnings("ignore::bdl.BdlWarning")
@pytest.mark.parametrize("name", repeated([n for n in LIGHTNING if REAL or "bf16" not in n], "weighted", "layers"))
def test_blocks_and_graphs_are_single_steps_to_the_bit(
    tmp_path, lightning_deterministic, monkeypatch, uninterrupted, name
):
    """Samples, state, psi and random stream; without graphs (compile=false) θ agrees to rounding."""
    blocks, graphs = uninterrupted(name)
    # Graphs of 20, 5 and 1 whole steps; the last two with gradients that the batch noise reads, or without
    most = 5 if graphs.steps > graphs.launches else 4 if name in TWO_GRAPHS else 2
    assert graphs.steps > 0.6 * STEPS and graphs.records <= most
    graphs = CountedGraphs(monkeypatch)
    stepwise = left(tmp_path / "b", fit(tmp_path / "b", toys.EveryBatch(), loader=toy_loader(name), **LIGHTNING[name]))
    assert graphs.launches == 0  # single steps have none
    assert_same(blocks, stepwise)
    settings = LIGHTNING[name]
    if name.startswith("images"):  # the kernels of branches, in turn: those of vmap round otherwise
        settings = settings | {"net": bdl.ChainStack(ResNet(8), 3, seed=0, method="loop")}
    plain = left(tmp_path / "c", fit(tmp_path / "c", loader=toy_loader(name), compile=False, **settings))
    torch.testing.assert_close(plain[1][0], blocks[1][0], atol=1e-3, rtol=1e-3)
    print(f"{name}: compile=false is {'the same to the bit' if torch.equal(plain[1][0], blocks[1][0]) else 'close'}")


@tried_elsewhere
def test_parameters_that_move_inside_a_block_are_recorded_anew(tmp_path, lightning_deterministic, monkeypatch):
    graphs = CountedGraphs(monkeypatch)
    moved = left(tmp_path / "a", fit(tmp_path / "a", At(step_30=move_parameters)))
    assert graphs.records > 2
    assert_same(moved, left(tmp_path / "b", fit(tmp_path / "b", toys.EveryBatch())))


@tried_elsewhere
@pytest.mark.parametrize("name", repeated(["flat", "weighted", "layers", "images"], "weighted"))
def test_a_run_with_graphs_stops_inside_block_and_resumes_to_bit(
    tmp_path, lightning_deterministic, uninterrupted, name
):
    whole, settings = uninterrupted(name)[0], LIGHTNING[name]
    first = fit(tmp_path / "parts", At(**{f"step_{STOP}": stop}), loader=toy_loader(name), **settings)
    assert first.sampler.steps == STOP + 1
    last = tmp_path / "parts" / "checkpoints" / "last.ckpt"
    second = fit(tmp_path / "parts", resume=last, loader=toy_loader(name), **settings)
    assert_same(left(tmp_path / "parts", second), whole)


@needs_gpu
@pytest.mark.parametrize("name", ["flat", "weighted", "thermostat", "exchange", "layers", "images in bf16"])
def test_no_step_inside_a_block_waits(tmp_path, monkeypatch, name):
    """Steps 5 to 20 launch graphs and wait for nothing: neither an epoch begins in them, nor a monitored step."""
    graphs, counts = CountedGraphs(monkeypatch), []

    def forbid(at: At) -> None:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        counts.append(graphs.launches)

    def allow(at: At) -> None:
        torch.cuda.set_sync_debug_mode("default")
        counts.append(graphs.launches)

    try:
        at = At(step_5=forbid, step_20=allow)
        fit(tmp_path, at, loader=toy_loader(name), deterministic=False, **LIGHTNING[name])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    each = 2 if name in TWO_GRAPHS else 1
    assert 14 * each < counts[1] - counts[0] <= 15 * each  # the first swap of a kind runs kernel by kernel


def test_graphs_notice_the_first_bad_step(tmp_path, monkeypatch):
    """An item is NaN. The batch that holds it for the first time is named, though the step was not looked at."""
    graphs, (x, y) = CountedGraphs(monkeypatch), toys.tensors()
    x[7] = torch.nan
    loader = TensorBatches(x, y, 1, chains=3)
    bad = next(i for i in range(40) if loader.at(0, i)[0].isnan().any())
    with pytest.raises(bdl.DivergedError, match=f"not finite at step {bad}:"):
        fit(tmp_path, loader=TensorBatches(x, y, 1, chains=3), deterministic=False)
    assert graphs.launches > 0 or bad < 3


@needs_gpu
@pytest.mark.skipif(
    "check_input_liveness" not in inspect.signature(torch.cuda.graph).parameters, reason="needs a later torch"
)
def test_what_a_graph_reads_stays_alive(tmp_path, monkeypatch):
    """torch follows the memory that a graph uses, and raises where some of it has gone before a launch."""
    graph = functools.partial(torch.cuda.graph, check_input_liveness=True)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    graphs = CountedGraphs(monkeypatch)
    fit(tmp_path, At(step_30=move_parameters), deterministic=False, **LIGHTNING["weighted"])
    assert graphs.launches > 0.6 * STEPS
    single = graphs.launches
    fit(tmp_path / "walks", deterministic=False, **LIGHTNING["thermostat"])
    assert graphs.steps - single > 0.6 * STEPS > graphs.launches - single  # whole steps


@needs_gpu
def test_graphs_hold_nearly_all_steps_of_a_block_whole(tmp_path, monkeypatch):
    """2,000 steps of Landsat's network. Times are printed, and compared by `scripts/bench.py graphs`."""
    graphs, seconds = CountedGraphs(monkeypatch), {}
    x, y = torch.randn(4000, 36), torch.randint(6, (4000,))
    for compiled in ("auto", False):
        stack = bdl.ChainStack(MLP((36, 30, 30, 6)), 8)
        module = bdl.BayesianModule(
            stack, functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(), num_data=4000, lr=0.05), compile=compiled
        )
        trainer = toys.trainer(tmp_path, 2000, accelerator="gpu", max_epochs=-1)
        torch.cuda.synchronize()
        start = time.perf_counter()
        trainer.fit(module, TensorBatches(x, y, 100, chains=8))
        torch.cuda.synchronize()
        seconds[compiled] = time.perf_counter() - start
    print(f"2,000 steps: {seconds['auto']:.2f} s with graphs, {seconds[False]:.2f} s without")
    assert graphs.steps > 1900 and graphs.launches < 400 and graphs.records <= 5


@tried_elsewhere
@pytest.mark.parametrize("net", [None, nn.Sequential(nn.Linear(toys.D, 5), nn.Dropout(0.3), nn.Linear(5, toys.K))])
def test_run_that_was_stopped_writes_samples_of_one_that_was_not(tmp_path, net):
    """20 steps equal 11 steps and 9 from Lightning's checkpoint. Dropout draws from the device's random stream."""

    def go(folder: str, steps: int, seed: int) -> bytes:
        torch.manual_seed(seed)
        last = tmp_path / folder / "checkpoints" / "last.ckpt"
        collect = bdl.CollectSamples(bdl.schedules.EveryStep(0, 2), tmp_path / folder)
        save = bdl.SaveLast(last.parent, every=1000)
        trainer = toys.trainer(
            tmp_path, steps, [collect, save], deterministic=True, accelerator="gpu" if DEVICE == "cuda" else DEVICE
        )
        checkpoint = last if last.exists() else None
        trainer.fit(toys.module(net), toys.batches(), ckpt_path=checkpoint, weights_only=True)
        return b"".join(p.read_bytes() for p in sorted((tmp_path / folder / "samples").glob("0*.safetensors")))

    try:
        whole, _ = go("a", 20, 1), go("b", 11, 1)
        assert go("b", 20, 2) == whole
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_posterior_predicts_on_the_device_what_it_does_on_cpu(tmp_path, exact):
    """Over eight samples, mean probabilities and the parts of the entropy agree within 1e-5. Results are on the CPU."""
    toys.sample(tmp_path, 8)
    x, _ = toys.tensors(seed=2)
    cpu = bdl.Posterior.load(tmp_path, toys.plain()).predict(x)
    gpu = bdl.Posterior.load(tmp_path, toys.plain().to(DEVICE)).predict(x.to(DEVICE))
    for name in ("probs", "entropy", "epistemic", "std"):
        torch.testing.assert_close(getattr(gpu, name), getattr(cpu, name), atol=1e-5, rtol=1e-5)


def train(folder: Path, *overrides: str) -> dict[str, bytes]:
    """The files of a run in a new process that must not depend on the run."""
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), f"hydra.run.dir={folder}", "logger=none", *overrides]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=540)
    assert done.returncode == 0, done.stderr
    kept = [*sorted((folder / "samples").iterdir()), folder / "metrics.json"]
    return {p.name: p.read_bytes() for p in kept}


@needs_gpu
@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_two_runs_on_a_gpu_are_the_same_to_the_bit(tmp_path, precision):
    """Landsat by AWSGHMC under trainer=gpu (deterministic), 2000 steps: samples, energies, psi and metrics.

    In both the gradient is a CUDA graph: written out in 32-true, by autograd under autocast.
    """
    settings = ("trainer=gpu", f"trainer.precision={precision}", "data=landsat", "length=2000")
    first, second = (train(tmp_path / name, *settings) for name in "ab")
    assert first == second and len(first) > 100


@needs_gpu
def test_stacks_that_share_a_device_draw_what_each_draws_alone(tmp_path):
    """Under trainer.concurrent=2 on one GPU, stack 1 draws the samples of a separate run with `stack=1`."""
    small = ("data=landsat", "length=200", "chains=2", "trainer.deterministic=true")
    both = train(tmp_path / "both", "trainer=chains", "trainer.devices=1", "trainer.concurrent=2", *small)
    alone = train(tmp_path / "alone", "trainer=gpu", "trainer.precision=32-true", "stack=1", *small)
    mine = {k for k in alone if k.endswith("-1.safetensors") and k[0] == "0"}
    assert mine and all(both[k] == alone[k] for k in mine)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_one_chain_on_two_gpus(tmp_path):
    """ddp over NCCL: two runs agree to the bit. Ranks that disagree would end their run."""
    settings = ("trainer=ddp", "trainer.deterministic=true", "data=landsat", "length=200", "chains=2")
    assert train(tmp_path / "a", *settings) == train(tmp_path / "b", *settings)
