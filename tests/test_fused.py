"""Functions that torch.compile fuses compute the same numbers, and run as they are where it fails.

The compiler's last part, which writes code, is tried by the slow tests; the others trace and differentiate alone.
"""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import bdl
from bdl import native
from bdl.errors import BdlWarning
from bdl.fused import TIMED, Fused
from bdl.samplers.noise import SOURCE
from bdl.torch_private import compiler_options

WRITES = [
    "aot_eager",
    pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.skipif(native.load(SOURCE) is None, reason="no C")]),
]
SAMPLERS = {str(d): d for d in (bdl.SGD(0.9), bdl.SGLD(), bdl.SGHMC(0.1), bdl.BAOAB(0.1), bdl.SGNHT(0.1, rate=None))}


@pytest.fixture
def backend(monkeypatch):
    """Let torch.compile use another backend, which takes no options of the usual one."""
    usual = torch.compile

    def choose(name: Any) -> None:
        other = lambda f, options=None, **more: usual(f, backend=name, **more)  # noqa: E731
        monkeypatch.setattr(torch, "compile", usual if name == "inductor" else other)

    yield choose
    torch._dynamo.reset()


def double(x: Tensor) -> Tensor:
    if x.ndim > 2:
        raise bdl.ConfigError("x has too many axes")
    return 2 * x


@pytest.mark.filterwarnings("error::bdl.BdlWarning")
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("writes", WRITES)
@torch.no_grad()
def test_a_fused_step_is_that_of_the_dynamics(name, writes, backend):
    """Three steps under other lr and tau, which no code is compiled for: the state is written in place.

    1e-5 is a hundred roundings; the thermostat divides by lr tau.
    """
    backend(writes)
    torch.manual_seed(0)
    dynamics: Any = SAMPLERS[name]
    start = torch.randn(3, 7)
    plain, fused = (dynamics.init(start.clone()) for _ in range(2))
    step = Fused(dynamics.step)
    for k in range(3):
        row, g, z = torch.tensor([0.1 * (k + 1), 0.01, 0, 0]), torch.randn(3, 7), torch.randn(3, 7)
        plain = dynamics.step(plain, g.clone(), row[0], row[1], z.clone())
        assert step(fused, g, row[0], row[1], z) is fused
    for field in vars(plain):
        torch.testing.assert_close(getattr(fused, field), getattr(plain, field), atol=1e-5, rtol=1e-5)


def test_each_shape_is_compiled_once_for_its_size_alone(backend):
    graphs: list[Any] = []
    backend(lambda graph, example: graphs.append(graph) or graph.forward)
    f = Fused(double)
    for n in (2, 3, 2, 4, 3):
        assert torch.equal(f(torch.ones(n)), torch.full((n,), 2.0))
    assert len(graphs) == 3


def test_more_functions_of_one_source_are_compiled_than_torch_counts(backend):
    """torch compiles eight at most of one code object, and under `fullgraph` then raises."""
    graphs: list[Any] = []
    backend(lambda graph, example: graphs.append(graph) or graph.forward)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BdlWarning)
        for n in range(12):
            Fused(double)(torch.ones(n + 1))
    assert len(graphs) == 12


def no_compiler(*_: Any) -> Any:
    raise RuntimeError("no C++\ncompiler here")


def test_if_compiling_fails_one_line_says_so_and_the_function_runs(backend):
    backend(no_compiler)
    f, x = Fused(double), torch.ones(2)
    with pytest.warns(BdlWarning, match="running without it: RuntimeError: no C\\+\\+ compiler here") as given:
        assert f(x).tolist() == [2, 2]
    assert len(given) == 1 and "\n" not in str(given[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(x).tolist() == [2, 2]


@torch.no_grad()
def test_a_function_that_waits_runs_once(backend):
    """It reads a number, which one piece of compiled code cannot; nothing has run when the compiler says so."""
    backend("aot_eager")

    def reads(total: Tensor) -> Tensor:
        total.add_(1)
        return total if float(total.sum()) > 0 else total.neg()

    total = torch.zeros(2)
    with pytest.warns(BdlWarning, match="torch.compile failed"):
        Fused(reads)(total)
    assert total.tolist() == [1, 1]


def test_a_wrong_call_is_not_the_compilers_fault(backend):
    backend("aot_eager")
    with pytest.raises(bdl.ConfigError, match="too many axes"):
        Fused(double)(torch.ones(1, 1, 1))


def test_memory_that_is_not_there_is_no_failure_of_the_compiler(monkeypatch):
    def full(f: Any, **_: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(torch, "compile", full)
    with pytest.raises(torch.OutOfMemoryError):
        Fused(double)(torch.ones(1))


def test_the_compiler_knows_what_forbids_it_to_measure():
    """Else a resumed run might have other kernels."""
    assert set(TIMED) <= compiler_options()


def test_a_copy_computes_the_same(backend):
    backend("aot_eager")
    f = Fused(double)
    f(torch.ones(1))
    assert copy.deepcopy(f)(torch.ones(2)).tolist() == [2, 2]
