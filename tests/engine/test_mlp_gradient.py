"""Tests of `bdl.engine.mlp_gradient` and `.choose`.

The written-out chain rule against autograd, and where it steps back for autograd.
"""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import bdl
from bdl.engine import forward
from bdl.engine.choose import choose_gradient
from bdl.engine.forward import slow_at_tanh, tanh
from bdl.engine.gradient import Autograd, Gradient, InTurn
from bdl.engine.mlp_gradient import MLPGradient
from bdl.likelihoods import mean_loss
from bdl.models import MLP

D64, NLL = torch.float64, bdl.CategoricalNLL()
C, B, K = 3, 7, 4
ACTIVATIONS = {
    "tanh": nn.Tanh(),
    "relu": nn.ReLU(),
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "gelu, tanh": nn.GELU(approximate="tanh"),
    "elu": nn.ELU(0.7),
    "leaky": nn.LeakyReLU(0.2),
    "sigmoid": nn.Sigmoid(),
    "softplus": nn.Softplus(2.0, 1.0),
}
LOSSES = {
    "categorical": bdl.CategoricalNLL(),
    "gaussian": bdl.GaussianNLL(0.3),
    "heteroscedastic": bdl.HeteroscedasticNLL(),
    "contaminated": bdl.HeteroscedasticNLL(outliers=0.1),
    "heteroscedastic softplus": bdl.HeteroscedasticNLL("softplus"),
    "a loss of torch": nn.CrossEntropyLoss(label_smoothing=0.1),
}


def labels(loss) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if isinstance(loss, bdl.GaussianNLL | bdl.HeteroscedasticNLL):
        return torch.randn(C, B, K if isinstance(loss, bdl.GaussianNLL) else K // 2, generator=generator, dtype=D64)
    return torch.randint(K, (C, B), generator=generator)


def chosen(stack: bdl.ChainStack, loss=NLL) -> Gradient:
    return choose_gradient(stack, loss, compiled=False)


def gradient_of(stack: bdl.ChainStack, loss=NLL) -> MLPGradient:
    gradient = chosen(stack, loss)
    assert isinstance(gradient, MLPGradient)
    return gradient


def written(gradient: MLPGradient, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    out = [torch.empty_like(p) for p in gradient.params]
    return gradient.write(x, y, out), out


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_the_gradient_is_that_of_autograd(activation, loss):
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5), activation, nn.Linear(5, 5, bias=False), activation, nn.Identity()
    )
    stack = bdl.ChainStack(nn.Sequential(net, nn.Linear(5, K)), C, seed=3).double()
    x, y = torch.randn(C, B, 2, 3, dtype=D64), labels(loss)
    expected = mean_loss(loss, stack(x), y, C)
    expected.sum().backward()
    gradient = gradient_of(stack, loss)
    assert [id(p) for p in gradient.params] == [id(p) for p in stack.parameters()]
    for _ in range(2):  # the second call reuses the buffers of the first
        losses, gradients = written(gradient, x, y)
        torch.testing.assert_close(losses, expected.detach(), rtol=1e-12, atol=1e-12)
        for p, g in zip(gradient.params, gradients, strict=True):
            torch.testing.assert_close(g, p.grad, rtol=1e-10, atol=1e-12)


def test_batches_of_other_sizes_and_frozen_layers():
    stack = bdl.ChainStack(MLP((6, 5, 5, K)), C).double()
    layers = [m for m in stack.modules() if isinstance(m, nn.Linear)]
    layers[0].weight.requires_grad_(False)
    layers[0].bias.requires_grad_(False)
    layers[1].bias.requires_grad_(False)
    gradient = gradient_of(stack)
    assert len(gradient.params) == 3
    for size in (B, 2, B):
        x, y = torch.randn(C, size, 6, dtype=D64), torch.randint(K, (C, size))
        stack.zero_grad()
        mean_loss(bdl.CategoricalNLL(), stack(x), y, C).sum().backward()
        _, gradients = written(gradient, x, y)
        for p, g in zip(gradient.params, gradients, strict=True):
            torch.testing.assert_close(g, p.grad, rtol=1e-10, atol=1e-12)


def test_autograd_hands_known_gradients_on_and_scales_by_chain():
    stack = bdl.ChainStack(MLP((6, 5, K)), C).double()
    gradient, x, y = gradient_of(stack), torch.randn(C, B, 6, dtype=D64), torch.randint(K, (C, B))
    scale = torch.tensor([1.0, 2.0, -0.5], dtype=D64)
    (mean_loss(bdl.CategoricalNLL(), stack(x), y, C) * scale).sum().backward()
    expected = [p.grad.clone() for p in stack.parameters()]
    stack.zero_grad()
    (gradient.losses(x, y) * scale).sum().backward()
    for p, g in zip(stack.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("vendor", ["GenuineIntel", "AuthenticAMD"])
def test_tanh_by_the_sigmoid_differs_by_rounding_only(monkeypatch, vendor):
    monkeypatch.setattr(forward, "cpu", lambda: {"vendor_id": vendor})
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert slow_at_tanh(torch.ones(1)) == (vendor == "AuthenticAMD")
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.tensor([0.0, 1e-8, 1e-4, -1e-4, 100.0, -100.0])])
    assert (tanh(x.clone(), torch.empty_like(x)) - x.double().tanh()).abs().max() < 2e-7


def dropout() -> nn.Module:
    return MLP((6, 5, K), dropout=0.2)


def tied() -> nn.Module:
    layer = nn.Linear(5, 5)
    return nn.Sequential(nn.Linear(6, 5), layer, nn.Tanh(), layer, nn.Linear(5, K))


@pytest.mark.parametrize("net", [dropout(), tied(), nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5)), nn.Flatten()])
def test_other_networks_are_left_to_autograd(net):
    assert isinstance(chosen(bdl.ChainStack(net, C)), Autograd | InTurn)


def test_in_place_activations_that_need_inputs_go_to_autograd():
    assert isinstance(chosen(bdl.ChainStack(nn.Sequential(nn.Linear(6, 5), nn.SiLU(inplace=True)), C)), Autograd)


def test_dropout_in_eval_mode_passes_its_input_on():
    assert isinstance(chosen(bdl.ChainStack(dropout(), C).eval()), MLPGradient)


@pytest.mark.parametrize("watch", ["forward", "backward", "pre-forward", "tensor", "compiled", "parametrised"])
def test_a_network_that_somebody_watches_is_left_to_autograd(watch):
    stack = bdl.ChainStack(MLP((6, 5, K)), C)
    layer = next(m for m in stack.modules() if isinstance(m, nn.Linear))
    if watch == "forward":
        layer.register_forward_hook(lambda *_: None)
    elif watch == "pre-forward":
        layer.register_forward_pre_hook(lambda *_: None)
    elif watch == "backward":
        layer.register_full_backward_hook(lambda *_: None)
    elif watch == "tensor":
        layer.weight.register_hook(lambda g: 2 * g)
    elif watch == "compiled":
        stack.compile()
    else:
        parametrize.register_parametrization(layer, "weight", nn.Identity())
    assert isinstance(chosen(stack), Autograd | InTurn)


def test_the_method_that_the_user_chose_is_kept():
    assert isinstance(chosen(bdl.ChainStack(MLP((6, 5, K)), C, method="vmap")), Autograd)
    assert isinstance(chosen(bdl.ChainStack(MLP((6, 5, K)), C, method="bmm")), MLPGradient)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_gradient_of_categorical_likelihood_is_exact_far_out(transposed):
    """Logits of 1e4 neither overflow nor lose the gradient, in either layout of memory."""
    outputs = torch.tensor([[[0.0, 1e4, -1e4], [5.0, 5.0, 5.0]]], dtype=D64)
    if transposed:
        outputs = outputs.mT.contiguous().mT
    loss, gradient = bdl.CategoricalNLL().mean_and_gradient(outputs, torch.tensor([[0, 2]]))
    torch.testing.assert_close(loss, torch.tensor([(1e4 + torch.tensor(3.0).log().item()) / 2], dtype=D64))
    third = 1 / 6
    expected = torch.tensor([[[-0.5, 0.5, 0.0], [third, third, third - 0.5]]], dtype=D64)
    torch.testing.assert_close(gradient, expected)
