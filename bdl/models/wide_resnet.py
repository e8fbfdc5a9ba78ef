"""Wide residual networks for 32x32 images (Zagoruyko & Komodakis 2016)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from bdl.errors import ConfigError
from bdl.models.resnet import Norm, Residual, normalisation


class WideBlock(nn.Module):
    """Twice: norm, activation, 3x3 convolution. A 1x1 convolution is the shortcut where the shape changes."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, dropout: float, norm: Norm, activation: nn.Module):
        super().__init__()
        self.norm1, self.norm2 = normalisation(norm, fan_in), normalisation(norm, fan_out)
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False)
        self.activation, self.dropout = activation, nn.Dropout(dropout)
        changes = stride != 1 or fan_in != fan_out
        self.project = nn.Conv2d(fan_in, fan_out, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        ready = self.activation(self.norm1(x))
        out = self.conv1(ready)
        out = self.conv2(self.dropout(self.activation(self.norm2(out))))
        return out + (x if self.project is None else self.project(ready))


class WideResNet(Residual):
    """WRN-depth-width for x (B, 3, 32, 32) -> logits (B, num_classes); WRN-16-4 has 2.75 M parameters.

    Args:
        depth: 6n + 4, with n blocks in each of three stages.
        width: the stages have 16, 32 and 64 times as many channels.
        dropout: probability of the dropout between the two convolutions of a block.
        norm: "batch", or "filter_response", under which samples need no batch statistics.
        activation: "relu" or "swish".

    Raises ConfigError for another depth or option.
    """

    def __init__(
        self,
        depth: int = 16,
        width: int = 4,
        num_classes: int = 10,
        dropout: float = 0.0,
        norm: Norm = "batch",
        activation: Literal["relu", "swish"] = "relu",
    ):
        super().__init__()
        if depth < 10 or (depth - 4) % 6 or width < 1:
            raise ConfigError(f"depth must be 6n + 4 (16, 22, 28, ...) and width >= 1, got {depth} and {width}")
        if norm not in ("batch", "filter_response") or activation not in ("relu", "swish"):
            raise ConfigError(
                f"norm={norm!r}, activation={activation!r}: choose batch or filter_response, relu or swish"
            )
        act = nn.ReLU() if activation == "relu" else nn.SiLU()
        widths, n = [16, 16 * width, 32 * width, 64 * width], (depth - 4) // 6
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        blocks = [
            WideBlock(widths[s + (b > 0)], widths[s + 1], 2 if s > 0 and b == 0 else 1, dropout, norm, act)
            for s in range(3)
            for b in range(n)
        ]
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.activation, self.linear = normalisation(norm, widths[3]), act, nn.Linear(widths[3], num_classes)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm(self.blocks(self.conv(x))))
        return self.linear(x.mean((-2, -1)))
