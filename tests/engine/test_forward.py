"""Many networks at once against each of them alone, in double precision."""

import copy

import pytest
import torch
from torch import nn

import bdl
from bdl.engine import forward, mlp_library
from bdl.engine.forward import TINY, Forward, mlp_layers
from bdl.models import MLP

EPS = torch.finfo(torch.float32).eps


class Tied(nn.Module):
    """One layer used twice, and one bias shared by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.out.bias = self.inside.bias

    def forward(self, x):
        return self.out(torch.tanh(self.inside(self.inside(x))))


def tied_sequential() -> nn.Sequential:
    layer, out = nn.Linear(4, 4), nn.Linear(4, 4)
    out.bias = layer.bias
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Dropout(0.5), out)


NETS = {
    "tanh": lambda: MLP((4, 7, 5, 3)),
    "relu": lambda: MLP((4, 7, 3), "relu"),
    "silu": lambda: MLP((4, 7, 3), "silu", dropout=0.5),
    "no bias": lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.ELU(inplace=True), nn.Linear(6, 2, bias=False)),
    "flat images": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 2)),
    "elementwise first": lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 3), nn.Softplus()),
    "tied": tied_sequential,
    "tied in a module": Tied,
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 2)),
}


def random_tensors(net: nn.Module, networks: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name, value in [*net.named_parameters(), *net.named_buffers()]:
        values = torch.randn(networks, *value.shape, generator=generator)
        tensors[name] = values.abs() + 0.1 if "var" in name else values if value.is_floating_point() else values.long()
    return tensors


def alone(net: nn.Module, tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """(k, n, ...) outputs of every network, one by one, in double precision."""
    copied, outputs = copy.deepcopy(net).double().eval(), []
    for i in range(len(next(iter(tensors.values())))):
        copied.load_state_dict({name: v[i] for name, v in tensors.items()}, strict=False)  # tied names come once
        outputs.append(copied(x.double()))
    return torch.stack(outputs).detach()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", ["auto", "loop", "vmap"])
def test_networks_together_give_what_each_gives_alone(name, method):
    torch.manual_seed(0)
    net = NETS[name]()
    tensors, x = random_tensors(net, 5), torch.randn(11, 4)
    kept = x.clone()
    values = {k: v.clone() for k, v in net.state_dict().items()}
    with torch.no_grad():
        outputs = Forward(net, method).evaluate(tensors, x)
    assert net.training and all(torch.equal(v, values[k]) for k, v in net.state_dict().items())
    assert torch.equal(x, kept)
    expected = alone(net, tensors, x.clone())
    # Sums of fewer than 10 products of normal numbers, three layers deep
    torch.testing.assert_close(outputs.double(), expected, atol=300 * EPS, rtol=100 * EPS)


def test_a_first_layer_that_works_in_place_leaves_the_inputs():
    net, x = nn.Sequential(nn.ELU(inplace=True), nn.Linear(4, 2)), torch.randn(5, 4)
    kept, tensors = x.clone(), random_tensors(net, 2)
    outputs = [Forward(net).evaluate(tensors, x) for _ in range(2)]
    assert torch.equal(x, kept) and torch.equal(*outputs)


def test_the_way_is_that_of_the_layers_and_the_device():
    ways = {name: Forward(build()).way(5) for name, build in NETS.items()}
    assert {name for name, way in ways.items() if way == "bmm"} == {
        n for n in NETS if mlp_layers(NETS[n]()) is not None
    }
    assert {ways[n] for n in ("tied in a module", "batch norm", "convolution")} == {"loop"}
    assert Forward(NETS["batch norm"]().to("meta")).way(5) == "vmap"


@pytest.mark.parametrize("x", [torch.randn(3, 6, 4), torch.randn(3, 2, 5, 4)], ids=["sequences", "grids"])
def test_inputs_with_more_axes_keep_them(x):
    net = MLP((4, 5, 2))
    tensors = random_tensors(net, 3)
    with torch.no_grad():
        outputs = Forward(net).evaluate(tensors, x)
    torch.testing.assert_close(outputs.double(), alone(net, tensors, x), atol=300 * EPS, rtol=100 * EPS)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.05, 0.1, 1.0, 30.0])
def test_tanh_is_exact_relative_to_the_size_of_the_activations(scale):
    """Small activations keep their digits: an absolute error of 2e-7 would be a fifth of activations of 1e-6."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh())
    x = scale * torch.linspace(-2, 2, 1001).unsqueeze(1)
    with torch.no_grad():
        outputs = Forward(net).evaluate({"0.weight": torch.ones(1, 1, 1)}, x)[0]
    exact = x.double().tanh()
    assert (outputs - exact).abs().max() <= 4 * EPS * min(1.0, exact.abs().max().item() / TINY)


def test_memory_bounds_how_many_networks_run_together(monkeypatch):
    """The largest activation of MLP 4-7-3 has 7 numbers per item, its outputs 3."""
    monkeypatch.setattr(forward, "LARGEST_CPU", 7 * 100)
    x = torch.zeros(10, 4)
    assert Forward(MLP((4, 7, 3))).together(x, 10) == 10
    assert Forward(MLP((4, 7, 3))).together(x, 100) == 2  # ten batches: the outputs of all are in memory
    assert Forward(MLP((4, 7, 3))).together(x, 10**6) == 1
    assert Forward(NETS["batch norm"]()).together(x, 10) == 11


@pytest.fixture
def by_library(monkeypatch):
    """Counts the calls of the compiled code."""
    if mlp_library.mlp_library() is None:
        pytest.skip("no C compiler")
    monkeypatch.setattr(mlp_library, "_evaluates", [True])  # a run of another test may have forbidden it
    calls, outputs_of = [], mlp_library.mlp_outputs
    monkeypatch.setattr(mlp_library, "mlp_outputs", lambda *a: calls.append(outputs_of(*a)) or calls[-1])
    return calls


@pytest.mark.parametrize("items", [1, 255, 256, 257, 600])
def test_small_mlps_are_evaluated_by_the_compiled_code(by_library, items):
    """Blocks of 256 items, the last one shorter; a layer and a bias that all networks share; Dropout at rest."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 9), nn.SiLU(), nn.Linear(9, 5, bias=False), nn.Tanh(), nn.Dropout())
    net.append(nn.Linear(5, 3))
    x, tensors = torch.randn(items, 2, 3), random_tensors(net, 4)
    stacked = {name: t for name, t in tensors.items() if name not in ("1.weight", "1.bias", "6.bias")}
    with torch.no_grad():
        outputs = Forward(net, shared=["1.weight", "1.bias", "6.bias"]).evaluate(stacked, x)
        assert torch.equal(by_library[0].mT, outputs) and net.training
    expected = alone(net, stacked, x)
    torch.testing.assert_close(outputs.double(), expected, atol=300 * EPS, rtol=100 * EPS)


def test_compiled_outputs_of_an_item_depend_on_no_other(by_library):
    net = MLP((4, 7, 3))
    x, tensors = torch.randn(300, 4), random_tensors(net, 3)
    with torch.no_grad():
        outputs = Forward(net).evaluate(tensors, x)
        part = Forward(net).evaluate({name: t[1:2] for name, t in tensors.items()}, x[200:271])
    assert torch.equal(part[0], outputs[1, 200:271]) and len(by_library) == 2


def test_networks_in_a_samplers_buffer_run_in_the_compiled_code(by_library):
    """The parameters of a chain are parts of one row there, so the networks of a stack do not lie one after another."""
    stack, x = bdl.ChainStack(MLP((4, 7, 3)), 3).eval(), torch.randn(300, 4)
    bdl.Sampler(stack.named_parameters(), bdl.SGHMC(), num_data=10, lr=0.1, chains=3)
    tensors = {name.removeprefix("net."): t.detach() for name, t in stack.named_parameters()}
    assert not any(t.is_contiguous() for t in tensors.values())
    with torch.no_grad():
        outputs = stack.broadcast(x)
        apart = Forward(MLP((4, 7, 3))).evaluate({name: t.clone() for name, t in tensors.items()}, x)
    assert torch.equal(by_library[0].mT, outputs) and torch.equal(outputs, apart)


@pytest.mark.parametrize("case", ["two threads", "gradients", "float64", "GELU", "transposed", "bmm", "forbidden"])
def test_what_compiled_code_does_not_run_is_evaluated_without_it(by_library, case, monkeypatch):
    net = MLP((4, 7, 3), activation="gelu" if case == "GELU" else "tanh")
    tensors, x = random_tensors(net, 2), torch.randn(5, 4)
    if case == "two threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    elif case == "forbidden":
        mlp_library.let_evaluate(False)
    elif case == "float64":
        tensors, x = {name: t.double() for name, t in tensors.items()}, x.double()
    elif case == "transposed":
        tensors["0.weight"] = tensors["0.weight"].mT.contiguous().mT
    with torch.set_grad_enabled(case == "gradients"):
        outputs = Forward(net, "bmm" if case == "bmm" else "auto").evaluate(tensors, x)
    assert not any(one is not None for one in by_library)
    torch.testing.assert_close(outputs.double(), alone(net, tensors, x), atol=300 * EPS, rtol=100 * EPS)
