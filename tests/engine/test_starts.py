"""Tests of `bdl.engine.stack` and `.forward`.

ChainStack: hooks are called, and starts that would be equal are refused.
"""

import copy
import types

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import bdl
from bdl.errors import BdlWarning, ConfigError

C = 3


def double(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
    return 2 * output


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_of_a_linear_layer_are_called(when):
    net, x = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)), torch.ones(C, 4, 2)
    plain = bdl.ChainStack(net, C)(x)
    if when == "before":
        net[2].register_forward_hook(double)
        torch.testing.assert_close(bdl.ChainStack(net, C)(x), 2 * plain)
        with pytest.raises(ConfigError, match="has others or hooks"):
            bdl.ChainStack(net, C, method="bmm")
    else:
        stack, fixed = bdl.ChainStack(net, C), bdl.ChainStack(net, C, method="bmm")
        for one in (stack, fixed):
            one.net[2].register_forward_hook(double)
        torch.testing.assert_close(stack(x), 2 * plain)
        with pytest.raises(ConfigError, match="has others or hooks"):
            fixed(x)


@pytest.mark.parametrize("kind", ["a forward of its own", "a hook of all modules"])
def test_what_replaces_a_layers_forward_is_called(kind):
    net, x = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)), torch.ones(C, 4, 2)
    stack = bdl.ChainStack(net, C)
    plain = stack(x)
    if kind == "a hook of all modules":
        hook = nn.modules.module.register_module_forward_hook(
            lambda module, *rest: double(module, *rest) if getattr(module, "out_features", 0) == 2 else None
        )
        torch.testing.assert_close(stack(x), 2 * plain)
        hook.remove()
    else:
        layer = stack.net[2]
        layer.forward = types.MethodType(lambda self, h: 2 * nn.Linear.forward(self, h), layer)
        torch.testing.assert_close(stack(x), 2 * plain)


def test_predictions_call_hooks_too():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    assert bdl.engine.forward.mlp_layers(net) is not None
    net[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    assert bdl.engine.forward.mlp_layers(net) is None


class Token(nn.Module):
    """A layer with a random parameter and no reset_parameters."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.token = nn.Parameter(scale * torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.token


EQUAL = {
    "weight_norm": (lambda: weight_norm(nn.Linear(2, 3)), "parametrizations.weight.original0"),
    "spectral_norm": (lambda: spectral_norm(nn.Linear(2, 3)), "parametrizations.weight.original"),
    "token": (lambda: nn.Sequential(nn.Linear(2, 3), Token()), "1.token"),
}


@pytest.mark.parametrize("name", EQUAL)
def test_random_parameters_that_would_start_equal_are_refused(name):
    build, parameter = EQUAL[name]
    with pytest.raises(ConfigError, match=f"{parameter} would start equal in all chains.*a function that builds the"):
        bdl.ChainStack(build(), C)
    bdl.ChainStack(build(), 1)
    stack = bdl.ChainStack(build, C)
    assert not torch.equal(*dict(stack.net.named_parameters())[parameter][:2])
    assert stack(torch.ones(C, 4, 2)).shape == (C, 4, 3)


def test_a_function_that_builds_equal_networks_is_told(recwarn):
    net = nn.Linear(2, 3)
    for build in (lambda: net, lambda: copy.deepcopy(net)):
        with pytest.warns(BdlWarning, match="weight starts equal in all chains, because the function"):
            bdl.ChainStack(build, C)
        recwarn.clear()
        bdl.ChainStack(build, C, start="given")
        bdl.ChainStack(lambda: nn.Linear(2, 3), C)
        assert not recwarn


def test_constants_and_frozen_parameters_may_start_equal():
    frozen = Token()
    frozen.token.requires_grad_(False)
    stack = bdl.ChainStack(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), frozen, Token(0.0)), C)
    assert (stack.net[2].token == stack.net[2].token[0]).all()


def test_every_part_of_attention_has_its_own_start():
    stack = bdl.ChainStack(nn.TransformerEncoderLayer(4, 2, 4, batch_first=True), C)
    attention = stack.net.self_attn
    for weight in (attention.in_proj_weight, attention.out_proj.weight):
        assert not torch.equal(weight[0], weight[1])
    assert (attention.out_proj.bias == 0).all()
