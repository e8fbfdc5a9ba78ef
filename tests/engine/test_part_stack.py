"""Tests of `bdl.engine.stack` and `.functional`.

A ChainStack of a part: the chains differ in it alone, and give what each network alone gives.
"""

import pytest
import torch
from torch import nn

import bdl
from bdl.engine.functional import call


def convolutional():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 16, 3)
    )
    net(torch.randn(20, 1, 6, 6))  # statistics of BatchNorm that are not those of the start
    return net


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def one_by_one(stack, x):
    inner = stack.net
    tensors = {**dict(inner.named_parameters()), **dict(inner.named_buffers())}
    each = []
    for c in range(stack.chains):
        own = {k: v if k in stack.frozen_names else v[c] for k, v in tensors.items()}
        each.append(call(inner, own, x if stack.shared else x[c]))
    return torch.stack(each)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("only", ["4.*", "2.*", ["0.bias", "4.*"], "2.bias", ["2.weight", "4.weight"]])
def test_outputs_of_mlps_are_those_of_each_network(only, shared):
    stack = bdl.ChainStack(mlp(), 3, only=only, start="fresh", shared=shared)
    x = torch.randn(7, 36) if shared else torch.randn(3, 7, 36)
    outputs = stack(x)
    torch.testing.assert_close(outputs, one_by_one(stack, x))
    assert not torch.equal(outputs[0], outputs[1])
    outputs.sum().backward()
    assert {n for n, p in stack.net.named_parameters() if p.grad is not None} == stack._sampled_paths


@pytest.mark.parametrize("method", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("only", ["5.*", "0.*", ["0.*", "5.*"]])
def test_outputs_of_other_networks_are_those_of_each_network(only, method):
    stack = bdl.ChainStack(convolutional(), 3, only=only, start="fresh", shared=True, method=method).eval()
    x = torch.randn(7, 1, 6, 6)
    torch.testing.assert_close(stack(x), one_by_one(stack, x), rtol=1e-5, atol=1e-5)


def test_the_frozen_part_keeps_its_values_and_is_there_once():
    net = convolutional()
    for start in ("fresh", "given"):
        stack = bdl.ChainStack(net, 4, only="5.*", start=start)
        inner, given = dict(stack.net.named_parameters()), dict(net.named_parameters())
        assert torch.equal(inner["0.weight"], given["0.weight"]) and not inner["0.weight"].requires_grad
        assert torch.equal(stack.net[1].running_mean, net[1].running_mean)
        assert inner["5.weight"].shape == (4, 3, 64)
        same = [torch.equal(one, given["5.weight"]) for one in inner["5.weight"]]
        assert same == [start == "given"] * 4
    assert stack.frozen_names == {
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"
    }  # fmt: skip
    assert bdl.ChainStack(net, 2, only="5.*").net[5].weight[0].equal(net[5].weight), "a part starts as given"


def test_frozen_part_stays_in_eval_mode_unless_told_otherwise():
    stack = bdl.ChainStack(convolutional(), 2, only="5.*", shared=True).train()
    assert [m.training for m in stack.net] == [False, False, False, False, False, True]
    before = stack.net[1].running_mean.clone()
    x = torch.randn(7, 1, 6, 6)
    assert torch.equal(stack(x), stack(x)), "a frozen dropout drops nothing"
    assert torch.equal(stack.net[1].running_mean, before)

    trained = bdl.ChainStack(convolutional(), 2, only="5.*", frozen="train", shared=True)
    assert all(m.training for m in trained.net)
    trained(x)
    assert trained.net[1].running_mean.shape == (2, 4), "statistics that change belong to each chain"
    assert not torch.equal(trained.net[1].running_mean[0], before)


def test_a_stack_of_the_whole_network_can_start_as_given():
    net = mlp()
    stack = bdl.ChainStack(net, 3, start="given")
    assert all(torch.equal(w, net[0].weight) for w in stack.net[0].weight) and not stack.frozen_names


def test_a_function_that_builds_network_gives_frozen_part_once():
    stack = bdl.ChainStack(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), 3, only="2.*", start="fresh"
    )
    assert stack.net[0].weight.shape == (4, 3)
    assert not torch.equal(stack.net[2].weight[0], stack.net[2].weight[1])
