"""ResNet18 for 32x32 images, as the papers on CIFAR use it (He et al. 2016, table 1, with a stem of one 3x3 layer)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from bdl.errors import ConfigError
from bdl.models.resnet import Norm, Residual, ResidualBlock, normalisation

WIDTHS = (64, 128, 256, 512)  # channels of the four stages


class ResNet18(Residual):
    """ResNet18 for x (B, 3, 32, 32) -> logits (B, num_classes); it has 11.17 M parameters for 10 classes.

    Four stages of two blocks. The network for ImageNet begins with a 7x7 convolution and a pooling, which would leave
    8x8 of 32x32 pixels; here the first layer is a 3x3 convolution that keeps them all. Zhang et al. 2020 (cyclical
    SG-MCMC) sample this network. Their weights start with torch's own distribution, ours with that of He et al. 2015.

    Args:
        norm: "batch", or "filter_response", under which samples need no batch statistics.
        activation: "relu" or "swish".

    Raises ConfigError for another option.
    """

    def __init__(self, num_classes: int = 10, norm: Norm = "batch", activation: Literal["relu", "swish"] = "relu"):
        super().__init__()
        if norm not in ("batch", "filter_response") or activation not in ("relu", "swish"):
            raise ConfigError(
                f"norm={norm!r}, activation={activation!r}: choose batch or filter_response, relu or swish"
            )
        act = nn.ReLU() if activation == "relu" else nn.SiLU()
        self.conv = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.norm, self.activation = normalisation(norm, WIDTHS[0]), act
        blocks, fan_in = [], WIDTHS[0]
        for width in WIDTHS:
            stride = 1 if width == WIDTHS[0] else 2
            blocks += [
                ResidualBlock(fan_in, width, stride, "B", norm, act),
                ResidualBlock(width, width, 1, "B", norm, act),
            ]
            fan_in = width
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(WIDTHS[-1], num_classes)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.activation(self.norm(self.conv(x))))
        return self.linear(x.mean((-2, -1)))
