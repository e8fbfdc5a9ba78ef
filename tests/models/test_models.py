"""Tests of `bdl.models.mlp` and `.resnet`.

Networks: shapes, sizes, and filter response norm and residual blocks against their formulas.
"""

from functools import partial

import pytest
import torch
from torch import nn

from bdl.models import CNN, MLP, FilterResponseNorm, ResNet, ResNet18, WideResNet
from bdl.models.mlp import hidden_layers


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


@pytest.mark.parametrize(
    ("table", "hidden"),
    [
        ((200, 5), [50]),
        ((201, 5), [16] * 3),
        ((100, 5, 2), [16] * 3),
        ((100, 33, 2), [32] * 2),
        ((100, 5, 11), [32] * 2),
    ],
)
def test_the_table_decides_the_hidden_layers(table, hidden):
    assert hidden_layers(*table) == hidden


def size(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("depth", "parameters"),
    [(20, 269_722), (32, 464_154), (56, 853_018)],  # 0.27, 0.46 and 0.85 M in table 6 of He et al. 2016
)
def test_deeper_resnets_have_the_parameters_of_he_et_al(depth, parameters):
    assert size(ResNet(depth)) == parameters
    assert size(ResNet(depth, num_classes=100)) == parameters + 90 * 65
    projections = (
        16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    )  # shortcut B: two 1x1 convolutions, with the scale and shift of their norms
    assert size(ResNet(depth, shortcut="B")) == parameters + projections


@pytest.mark.parametrize(("classes", "parameters"), [(10, 153_962), (100, 165_572)])
def test_cnn_has_the_layers_of_the_lightning_post(classes, parameters):
    """448, 4 K, 147 K and 1 K parameters in its table for 10 classes."""
    net = CNN(classes)
    layers = [sum(p.numel() for p in m.parameters()) for m in net if list(m.parameters())]
    assert layers == [448, 4640, 147_584, 129 * classes] and size(net) == parameters
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, classes)


@pytest.mark.parametrize(("classes", "parameters"), [(10, 2_748_890), (100, 2_772_020)])
def test_wrn_16_4_has_the_parameters_of_its_paper(classes, parameters):
    """Table 4 of Zagoruyko & Komodakis 2016: 2.7 M."""
    assert size(WideResNet(16, 4, classes)) == parameters
    assert size(WideResNet(28, 10, 10)) == 36_479_194  # WRN-28-10, 36.5 M


@pytest.mark.parametrize("norm", ["batch", "filter_response"])
@pytest.mark.parametrize(
    "build",
    [
        partial(WideResNet, 10, 1, 7, dropout=0.2, activation="relu"),
        partial(WideResNet, 10, 1, 7, dropout=0.2, activation="swish"),
        partial(ResNet, 8, num_classes=7, shortcut="A", activation="swish"),
        partial(ResNet, 8, num_classes=7, shortcut="B", activation="swish"),
    ],
)
def test_networks_map_images_to_logits(build, norm):
    net = build(norm=norm).eval()
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert (list(net.buffers()) == []) is (norm == "filter_response")


def test_wide_blocks_normalise_before_they_convolve():
    for block in WideResNet(16, 1).eval().blocks:
        x = torch.randn(2, block.conv1.in_channels, 8, 8)
        ready = torch.relu(block.norm1(x))
        expected = block.conv2(torch.relu(block.norm2(block.conv1(ready))))
        expected = expected + (x if block.project is None else block.project(ready))
        assert torch.equal(block(x), expected)


def test_wide_resnet_drops_out_between_convolutions_of_a_block():
    net = WideResNet(10, 1, dropout=0.5)
    torch.manual_seed(0)
    for block in net.blocks:
        assert block.dropout.p == 0.5
    x = torch.randn(2, 16, 8, 8)
    assert not torch.equal(net.blocks[0](x), net.blocks[0](x))
    assert torch.equal(net.eval().blocks[0](x), net.eval().blocks[0](x))


@pytest.mark.parametrize("net", [ResNet(8), ResNet18(), WideResNet(10, 1)], ids=lambda net: type(net).__name__)
def test_weights_start_with_the_variance_of_he_et_al(net):
    torch.manual_seed(0)
    net.reset_parameters()
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            w = module.weight.flatten(1)
            ratio = w.square().mean() * w.shape[1] / 2
            assert abs(ratio - 1) < 5 * (2 / w.numel()) ** 0.5
    assert not net.linear.bias.any()


def test_shortcut_a_takes_every_second_pixel_and_pads_with_zeros():
    block = ResNet(8).blocks[1]
    x = torch.randn(1, 16, 8, 8)
    expected = torch.zeros(1, 32, 4, 4)
    expected[:, 8:24] = x[:, :, ::2, ::2]
    assert torch.equal(block.shortcut(x), expected)


def test_filter_response_norm_is_its_formula():
    norm = FilterResponseNorm(2).double()
    for p in norm.parameters():
        nn.init.normal_(p)
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    expected = torch.empty_like(x)
    for b in range(3):
        for c in range(2):
            z = x[b, c] / (x[b, c].square().sum() / 20 + 1e-6).sqrt() * norm.weight[c] + norm.bias[c]
            expected[b, c] = z.clamp_min(norm.threshold[c].item())
    torch.testing.assert_close(norm(x), expected)


def test_reset_parameters_draws_weights_and_resets_statistics():
    net = ResNet(8)
    before = net.conv.weight.clone()
    net.blocks[0].norm1.running_mean += 1
    net.reset_parameters()
    assert not torch.equal(net.conv.weight, before) and not net.blocks[0].norm1.running_mean.any()
