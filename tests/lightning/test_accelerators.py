"""What an accelerator would break, on the simulated one: memory, moves between devices, what a graph cannot hold."""

from __future__ import annotations

import copy
import functools
import warnings

import pytest
import torch
import toys
from simulated import Device
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.data import TensorBatches, TensorSlices
from bdl.data.loader import WorkerBatches
from bdl.engine import forward
from bdl.models import MLP

C = 3


def conv() -> nn.Module:
    """Its largest activation has 8 x 6 x 6 numbers an image."""
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))


def images(n: int = 40) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(n, 1, 8, 8, generator=draw), torch.arange(n) % 3


class Steps:
    """A plain loop over a stack of MLPs, on the device where the stack is."""

    def __init__(self, device: str = "cpu", dynamics=None, **settings):
        self.stack = bdl.ChainStack(MLP((toys.D, 5, toys.K)), C, seed=1).to(device)
        arguments = {"num_data": toys.N, "lr": 0.05, "chains": C} | settings
        self.sampler = bdl.Sampler(self.stack.named_parameters(), dynamics or bdl.SGHMC(0.1), **arguments)

    def go(self, steps: int) -> Steps:
        x, y = (t.to(next(self.stack.parameters()).device) for t in toys.tensors())
        for _ in range(steps):
            self.sampler.step(functools.partial(self.losses, x, y))
        return self

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        self.sampler.zero_grad()
        each = bdl.CategoricalNLL()(self.stack.broadcast(x), y.expand(C, -1)).mean(-1)
        each.sum().backward()
        return each


@pytest.mark.parametrize("method", ["loop", "vmap"])
def test_a_full_energy_runs_batches_that_fit(method, simulated, monkeypatch, tmp_path):
    """Three networks with 288 numbers an image, at most 2,000 at once: 6 images by the loop, 2 by vmap."""
    monkeypatch.setattr(forward, "LARGEST_GPU", 2000)
    module = toys.module(bdl.ChainStack(conv(), C, method=method), C, lr=0.01)
    sizes: list[int] = []
    inner = module.net.broadcast
    monkeypatch.setattr(module.net, "broadcast", lambda x: sizes.append(len(x)) or inner(x))
    keep = bdl.CollectSamples(bdl.schedules.EveryStep(0, 1), tmp_path)
    toys.trainer(tmp_path, 2, [keep]).fit(module, TensorBatches(*images(), 10, chains=C))
    sizes.remove(1)  # the item whose outputs are counted when training starts
    assert set(sizes) == ({6, 4} if method == "loop" else {2}) and sum(sizes) == 80
    after = module.sampler.full_energy()  # training has ended, and Lightning has moved the network to the CPU
    assert after.device.type == "cpu" and after.isfinite().all()


def test_predictions_run_batches_that_fit(simulated, monkeypatch, tmp_path):
    """They agree with the CPU's, and the CPU's batches stay as they are."""
    x, y = images()
    module = toys.module(bdl.ChainStack(conv(), C), C, lr=0.01)
    keep = bdl.CollectSamples(bdl.schedules.EveryStep(0, 1), tmp_path, full_energy=False)
    toys.trainer(tmp_path, 3, [keep]).fit(module, TensorBatches(x, y, 10, chains=C))
    monkeypatch.setattr(forward, "LARGEST_GPU", 2000)
    slices, there = TensorSlices(x, y), TensorSlices(x, y)
    here = bdl.Posterior.load(tmp_path, conv()).predict(slices)
    gpu = bdl.Posterior.load(tmp_path, conv().to("cuda")).predict(there)
    torch.testing.assert_close(gpu.probs, here.probs, atol=1e-5, rtol=1e-5)
    assert (slices.batch_size, there.batch_size) == (4096, 6)


def test_files_are_not_read_one_by_one_for_an_accelerator():
    """Images on disk lie on no device: 224 x 224 pixels are one image a batch on a CPU."""
    x, y = torch.zeros(4, 3, 224, 224, dtype=torch.uint8), torch.zeros(4)
    assert TensorSlices(x, y).batch_size == 1 and TensorSlices(x, y).bound(83).batch_size == 83


@pytest.mark.parametrize(
    "settings",
    [
        {"prior": bdl.Gaussian("he")},
        {"prior": bdl.Laplace("he")},
        {"prior": bdl.StudentT(3.0, "he")},
        {"blocks": {"*.weight": bdl.Block(prior=bdl.Gaussian("fan_in"), lr_factor=2.0)}},
        {"dynamics": bdl.SGHMC(0.1, grad_var=torch.full((toys.D * 5 + 5 + 5 * toys.K + toys.K,), 0.1).tolist())},
    ],
    ids=["Gaussian", "Laplace", "Student-t", "blocks", "variance"],
)
def test_what_has_a_number_per_coordinate_moves_with_parameters(settings, simulated):
    """Nothing is copied to the device in a step after the first, and the chain is that of the CPU at T = 0."""
    moved, stayed = (Steps(temperature=0.0, **settings).go(2) for _ in range(2))
    moved.stack.to("cuda")
    moved.go(1)
    x, y = (t.to("cuda") for t in toys.tensors())
    with simulated.counted() as seen:
        for _ in range(2):
            moved.sampler.step(functools.partial(moved.losses, x, y))
    assert not seen.copies and not seen.waits, seen
    torch.testing.assert_close(moved.sampler.chain.theta.cpu(), stayed.go(3).sampler.chain.theta, atol=1e-5, rtol=1e-5)


def test_a_chain_back_on_a_device_does_not_repeat_its_noise(simulated):
    """Device, CPU, device, by saved states. Without a new stream the third part would draw the noise of the first."""
    draws: list[Tensor] = []
    state, values = None, None
    for device in ("cuda", "cpu", "cuda"):
        part = Steps(device)
        if state is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", bdl.BdlWarning)
                part.sampler.load_state_dict(state)
            part.stack.load_state_dict(values)
        part.go(2)
        draws.append(part.sampler.chain.z.cpu().clone())
        state = copy.deepcopy(part.sampler.state_dict())
        values = {k: v.cpu() for k, v in part.stack.state_dict().items()}
    assert not torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[1])
    assert state["bdl"]["chain"]["step"] == 6


@pytest.mark.parametrize("dynamics", [bdl.HMC(2), bdl.MCLMC()], ids=str)
def test_gradients_of_other_parameters_are_told_before_writing(dynamics, simulated):
    """The host does not look at the parameters before each step. A loaded state begins anew."""
    chain = Steps("cuda", dynamics).go(5)
    good, values = copy.deepcopy(chain.sampler.state_dict()), copy.deepcopy(chain.stack.state_dict())
    with torch.no_grad():
        for p in chain.stack.parameters():
            p.add_(1.0)
    chain.go(2)
    with pytest.raises(bdl.ConfigError, match="changed the parameters between two steps"):
        chain.sampler.state_dict()
    chain.stack.load_state_dict(values)
    chain.sampler.load_state_dict(good)
    assert chain.go(3).sampler.state_dict()["bdl"]["chain"]["step"] == 8


def test_another_gpu_is_named_when_a_run_is_resumed(simulated, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    state = Steps("cuda").go(1).sampler.state_dict()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    with pytest.warns(bdl.BdlWarning, match=r"GPU A100 -> H100\): the chain continues, but not bit for bit"):
        Steps("cuda").sampler.load_state_dict(state)


@pytest.mark.parametrize("compiled", ["auto", True])
def test_work_that_cannot_be_captured_runs_kernel_by_kernel(compiled, simulated, monkeypatch, tmp_path):
    """A prior that reads a number waits inside the capture. compile=true ends the run, auto warns once and goes on."""
    module = toys.module(chains=C, prior=Reads(1.0), weighting=bdl.AdaptiveWeight(low=0.0, high=99.0))
    module.compiled = compiled
    trainer = toys.trainer(tmp_path, 12, max_epochs=-1)
    if compiled is True:
        with pytest.raises(bdl.ConfigError, match="cannot be recorded as a CUDA graph"):
            trainer.fit(module, toys.batches(C, 1))
        return
    with pytest.warns(bdl.BdlWarning, match="cannot be recorded as a CUDA graph .*run one by one") as told:
        trainer.fit(module, toys.batches(C, 1))
    assert module.sampler.steps == 12 and len([w for w in told if "CUDA graph" in str(w.message)]) == 1


class Reads(bdl.Gaussian):
    """A prior of somebody else, whose energy reads the device."""

    def energy(self, theta):
        assert float(theta.square().sum()) >= 0
        return super().energy(theta)


@pytest.mark.parametrize("loss", [bdl.CategoricalNLL(), nn.CrossEntropyLoss()], ids=["likelihood", "torch"])
@pytest.mark.parametrize("kind", ["batches", "workers", "loader", "tokens"])
def test_a_class_that_network_lacks_is_named_before_first_step(kind, loss, simulated, tmp_path, monkeypatch):
    """A GPU would tell it by an error of its driver in the first step; no step is made."""
    x, y = toys.tensors()
    y[7] = toys.K
    net, chains = nn.Linear(toys.D, toys.K), None if kind == "loader" else C
    if kind == "tokens":
        classes_last = isinstance(loss, bdl.CategoricalNLL)
        x, y = x[:, None].expand(-1, 4, -1), y[:, None].repeat(1, 4)
        y[:, 1] = -100  # padding
        net = nn.Sequential(net, nn.Identity() if classes_last else Swapped())
    data = TensorBatches(x, y, 10, chains=chains)
    if kind == "loader":
        data = DataLoader(TensorDataset(x, y), batch_size=10)
    elif kind == "workers":
        data = WorkerBatches(data, 0)
    module = toys.module(net, chains, loss=loss, num_data=y.numel())
    monkeypatch.setattr(bdl.BayesianModule, "training_step", lambda *_: pytest.fail("a step"))
    with pytest.raises(bdl.ConfigError, match="none of the 3 classes"):
        toys.trainer(tmp_path, 2).fit(module, data)


class Swapped(nn.Module):
    def forward(self, outputs):
        return outputs.movedim(-1, 1)


def test_parameters_in_parts_on_several_devices_are_refused():
    class DTensor(nn.Parameter):
        device_mesh = "two devices"

    with pytest.raises(bdl.ConfigError, match="DTensor, which lies in parts on several devices"):
        bdl.Sampler([DTensor(torch.zeros(3))], bdl.SGLD(), num_data=1, lr=0.1)


def test_a_thread_draws_the_next_epoch_for_an_accelerator(simulated):
    """Batches are those of the CPU, also after a jump to another epoch; and nothing waits."""
    x, y = toys.tensors()
    cpu, gpu = (TensorBatches(x, y, 10, chains=C, seed=3).to(device) for device in ("cpu", "cuda"))
    with simulated.counted() as seen:
        there = [gpu.at(*at) for at in ((0, 0), (0, 3), (1, 2), (5, 1), (6, 0))]
    assert not seen.waits and gpu._ahead[0] == 7 and cpu._ahead is None
    for (a, b), at in zip(there, ((0, 0), (0, 3), (1, 2), (5, 1), (6, 0)), strict=True):
        assert torch.equal(a.cpu(), cpu.at(*at)[0]) and torch.equal(b.cpu(), cpu.at(*at)[1])
    assert torch.equal(copy.deepcopy(gpu).at(2, 0)[1].cpu(), cpu.at(2, 0)[1])


def test_memory_is_pinned_for_gpus_alone(monkeypatch):
    """A run on the CPU of a machine with a GPU pins nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    loader = WorkerBatches(toys.batches(C))
    assert [copy.copy(loader.to(device))._pins for device in ("cpu", "mps", "cuda:1")] == [False, False, True]


def test_the_device_is_strict():
    """Negative controls: what an accelerator refuses, the simulated one refuses."""
    with Device("cuda") as device:
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        with pytest.raises(RuntimeError, match="Expected all tensors on cuda:0"):
            there + here
        with pytest.raises(RuntimeError, match="generator"):
            there.normal_(generator=torch.Generator())
        assert (there + torch.tensor(2.0)).tolist() == [3.0] * 3
        graph = torch.cuda.CUDAGraph()
        for work in (lambda: there.sum().item(), lambda: there.normal_(), lambda: there + torch.tensor(2.0)):
            with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(graph):
                work()
        with device.counted() as seen:
            there[there > 0]
            there.cpu()
            torch.ones(3).to("cuda", non_blocking=True)
        assert seen.waits.total() == 2 and seen.copies.total() == 1
    with Device("mps:0"), pytest.raises(TypeError, match="MPS has no float64"):
        torch.ones(3, device="mps:0").double()
