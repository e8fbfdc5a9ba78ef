"""Residual networks for 32x32 images: ResNet (He et al. 2016), ResNet18, WideResNet (Zagoruyko & Komodakis 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl.errors import ConfigError

Norm = Literal["batch", "filter_response"]
Activation = Literal["relu", "swish"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "swish": nn.SiLU}


class FilterResponseNorm(nn.Module):
    """max(γ x rsqrt(mean_HW x² + eps) + β, τ) per channel (Singh & Krishnan 2020), x (B, C, H, W) -> (B, C, H, W).

    It has no buffers and needs no batch statistics.
    """

    def __init__(self, channels: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.threshold = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.threshold)

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + self.eps)
        x = self.weight[:, None, None] * x + self.bias[:, None, None]
        return torch.maximum(x, self.threshold[:, None, None])


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. Shortcut "A" subsamples and adds zero channels, "B" is a 1x1 convolution."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, shortcut: str, norm: Norm, activation: nn.Module):
        super().__init__()
        self.conv1 = convolution(fan_in, fan_out, stride)
        self.norm1 = normalisation(norm, fan_out)
        self.conv2 = convolution(fan_out, fan_out)
        self.norm2 = normalisation(norm, fan_out)
        self.activation, self.stride, self.pad = activation, stride, (fan_out - fan_in) // 2
        projects = shortcut == "B" and (stride != 1 or fan_in != fan_out)
        layers = (convolution(fan_in, fan_out, stride, size=1), normalisation(norm, fan_out)) if projects else ()
        self.project = nn.Sequential(*layers) if projects else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return self.activation(out + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """x (B, fan_in, H, W) in the shape of the convolutions' output, (B, fan_out, H / stride, W / stride)."""
        if self.project is not None:
            return self.project(x)
        if self.stride == 1 and self.pad == 0:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))


class WideBlock(nn.Module):
    """Twice: norm, activation, 3x3 convolution. A 1x1 convolution is the shortcut where the shape changes."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, dropout: float, norm: Norm, activation: nn.Module):
        super().__init__()
        self.norm1, self.norm2 = normalisation(norm, fan_in), normalisation(norm, fan_out)
        self.conv1 = convolution(fan_in, fan_out, stride)
        self.conv2 = convolution(fan_out, fan_out)
        self.activation, self.dropout = activation, nn.Dropout(dropout)
        self.project = convolution(fan_in, fan_out, stride, size=1) if stride != 1 or fan_in != fan_out else None

    def forward(self, x: Tensor) -> Tensor:
        ready = self.activation(self.norm1(x))
        out = self.conv1(ready)
        out = self.conv2(self.dropout(self.activation(self.norm2(out))))
        return out + (x if self.project is None else self.project(ready))


class Residual(nn.Module):
    """A residual network for x (B, 3, 32, 32) -> logits (B, num_classes), whose last layer is `linear`."""

    conv: nn.Conv2d
    norm: nn.Module
    activation: nn.Module
    blocks: nn.Sequential
    linear: nn.Linear

    def reset_parameters(self) -> None:
        """Draw weights of convolutions and the output layer from N(0, 2 / fan-in) (He et al. 2015), zero the bias."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.BatchNorm2d | FilterResponseNorm):
                module.reset_parameters()
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.activation(self.norm(self.conv(x))))
        return self.linear(x.mean((-2, -1)))


class ResNet(Residual):
    """ResNet of depth 6n + 2 for x (B, 3, 32, 32) -> logits (B, num_classes); depth 20 has 0.27 M parameters.

    Args:
        depth: number of layers with weights, 6n + 2 (He et al. 2016, section 4.2).
        shortcut: "A" (parameter-free) or "B" (1x1 convolutions), where the shape changes.
        norm: "batch", or "filter_response", under which samples need no batch statistics.
        activation: "relu" or "swish".

    Raises ConfigError for another depth or option.
    """

    def __init__(
        self,
        depth: int = 20,
        num_classes: int = 10,
        shortcut: Literal["A", "B"] = "A",
        norm: Norm = "batch",
        activation: Activation = "relu",
    ):
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ConfigError(f"depth must be 6n + 2 (20, 32, 44, 56, ...), got {depth}")
        if shortcut not in ("A", "B"):
            raise ConfigError(f"shortcut must be A or B, got {shortcut!r}")
        act = activation_of(norm, activation)
        self.conv, self.norm, self.activation = convolution(3, 16), normalisation(norm, 16), act
        block = partial(ResidualBlock, shortcut=shortcut, norm=norm, activation=act)
        self.blocks = stages(16, (16, 32, 64), (depth - 2) // 6, block)
        self.linear = nn.Linear(64, num_classes)
        self.reset_parameters()


class ResNet18(Residual):
    """ResNet18 for x (B, 3, 32, 32) -> logits (B, num_classes); it has 11.17 M parameters for 10 classes.

    Four stages of two blocks (He et al. 2016, table 1), as the papers on CIFAR use them. The network for ImageNet
    begins with a 7x7 convolution and a pooling, which would leave 8x8 of 32x32 pixels; here the first layer is a 3x3
    convolution that keeps them all. Zhang et al. 2020 (cyclical SG-MCMC) sample this network. Their weights start with
    torch's own distribution, ours with that of He et al. 2015.

    Args:
        norm, activation: see `ResNet`.

    Raises ConfigError for another option.
    """

    def __init__(self, num_classes: int = 10, norm: Norm = "batch", activation: Activation = "relu"):
        super().__init__()
        act = activation_of(norm, activation)
        self.conv, self.norm, self.activation = convolution(3, 64), normalisation(norm, 64), act
        block = partial(ResidualBlock, shortcut="B", norm=norm, activation=act)
        self.blocks = stages(64, (64, 128, 256, 512), 2, block)
        self.linear = nn.Linear(512, num_classes)
        self.reset_parameters()


class WideResNet(Residual):
    """WRN-depth-width for x (B, 3, 32, 32) -> logits (B, num_classes); WRN-16-4 has 2.75 M parameters.

    Args:
        depth: 6n + 4, with n blocks in each of three stages.
        width: the stages have 16, 32 and 64 times as many channels.
        dropout: probability of the dropout between the two convolutions of a block.
        norm, activation: see `ResNet`.

    Raises ConfigError for another depth or option.
    """

    def __init__(
        self,
        depth: int = 16,
        width: int = 4,
        num_classes: int = 10,
        dropout: float = 0.0,
        norm: Norm = "batch",
        activation: Activation = "relu",
    ):
        super().__init__()
        if depth < 10 or (depth - 4) % 6 or width < 1:
            raise ConfigError(f"depth must be 6n + 4 (16, 22, 28, ...) and width >= 1, got {depth} and {width}")
        act, widths = activation_of(norm, activation), (16 * width, 32 * width, 64 * width)
        self.conv = convolution(3, 16)
        block = partial(WideBlock, dropout=dropout, norm=norm, activation=act)
        self.blocks = stages(16, widths, (depth - 4) // 6, block)
        self.norm, self.activation, self.linear = normalisation(norm, widths[2]), act, nn.Linear(widths[2], num_classes)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm(self.blocks(self.conv(x))))
        return self.linear(x.mean((-2, -1)))


def stages(
    fan_in: int, widths: Sequence[int], count: int, block: Callable[[int, int, int], nn.Module]
) -> nn.Sequential:
    """`count` blocks of each width, block(fan_in, fan_out, stride); each stage but the first halves the image."""
    blocks = []
    for stage, width in enumerate(widths):
        for i in range(count):
            blocks.append(block(fan_in, width, 2 if stage > 0 and i == 0 else 1))
            fan_in = width
    return nn.Sequential(*blocks)


def convolution(fan_in: int, fan_out: int, stride: int = 1, size: int = 3) -> nn.Conv2d:
    """A convolution without bias that keeps the edges of the image."""
    return nn.Conv2d(fan_in, fan_out, size, stride, padding=size // 2, bias=False)


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """The layer that normalises (B, channels, H, W)."""
    return nn.BatchNorm2d(channels) if norm == "batch" else FilterResponseNorm(channels)


def activation_of(norm: Norm, activation: Activation) -> nn.Module:
    """The layer of an activation. Raises ConfigError for another one, and for another norm."""
    if norm not in ("batch", "filter_response") or activation not in ACTIVATIONS:
        raise ConfigError(f"norm={norm!r}, activation={activation!r}: choose batch or filter_response, relu or swish")
    return ACTIVATIONS[activation]()
