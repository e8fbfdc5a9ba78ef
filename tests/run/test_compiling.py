"""Compiled networks compute the same numbers; without a compiler they run uncompiled."""

import functools
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from repeats import slow_where
from running import whole
from torch import nn

import bdl
from bdl.engine import mlp_library
from bdl.errors import BdlWarning
from bdl.run.build import fuses_kernels
from bdl.run.machine import compile_if_possible
from bdl.run.stored import load_runs


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def no_compiler(*_):
    raise RuntimeError("no C++\ncompiler here")


@pytest.fixture
def backend(monkeypatch):
    def choose(name) -> None:
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=name))

    yield choose
    torch._dynamo.reset()


def outputs_and_gradients(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    outputs = net(x)
    outputs.square().mean().backward()
    return [outputs.detach(), *(p.grad for p in net.parameters()), *(b.clone() for b in net.buffers())]


@pytest.mark.parametrize("chains", slow_where(lambda chains: chains == 1, [1, 2]))
def test_a_compiled_stack_computes_the_same(backend, chains):
    backend("eager")
    x = torch.randn(chains, 4, 3, 5, 5)
    plain, compiled = (bdl.ChainStack(net(), chains) for _ in range(2))
    compile_if_possible(compiled)
    assert list(compiled.state_dict()) == list(plain.state_dict())
    for a, b in zip(outputs_and_gradients(plain, x), outputs_and_gradients(compiled, x), strict=True):
        assert torch.equal(a, b)


def test_the_network_is_compiled_once_and_not_for_evaluation(backend):
    """Evaluation uses other shapes, each of which would be compiled."""
    seen = []
    backend(lambda graph, _: seen.append(graph) or graph.forward)
    stack = bdl.ChainStack(net(), 1)
    compile_if_possible(stack)
    for n in (2, 3, 4):
        with torch.no_grad():
            stack(torch.randn(1, n, 3, 5, 5))
    assert not seen
    for _ in range(3):
        stack(torch.randn(1, 4, 3, 5, 5))
    assert len(seen) == 1


def test_if_compiling_fails_a_warning_is_given_and_network_runs(backend):
    backend(no_compiler)
    x = torch.randn(1, 4, 3, 5, 5)
    plain, compiled = (bdl.ChainStack(net(), 1) for _ in range(2))
    compile_if_possible(compiled)
    with pytest.warns(BdlWarning, match="running without it: RuntimeError: no C\\+\\+ compiler here") as given:
        uncompiled = outputs_and_gradients(compiled, x)
    assert len(given) == 1 and "\n" not in str(given[0].message)
    for a, b in zip(outputs_and_gradients(plain, x), uncompiled, strict=True):
        assert torch.equal(a, b)  # batch statistics updated once
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(x)


def test_a_wrong_call_is_not_the_compilers_fault(backend):
    backend("eager")
    stack = bdl.ChainStack(net(), 2)
    compile_if_possible(stack)
    with pytest.raises(bdl.ConfigError, match="2 chains need x of shape"):
        stack(torch.randn(3, 4, 3, 5, 5))


@pytest.mark.parametrize(
    ("settings", "fused"),
    [({}, True), ({"strategy": "ddp"}, False), ({"accelerator": "cpu"}, False), ({"compiled": "auto"}, False)],
    ids=str,
)
def test_compile_true_on_one_gpu_fuses_kernels_in_place_of_calls(settings, fused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    compute: Any = SimpleNamespace(**{"accelerator": "gpu", "strategy": "auto", "compiled": True} | settings)
    assert fuses_kernels(compute, bdl.ChainStack(net(), 2), bdl.CategoricalNLL()) == fused


@pytest.mark.parametrize(("compiled", "evaluates"), [("false", False), ("auto", True)])
def test_compile_false_reaches_the_evaluation_of_a_run(tmp_path, monkeypatch, compiled, evaluates):
    if mlp_library.mlp_library() is None:
        pytest.skip("no C compiler")
    calls, outputs_of = [], mlp_library.mlp_outputs
    monkeypatch.setattr(mlp_library, "_evaluates", [not evaluates])
    monkeypatch.setattr(mlp_library, "mlp_outputs", lambda *a: calls.append(outputs_of(*a)) or calls[-1])
    whole(tmp_path, "threads=1", f"compile={compiled}")
    assert bool(calls) == evaluates
    calls.clear()
    mlp_library.let_evaluate(not evaluates)
    posterior, _ = load_runs([tmp_path], (), "cpu")
    posterior.predict(torch.zeros(3, 36))
    assert bool(calls) == evaluates
