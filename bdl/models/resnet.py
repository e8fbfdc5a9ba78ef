"""Residual networks for 32x32 images (He et al. 2016, section 4.2)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl.errors import ConfigError

Norm = Literal["batch", "filter_response"]


class FilterResponseNorm(nn.Module):
    """max(γ x rsqrt(mean_HW x² + eps) + β, τ) per channel (Singh & Krishnan 2020), x (B, C, H, W) -> (B, C, H, W).

    It has no buffers and needs no batch statistics. `thresholded=False` omits the max, for use before an activation.
    """

    def __init__(self, channels: int, thresholded: bool = True, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.threshold = nn.Parameter(torch.zeros(channels)) if thresholded else None
        self.eps = eps

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        if self.threshold is not None:
            nn.init.zeros_(self.threshold)

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + self.eps)
        x = self.weight[:, None, None] * x + self.bias[:, None, None]
        return x if self.threshold is None else torch.maximum(x, self.threshold[:, None, None])


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. Shortcut "A" subsamples and adds zero channels, "B" is a 1x1 convolution."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, shortcut: str, norm: Norm, activation: nn.Module):
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False)
        self.norm1 = normalisation(norm, fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False)
        self.norm2 = normalisation(norm, fan_out)
        self.activation, self.stride, self.pad = activation, stride, (fan_out - fan_in) // 2
        changes = stride != 1 or fan_in != fan_out
        self.project = (
            nn.Sequential(nn.Conv2d(fan_in, fan_out, 1, stride, bias=False), normalisation(norm, fan_out))
            if changes and shortcut == "B"
            else None
        )

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


class Residual(nn.Module):
    """A residual network whose last layer is `linear`: how its parameters are initialised."""

    linear: nn.Linear

    def reset_parameters(self) -> None:
        """Draw weights of convolutions and the output layer from N(0, 2 / fan-in) (He et al. 2015), zero the bias."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.BatchNorm2d | FilterResponseNorm):
                module.reset_parameters()
        nn.init.zeros_(self.linear.bias)


class ResNet(Residual):
    """ResNet of depth 6n + 2 for x (B, 3, 32, 32) -> logits (B, num_classes); depth 20 has 0.27 M parameters.

    Args:
        depth: number of layers with weights, 6n + 2.
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
        activation: Literal["relu", "swish"] = "relu",
    ):
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ConfigError(f"depth must be 6n + 2 (20, 32, 44, 56, ...), got {depth}")
        if (
            shortcut not in ("A", "B")
            or norm not in ("batch", "filter_response")
            or activation not in ("relu", "swish")
        ):
            raise ConfigError(
                f"shortcut={shortcut!r}, norm={norm!r}, activation={activation!r}: choose A or B, batch or "
                "filter_response, relu or swish"
            )
        act = nn.ReLU() if activation == "relu" else nn.SiLU()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm, self.activation = normalisation(norm, 16), act
        widths = [16, 16, 32, 64]
        blocks = [
            ResidualBlock(
                widths[s] if b == 0 else widths[s + 1], widths[s + 1], 2 if s > 0 and b == 0 else 1, shortcut, norm, act
            )
            for s in range(3)
            for b in range((depth - 2) // 6)
        ]
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(64, num_classes)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.activation(self.norm(self.conv(x))))
        return self.linear(x.mean((-2, -1)))


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """The layer that normalises (B, channels, H, W)."""
    return nn.BatchNorm2d(channels) if norm == "batch" else FilterResponseNorm(channels)
