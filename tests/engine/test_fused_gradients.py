"""Tests of `bdl.engine.choose` and `bdl.engine.gradient` where torch.compile fuses the kernels, and of whole runs.

On the simulated device a function that changes its results stands for compiled code: steps that were made without it
would differ.
"""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from simulated import Device
from test_fused import WRITES
from test_fused import backend as backend  # noqa: PLC0414 (a fixture)
from torch import Tensor, nn

import bdl
from bdl import fused
from bdl.data import TensorBatches
from bdl.engine import choose
from bdl.engine.choose import choose_gradient, of_stack
from bdl.engine.gradient import Autograd, InTurn, OnLeaves
from bdl.engine.mlp_gradient import MLPGradient
from bdl.models import MLP
from bdl.models.resnet import FilterResponseNorm

NLL = bdl.CategoricalNLL()
C = 3


def conv(norm: Any = nn.BatchNorm2d, dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), norm(4), nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(4 * 9, toys.K)
    )


def batch(shared: bool, *shape: int, n: int = 6) -> tuple[Tensor, Tensor]:
    """x (C, n, ...) and y (C, n), without C where the chains share a batch."""
    x = torch.randn(C, n, *shape, generator=torch.Generator().manual_seed(0))
    y = torch.arange(C * n).view(C, n) % toys.K
    return (x[0], y[0]) if shared else (x, y)


@pytest.fixture
def fusing(monkeypatch):
    """Fuse on the CPU too, where graphs are recorded as they run."""
    monkeypatch.setattr(choose, "FUSING", ("cpu", "cuda"))
    monkeypatch.setattr(choose, "recorder_for", lambda device: lambda work, streams: (work, work()))


STACKS = {
    "MLP": (lambda: MLP((3, 8, toys.K)), {}, (3,), OnLeaves),
    "MLP, one batch for all": (lambda: MLP((3, 8, toys.K)), {"shared": True}, (3,), OnLeaves),
    "other layers": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, toys.K)), {"method": "vmap"}, (3,),
        OnLeaves,
    ),
    "branches": (conv, {}, (1, 5, 5), InTurn),
    "branches, filter response norm": (functools.partial(conv, FilterResponseNorm), {}, (1, 5, 5), InTurn),
    "branches, one batch for all": (conv, {"shared": True}, (1, 5, 5), InTurn),
    "branches, a part": (conv, {"only": ["0.*", "5.*"]}, (1, 5, 5), InTurn),
}  # fmt: skip


@pytest.mark.filterwarnings("error::bdl.BdlWarning")
@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("writes", WRITES)
def test_fused_gradients_are_those_of_autograd(name, writes, backend, fusing):
    """Losses, gradients and running statistics after two steps; 1e-5 is a hundred roundings."""
    backend(writes)
    net, arguments, shape, kind = STACKS[name]
    torch.manual_seed(0)
    stack = bdl.ChainStack(net(), C, **arguments)
    other = copy.deepcopy(stack)
    x, y = batch(stack.shared, *shape)
    chosen, plain = choose_gradient(stack, NLL, True, graphs=True), of_stack(other, NLL)
    assert type(getattr(chosen, "_gradient", None)) is kind
    outs = [[torch.full_like(p, torch.nan) for p in g.params] for g in (chosen, plain)]
    losses: list[Tensor] = []
    for _ in range(2):
        losses = [g.write(*g.hold(x, y), out) for g, out in zip((chosen, plain), outs, strict=True)]
    found, expected = ([one, *out, *s.buffers()] for one, out, s in zip(losses, outs, (stack, other), strict=True))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_one_code_runs_all_networks_of_a_stack(backend, fusing):
    graphs: list[Any] = []
    backend(lambda graph, example: graphs.append(graph) or graph.forward)
    chosen = choose_gradient(bdl.ChainStack(conv(), C), NLL, True, graphs=True)
    out = [torch.empty_like(p) for p in chosen.params]
    for _ in range(2):
        chosen.write(*batch(False, 1, 5, 5), out)
    assert len(graphs) == 1


def test_who_fuses(simulated):
    """compile=true, a GPU, known layers, a likelihood; a trial of settings, which is short, does not."""
    mlp, cnn = (bdl.ChainStack(net, C).to("cuda") for net in (MLP((3, 4, toys.K)), conv()))
    kinds = lambda *a, **k: type(getattr(g := choose_gradient(*a, **k), "_gradient", g))  # noqa: E731
    assert kinds(mlp, NLL, True, graphs=True) is OnLeaves
    assert kinds(mlp, NLL, "auto", graphs=True) is kinds(mlp, NLL, False, graphs=True) is MLPGradient
    recorded: Any = [choose_gradient(cnn, NLL, compiled, graphs=True) for compiled in (True, "auto")]
    assert [r._gradient._fused is not None for r in recorded] == [True, False]
    dropout = bdl.ChainStack(conv(dropout=0.1), C).to("cuda")
    assert not choose.fuses(dropout, NLL, True, torch.device("cuda"))
    assert not choose.fuses(cnn, nn.CrossEntropyLoss(), True, torch.device("cuda"))
    assert not choose.fuses(cnn, NLL, True, torch.device("cpu"))
    assert isinstance(choose_gradient(cnn.to("cpu"), NLL, True, graphs=True), InTurn | Autograd)


STEPS = 40


def fit(folder: Path, net: nn.Module, *shape: int, steps: int = STEPS, callbacks: Any = (), **settings: Any):
    """The module after a run under compile=true, or after the rest of one."""
    torch.manual_seed(5)
    x, y = torch.randn(40, *shape, generator=torch.Generator().manual_seed(1)), torch.arange(40) % toys.K
    torch.manual_seed(3)
    module = toys.module(bdl.ChainStack(net, C, seed=2), C, num_data=40, **settings)
    module.compiled = True
    last = folder / "checkpoints" / "last.ckpt"
    callbacks = (bdl.SaveLast(last.parent, every=1000), *callbacks)
    toys.trainer(folder, steps, callbacks, max_epochs=-1).fit(
        module, TensorBatches(x, y, 8, chains=C), ckpt_path=last if last.exists() else None, weights_only=True
    )
    return module


def tensors(module: Any) -> list[Tensor]:
    return [t.cpu().clone() for t in (*module.sampler.chain.tensors(), *module.net.buffers())]


@pytest.mark.parametrize("writes", WRITES)
def test_a_fused_run_resumes_to_the_bit(writes, backend, monkeypatch, tmp_path):
    """On the CPU: 23 steps and 17 more are 40 steps, and those of a run that is not compiled to rounding."""
    backend(writes)
    monkeypatch.setattr(choose, "FUSING", ("cpu",))
    torch.manual_seed(0)
    net = conv()
    whole = tensors(fit(tmp_path / "whole", net, 1, 5, 5))
    fit(tmp_path / "parts", net, 1, 5, 5, steps=23)
    torch._dynamo.reset()  # as a new process does
    assert all(map(torch.equal, tensors(fit(tmp_path / "parts", net, 1, 5, 5)), whole))
    monkeypatch.setattr(choose, "FUSING", ())
    for a, b in zip(tensors(fit(tmp_path / "plain", net, 1, 5, 5)), whole, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-3)


class Marked:
    """Stands for `compile_alone`: what it makes has a loss, and a momentum, that is larger by a tenth."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, function: Any) -> Any:
        def marked(*args: Any) -> Any:
            self.calls += 1
            result = function(*args)
            if isinstance(result, Tensor):
                return 1.1 * result
            result.m.mul_(1.1)
            return result

        return marked


NETS = {"MLP": (lambda: MLP((3, 5, toys.K)), (3,)), "branches": (conv, (1, 5, 5))}


@pytest.mark.parametrize("sampler", [{}, {"weighting": bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=120.0, bins=10)}])
@pytest.mark.parametrize("name", NETS)
def test_single_steps_and_walks_are_fused_alike(name, sampler, simulated, monkeypatch, tmp_path):
    """Single steps, steps in graphs, and the first steps of blocks, which Lightning makes, have the same code.

    So have those of a resumed run, whose graphs begin elsewhere.
    """
    marked, (net, shape) = Marked(), NETS[name]
    monkeypatch.setattr(fused, "compile_alone", marked)
    torch.manual_seed(0)
    net = net()
    with Device.present().counted() as seen:
        walked = fit(tmp_path / "walks", net, *shape, **sampler)
    assert seen.launches and marked.calls
    others = [fit(tmp_path / "single", net, *shape, callbacks=[toys.EveryBatch()], **sampler)]
    fit(tmp_path / "parts", net, *shape, steps=23, **sampler)
    others.append(fit(tmp_path / "parts", net, *shape, **sampler))
    for other in others:
        for a, b in zip(tensors(other), tensors(walked), strict=True):
            torch.testing.assert_close(a, b, atol=2e-4, rtol=2e-4)
    monkeypatch.setattr(fused, "compile_alone", lambda function: function)
    assert not all(map(torch.allclose, tensors(fit(tmp_path / "unmarked", net, *shape, **sampler)), tensors(walked)))


def test_a_compiler_that_fails_leaves_the_run_of_the_default(simulated, monkeypatch, tmp_path):
    """A line for the gradient and one for the update; then walks in graphs."""

    def no_compiler(function: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(fused, "compile_alone", no_compiler)
    torch.manual_seed(0)
    net = conv()
    with pytest.warns(bdl.BdlWarning, match="running without it: RuntimeError: no compiler here"):
        failed = fit(tmp_path / "failed", net, 1, 5, 5)
    monkeypatch.setattr(fused, "compile_alone", lambda function: function)
    for a, b in zip(tensors(failed), tensors(fit(tmp_path / "whole", net, 1, 5, 5)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
