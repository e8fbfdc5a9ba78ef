"""Tests of `bdl.engine.choose`, `.single_norms` and `gradient.OnLeaves`: which gradients a graph holds, and how."""

import pytest
import torch
import toys
from tape import Tapes
from torch import nn
from torchvision.ops import Conv2dNormActivation
from torchvision.transforms import ColorJitter

import bdl
from bdl.engine.choose import choose_gradient, of_stack
from bdl.engine.functional import on_leaves
from bdl.engine.gradient import Autograd, OnLeaves
from bdl.engine.recorded import Recorded
from bdl.engine.single_norms import SingleNorms, single_norms
from bdl.models import GPT, MLP, ResNet, WideResNet

NLL = bdl.CategoricalNLL()


class Strangers(nn.Sequential):
    """A class of somebody else, whose forward may do anything."""


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    net[1].register_forward_hook(lambda *_: None)
    return net


@pytest.fixture
def on_a_device(monkeypatch):
    """A machine whose device has graphs."""
    monkeypatch.setattr("bdl.engine.choose.recorder_for", lambda device: Tapes())


@pytest.mark.parametrize(
    "net",
    [
        ResNet(8),
        WideResNet(10, 1),
        GPT(5, 4, 8, 1, 2),
        Conv2dNormActivation(3, 4),
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    ],
    ids=lambda net: type(net).__name__,
)
def test_networks_of_known_layers_are_recorded(net, on_a_device):
    stack = bdl.ChainStack(net, 2, method="vmap")
    for casts in (False, True):
        chosen = choose_gradient(stack, NLL, graphs=True, casts=casts)
        assert type(chosen) is Recorded and type(chosen._gradient) is OnLeaves
    assert type(choose_gradient(stack, NLL)) is Autograd  # graphs were not asked for
    assert type(choose_gradient(stack, NLL, compiled=False, graphs=True)) is Autograd


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Dropout(0.1), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.RReLU(), nn.Linear(4, 3)),
        nn.Sequential(ColorJitter(0.5), nn.Conv2d(3, 4, 1)),
        GPT(5, 4, 8, 1, 2, dropout=0.1),
        Strangers(nn.Linear(3, 3)),
        hooked(),
    ],
    ids=["dropout", "random slopes", "random colours", "attention's dropout", "a stranger's class", "a hook"],
)
def test_networks_that_may_differ_between_steps_are_not_recorded(net, on_a_device):
    assert type(choose_gradient(bdl.ChainStack(net, 2, method="vmap"), NLL, graphs=True)) is Autograd


def test_torch_compiled_networks_and_unknown_losses_not_recorded(on_a_device):
    stack = bdl.ChainStack(ResNet(8), 1)
    assert type(choose_gradient(stack, nn.CrossEntropyLoss(), graphs=True)) is Autograd
    stack.compile(backend="eager")
    assert type(choose_gradient(stack, NLL, graphs=True)) is Autograd


def test_mixed_precision_is_autograds_also_for_an_mlp(on_a_device):
    stack = bdl.ChainStack(MLP((3, 5, 3)), 2)
    assert type(choose_gradient(stack, NLL, graphs=True, casts=True)._gradient) is OnLeaves
    assert not isinstance(choose_gradient(stack, NLL, graphs=True)._gradient, OnLeaves)


def test_leaves_have_the_gradients_and_leave_parameters_alone():
    stack = bdl.ChainStack(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.SiLU(), nn.Linear(4, 3)), 2)
    x, y = (t.view(2, 20, *t.shape[1:]) for t in toys.tensors())
    by_autograd = of_stack(stack, NLL)
    params = list(stack.parameters())
    results = []
    for gradient in (by_autograd, OnLeaves(by_autograd, stack)):
        for p in params:
            p.grad = None
        out = [torch.full_like(p, torch.nan) for p in params]
        results.append([gradient.write(x, y, out), *out])
    assert all(map(torch.equal, *results))
    assert all(p.grad is None for p in params) and list(map(id, stack.parameters())) == list(map(id, params))
    with pytest.raises(KeyError), on_leaves(stack, params[:1]) as (leaf,):
        assert next(stack.parameters()) is leaf and leaf.data_ptr() == params[0].data_ptr()
        raise KeyError
    assert next(stack.parameters()) is params[0]


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_computes_in_single_precision_under_vmap(training, monkeypatch):
    """Outputs keep their type; they and the gradients are those of the float32 network on the same inputs."""
    stack = bdl.ChainStack(nn.Sequential(nn.Flatten(1), nn.BatchNorm1d(3)), 2, method="vmap").train(training)
    x = toys.tensors()[0].view(2, 20, 3).bfloat16().requires_grad_()
    exact = stack(x.float())
    (expected,) = torch.autograd.grad(exact.square().sum(), x, retain_graph=True)
    seen, kernel = set(), torch.batch_norm
    monkeypatch.setattr(torch, "batch_norm", lambda x, *args: seen.add(x.dtype) or kernel(x, *args))
    with SingleNorms():
        outputs = stack(x)
    assert seen == {torch.float32}
    assert outputs.dtype == torch.bfloat16
    torch.testing.assert_close(outputs, exact.bfloat16())
    torch.testing.assert_close(torch.autograd.grad(outputs.square().sum(), x)[0], expected, atol=0.1, rtol=0.05)


def test_norms_that_compute_in_single_precision_are_left_alone():
    """On a CPU, without mixed precision, and in a network without them."""
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    with torch.autocast("cpu", torch.bfloat16):
        assert not isinstance(single_norms(ResNet(8), cpu), SingleNorms)
    assert not isinstance(single_norms(ResNet(8), gpu), SingleNorms)
