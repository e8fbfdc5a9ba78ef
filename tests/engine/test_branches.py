"""Tests of `bdl.engine.branches`: convolutional networks of a stack side by side in one graph, on the simulated device.

Its streams are strict: memory that two of them touch in an order that is left to chance is an error, see `streams`.
"""

import copy
import functools
from pathlib import Path

import accelerated
import pytest
import torch
import toys
from torch import Tensor, nn

import bdl
from bdl.data import TensorBatches
from bdl.engine.branches import Branches
from bdl.engine.choose import choose_gradient, of_stack
from bdl.engine.gradient import Autograd, InTurn, OnLeaves
from bdl.engine.mlp_gradient import MLPGradient
from bdl.engine.recorded import Recorded
from bdl.models import MLP
from bdl.models.resnet import FilterResponseNorm

NLL = bdl.CategoricalNLL()


def conv(norm=nn.BatchNorm2d, dropout: float = 0.0) -> nn.Module:
    drop = (nn.Dropout(dropout),) if dropout else ()
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm(4), nn.ReLU(), *drop, nn.Flatten(), nn.Linear(4 * 9, 3))


def images(chains: int, n: int = 6, shared: bool = False) -> tuple[Tensor, Tensor]:
    """x (C, n, 1, 5, 5) and y (C, n), without C where the chains share a batch."""
    x = torch.randn(chains, n, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(chains * n).view(chains, n) % 3
    return (x[0], y[0]) if shared else (x, y)


def steps(gradient, x: Tensor, y: Tensor, count: int = 4) -> list[Tensor]:
    """Losses and gradients of the last of several steps. The second one is recorded, where there are graphs."""
    out = [torch.full_like(p, torch.nan) for p in gradient.params]
    for _ in range(count):
        here = gradient.hold(x, y)
        work = functools.partial(gradient.write, *here, out)
        losses = work() if gradient.launch is None else gradient.launch(work, "step", ())
    return [t.cpu() for t in (losses, *out)]


STACKS = {
    "batch norm": ({}, conv),
    "filter response norm": ({}, functools.partial(conv, FilterResponseNorm)),
    "one batch for all": ({"shared": True}, conv),
    "part": ({"only": ["0.*", "4.*"]}, conv),
    "part whose statistics move": ({"only": ["0.*", "4.*"], "frozen": "train"}, conv),
}


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("chains", [2, 10])
def test_branches_are_a_loop(name, chains, simulated):
    """Losses, gradients and running statistics after four steps, three of which are launches of a graph."""
    arguments, net = STACKS[name]
    torch.manual_seed(0)
    there = bdl.ChainStack(net(), chains, **arguments).to("cuda")
    x, y = (t.to("cuda") for t in images(chains, shared=there.shared))
    loop = copy.deepcopy(there)
    loop.method = "loop"
    chosen = choose_gradient(there, NLL, graphs=True)
    assert isinstance(chosen, Recorded) and isinstance(chosen._gradient, InTurn)
    expected = steps(of_stack(loop, NLL), x, y)
    with simulated.counted() as seen:
        found = steps(chosen, x, y)
    assert seen.launches == 3 and len(simulated.streams.all) == 1 + min(chains, 8)  # whose memory is bounded
    for a, b in zip([*found, *there.buffers()], [*expected, *loop.buffers()], strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu())


def test_mixed_precision_casts_the_forward_pass_alone(monkeypatch):
    """In bf16 the branches have the losses and gradients of autograd, whose backward pass casts nothing by itself."""
    monkeypatch.setattr("bdl.engine.choose.recorder_for", lambda device: lambda work, streams: (work, work()))
    torch.manual_seed(0)
    stack = bdl.ChainStack(conv(FilterResponseNorm), 3, method="branches")
    autograd = of_stack(stack, NLL)
    autograd.context = lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
    casting: list[bool] = []
    chosen = choose_gradient(stack, NLL, autograd=autograd, graphs=True, casts=True)
    assert isinstance(chosen._gradient, InTurn)
    with monkeypatch.context() as patch:
        backward = torch.Tensor.backward
        patch.setattr(Tensor, "backward", lambda t: casting.append(torch.is_autocast_enabled("cpu")) or backward(t))
        found = steps(chosen, *images(3))
    assert casting and not any(casting)
    for a, b in zip(found, steps(autograd, *images(3)), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=1e-4)


class Stranger(nn.Conv2d):
    """A layer of another package, as peft's adapters are."""


KINDS = {
    "convolutions": (conv(), {}, InTurn),
    "one batch for all": (conv(), {"shared": True}, InTurn),
    "one chain": (conv(), {"chains": 1}, OnLeaves),
    "convolutions that chains have in common": (conv(), {"only": ["4.*"]}, OnLeaves),
    "a common part that one batch passes once": (conv(), {"only": ["0.*"], "shared": True}, OnLeaves),
    "an MLP": (MLP((3, 4, 3)), {}, MLPGradient),
    "other layers": (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3)), {}, OnLeaves),
    "a layer of another package": (nn.Sequential(Stranger(1, 4, 3), nn.Flatten(), nn.Linear(36, 3)), {}, Autograd),
    "vmap is asked for": (conv(), {"method": "vmap"}, OnLeaves),
    "branches are asked for": (MLP((3, 4, 3)), {"method": "branches"}, InTurn),
    "dropout": (conv(dropout=0.1), {}, Autograd),
}


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_network_chooses(name, casts, simulated):
    """Not a clock. Dropout draws, so that no graph holds it, and it stays with vmap."""
    net, arguments, kind = KINDS[name]
    stack = bdl.ChainStack(net, **{"chains": 3, **arguments}).to("cuda")
    chosen = choose_gradient(stack, NLL, graphs=True, casts=casts)
    inner = chosen._gradient if isinstance(chosen, Recorded) else chosen
    assert type(inner) is (OnLeaves if casts and kind is MLPGradient else kind)
    on_cpu = choose_gradient(stack.to("cpu"), NLL, graphs=True)
    assert not isinstance(on_cpu, Recorded)


def test_networks_one_after_another_are_recorded_too(simulated):
    chosen = choose_gradient(bdl.ChainStack(conv(), 3, method="loop").to("cuda"), NLL, graphs=True)
    assert isinstance(chosen, Recorded) and isinstance(chosen._gradient, InTurn)
    steps(chosen, *(t.to("cuda") for t in images(3)))
    assert len(simulated.streams.all) == 1


def test_what_no_branch_can_hold_is_refused_in_one_line(simulated):
    stack = bdl.ChainStack(conv(dropout=0.1), 3, method="branches").to("cuda")
    with pytest.raises(bdl.ConfigError, match='no dropout.*use method="auto"$') as error:
        choose_gradient(stack, NLL, graphs=True)
    assert "\n" not in str(error.value)
    assert isinstance(choose_gradient(stack, NLL), InTurn)  # trials of settings have no graphs


STEPS = 24


def fit(
    folder: Path, *callbacks, steps: int = STEPS, method="auto", seed: int = 5, every: int = 6, **settings
) -> list[Tensor]:
    """What a run, or the rest of one, leaves. Its weighting reads the energy of every step."""
    torch.manual_seed(seed)
    x, y = torch.randn(40, 1, 5, 5, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3
    torch.manual_seed(3)
    stack = bdl.ChainStack(conv(), 3, method=method, seed=2)
    weighting = bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=120.0, bins=10)
    module = toys.module(stack, 3, weighting=weighting, **settings)
    last = folder / "checkpoints" / "last.ckpt"
    keep = bdl.CollectSamples(bdl.schedules.EveryStep(0, every), folder, full_energy=False)
    callbacks = (keep, bdl.SaveLast(last.parent, every=1000), *callbacks)
    toys.trainer(folder, steps, callbacks, max_epochs=-1).fit(
        module, TensorBatches(x, y, 8, chains=3), ckpt_path=last if last.exists() else None, weights_only=True
    )
    return [t.cpu().clone() for t in (*module.sampler.chain.tensors(), *stack.buffers())]


def test_a_run_in_branches_resumes_to_the_bit(simulated, tmp_path):
    """14 steps and 10 more are 24 steps; at T = 0 they are those of a loop, to rounding."""
    whole = fit(tmp_path / "whole")
    assert len(simulated.streams.all) == 4
    fit(tmp_path / "parts", steps=14)
    assert all(map(torch.equal, fit(tmp_path / "parts", seed=6), whole))
    files = [{p.name: p.read_bytes() for p in (tmp_path / run).glob("samples/0*")} for run in ("whole", "parts")]
    assert files[0] == files[1] and len(files[0]) == 4
    branches, loop = (fit(tmp_path / m, method=m, temperature=0.0) for m in ("auto", "loop"))
    for a, b in zip(branches, loop, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_step_in_branches_is_one_launch_and_waits_for_nothing(simulated, tmp_path):
    window = accelerated.Window(8, 18)
    fit(tmp_path, window, every=STEPS)
    assert window.launches == 2 and not window.seen.waits, window.seen  # the second graph is the weighting's


def run(work, pieces: int = 2) -> None:
    """Record pieces of work(i) in branches."""
    branches, graph = Branches(torch.device("cuda")), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), branches.fork(pieces) as branch:
        for i in range(pieces):
            with branch(i):
                work(i)


def test_branches_that_touch_one_tensor_are_seen(simulated):
    """Parts of one tensor may be written side by side, and all may read what was there before."""
    source, out = torch.ones(4, device="cuda"), torch.zeros(2, 4, device="cuda")
    run(lambda i: out[i].add_(source))
    for work in (lambda i: out[0].add_(1), lambda i: out[0].add_(1) if i else out.sum(), lambda i: source.mul_(out[i])):
        with pytest.raises(RuntimeError, match="race: .* touch the same memory on two streams"):
            run(work)
    run(lambda i: out[0].add_(1), pieces=1)  # nothing beside it


def test_branches_that_are_not_joined_are_seen(simulated, monkeypatch):
    out = torch.zeros(2, 4, device="cuda")
    for side, message in ((True, "unjoined work"), (False, "does not know")):
        stream = torch.cuda.Stream()
        with pytest.raises(RuntimeError, match=message), torch.cuda.graph(torch.cuda.CUDAGraph()):
            if side:
                stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                out.add_(1)


def test_a_branch_that_begins_too_early_is_seen(simulated, monkeypatch):
    """Without the wait at the fork, a branch would read the batch while it is still being copied."""
    source, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    stream = torch.cuda.Stream()
    source.mul_(2)
    with pytest.raises(RuntimeError, match="race"), torch.cuda.stream(stream):
        out.add_(source)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out.add_(source)
