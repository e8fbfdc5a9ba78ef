"""Networks: shapes, sizes, and filter response norm against its formula."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bdl.errors import ConfigError
from bdl.models import MLP, FilterResponseNorm, ResNet


def test_mlp_has_linear_layers_with_activations_between():
    net = MLP((36, 30, 30, 6), "relu")
    assert [type(m) for m in net] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert sum(p.numel() for p in net.parameters()) == 37 * 30 + 31 * 30 + 31 * 6
    assert net(torch.zeros(2, 5, 36)).shape == (2, 5, 6)


def test_mlp_drops_out_between_layers_and_not_after_the_output():
    net = MLP((4, 8, 8, 2), dropout=0.5)
    assert [type(m) for m in net] == [nn.Linear, nn.Tanh, nn.Dropout, nn.Linear, nn.Tanh, nn.Dropout, nn.Linear]


def test_mlp_without_hidden_layers_is_linear():
    assert [type(m) for m in MLP((4, 2), dropout=0.5)] == [nn.Linear]


@pytest.mark.parametrize(("arguments", "message"), [(((3, 2), "tan"), "unknown activation 'tan'"), (((3,),), "sizes")])
def test_mlp_refuses_what_it_cannot_build(arguments, message):
    with pytest.raises(ConfigError, match=message):
        MLP(*arguments)


def test_resnet20_has_the_parameters_of_he_et_al():
    net = ResNet(20, num_classes=10, shortcut="A")
    assert sum(p.numel() for p in net.parameters()) == 269_722
    assert len(list(net.parameters())) == 59


@pytest.mark.parametrize("norm", ["batch", "filter_response"])
@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_resnet_maps_images_to_logits(norm, shortcut):
    net = ResNet(8, num_classes=7, shortcut=shortcut, norm=norm, activation="swish").eval()
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_shortcut_a_takes_every_second_pixel_and_pads_channels_with_zeros():
    block = ResNet(8).blocks[1]
    x = torch.randn(1, 16, 8, 8)
    expected = torch.zeros(1, 32, 4, 4)
    expected[:, 8:24] = x[:, :, ::2, ::2]
    assert torch.equal(block._shortcut(x), expected)


@pytest.mark.parametrize("depth", [2, 7, 21])
def test_resnet_refuses_another_depth(depth):
    with pytest.raises(ConfigError, match=f"6n \\+ 2 .*got {depth}"):
        ResNet(depth)


@pytest.mark.parametrize("wrong", [{"norm": "layer"}, {"shortcut": "C"}, {"activation": "tanh"}])
def test_resnet_refuses_another_option(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong.values()))):
        ResNet(8, **wrong)


@pytest.mark.parametrize("thresholded", [True, False])
def test_filter_response_norm_is_its_formula(thresholded):
    norm = FilterResponseNorm(2, thresholded).double()
    for p in norm.parameters():
        nn.init.normal_(p)
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    expected = torch.empty_like(x)
    for b in range(3):
        for c in range(2):
            z = x[b, c] / (x[b, c].square().sum() / 20 + 1e-6).sqrt() * norm.weight[c] + norm.bias[c]
            expected[b, c] = z.clamp_min(norm.threshold[c].item()) if thresholded else z
    torch.testing.assert_close(norm(x), expected)


def test_filter_response_norm_leaves_no_buffers():
    assert list(ResNet(8, norm="filter_response").buffers()) == []
    assert len(list(ResNet(8).buffers())) == 3 * 7


def test_reset_parameters_starts_anew():
    net = ResNet(8)
    before = net.conv.weight.clone()
    net.blocks[0].norm1.running_mean += 1
    net.reset_parameters()
    assert not torch.equal(net.conv.weight, before) and not net.blocks[0].norm1.running_mean.any()
