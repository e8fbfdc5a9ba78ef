"""ResNet18 of `bdl.models.resnet`: its size and shape, and that it is the network of its formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18

from bdl.models import ResNet18


@pytest.fixture(scope="module")
def net() -> ResNet18:
    torch.manual_seed(0)
    net = ResNet18(7).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that a swapped or a missing layer would show
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1)
            nn.init.normal_(module.bias, std=0.1)
    return net


@pytest.mark.parametrize(("classes", "parameters"), [(10, 11_173_962), (100, 11_220_132)])
def test_it_has_the_parameters_of_zhang_et_al(classes, parameters):
    """11.17 M for 10 classes."""
    assert sum(p.numel() for p in ResNet18(classes).parameters()) == parameters


def test_it_maps_images_to_logits_through_32_16_8_and_4_pixels(net):
    sizes = []
    hooks = [block.register_forward_hook(lambda *args: sizes.append(tuple(args[2].shape[1:]))) for block in net.blocks]
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    for hook in hooks:
        hook.remove()
    assert sizes[::2] == sizes[1::2] == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_it_is_torchvisions_resnet18_behind_another_stem(net):
    """torchvision's layers in the same order, with ours for the first convolution and no pooling."""
    other = resnet18(num_classes=7).eval()
    other.conv1, other.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    values = list(net.state_dict().values())
    assert [v.shape for v in values] == [v.shape for v in other.state_dict().values()]
    other.load_state_dict(dict(zip(other.state_dict(), values, strict=True)))
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(net(x), other(x), rtol=1e-4, atol=1e-5)


def test_filter_response_norm_leaves_no_buffers():
    net = ResNet18(norm="filter_response", activation="swish").eval()
    assert list(net.buffers()) == []
    assert torch.isfinite(F.log_softmax(net(torch.randn(2, 3, 32, 32)), -1)).all()
