"""The CNN is that of the post, whose ReLU comes before the pooling."""

import torch
from torch import nn

from bdl.models import CNN


def test_pooling_before_relu_is_the_posts_network_and_gradient():
    torch.manual_seed(0)
    net = CNN()
    conv1, conv2, linear1, linear2 = (m for m in net if list(m.parameters()))
    post = nn.Sequential(
        conv1, nn.ReLU(), nn.MaxPool2d(2), conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), linear1, nn.ReLU(), linear2
    )
    x = torch.randn(8, 3, 32, 32)
    x[0] = 0  # equal activations in every window
    ours, theirs = net(x), post(x)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(out.logsumexp(1).sum(), list(net.parameters())) for out in (ours, theirs)]
    torch.testing.assert_close(*gradients)
