"""Augmentation of image batches, on the device that holds them: crop, flip, erase, cut out; normalisation."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bdl.errors import ConfigError

# torchvision's RandomErasing: share of the image's area, aspect ratio
AREA, RATIO = (0.02, 0.33), (0.3, 3.3)
GREY = (125, 123, 114)  # the mean pixel of CIFAR-10, of 255


@dataclass(frozen=True)
class Augment:
    """Changes every image of a batch in a way of its own, by one gather of its pixels.

    crop: pixels of black padding from which the image is cut out again at random (4 for CIFAR; 0: none). flip: left to
    right in half of the cases. erase: probability of a grey rectangle, of the sizes and shapes of torchvision's
    RandomErasing. cutout: side of a grey square around a random pixel, cut off at the border (DeVries & Taylor 2017: 16
    for CIFAR-10, 8 for CIFAR-100; 0: none).

    The decisions are drawn apart from their execution, so that the same images come out on every device.
    Raises ConfigError for a number out of range.
    """

    crop: int = 4
    flip: bool = True
    erase: float = 0.0
    cutout: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.erase <= 1:
            raise ConfigError(f"erase must be a probability, got {self.erase}")
        if self.crop < 0 or self.cutout < 0:
            raise ConfigError(f"crop and cutout must be >= 0 pixels, got {self.crop} and {self.cutout}")

    def draw(self, count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """(count, 11) int16: top, left, flip; top, bottom, left, right of what is erased, and of what is cut out."""
        _, height, width = shape
        u = torch.rand(10, count, generator=generator)
        shift = (u[:2] * (2 * self.crop + 1)).long()
        flip = ((u[2] < 0.5) & self.flip).long()
        columns = [*shift, flip, *self._erased(u[3:8], height, width), *self._cut_out(u[8:], height, width)]
        return torch.stack(columns, 1).short()

    def __call__(self, x: Tensor, decisions: Tensor) -> Tensor:
        """uint8 images (n, 3, h, w) and their decisions (n, 11) -> uint8 (n, 3, h, w)."""
        n, _, height, width = x.shape
        top, left, flip, *boxes = decisions.long().unsqueeze(2).unbind(1)  # (n, 1) each
        i, j = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
        rows = top + i  # (n, h) of the padded image
        columns = left + torch.where(flip > 0, width - 1 - j, j)  # (n, w)
        padded = F.pad(x, (self.crop,) * 4).flatten(2)
        pixels = torch.cat([padded, _grey(x.device).expand(n, 3, 1)], 2)
        at = rows.unsqueeze(2) * (width + 2 * self.crop) + columns.unsqueeze(1)  # (n, h, w)
        for used, (up, down, first, last) in ((self.erase, boxes[:4]), (self.cutout, boxes[4:])):
            if used:
                inside = ((i >= up) & (i < down)).unsqueeze(2) & ((j >= first) & (j < last)).unsqueeze(1)
                at = at.masked_fill(inside, padded.shape[2])
        return pixels.gather(2, at.flatten(1).unsqueeze(1).expand(n, 3, height * width)).view_as(x)

    def _erased(self, u: Tensor, height: int, width: int) -> list[Tensor]:
        """Rectangles shorter than the image; torchvision draws anew what is longer, 1 in 150 at 32x32."""
        area = (AREA[0] + (AREA[1] - AREA[0]) * u[1]) * height * width
        ratio = (math.log(RATIO[0]) + math.log(RATIO[1] / RATIO[0]) * u[2]).exp()
        tall = (area * ratio).sqrt().round().clamp(max=height - 1)
        wide = (area / ratio).sqrt().round().clamp(max=width - 1)
        up, first = (u[3] * (height - tall + 1)).long(), (u[4] * (width - wide + 1)).long()
        chosen = u[0] < self.erase
        return [up, up + tall.long() * chosen, first, first + wide.long() * chosen]

    def _cut_out(self, u: Tensor, height: int, width: int) -> list[Tensor]:
        up, first = (u[0] * height).long() - self.cutout // 2, (u[1] * width).long() - self.cutout // 2
        return [up, up + self.cutout, first, first + self.cutout]


@dataclass(frozen=True)
class Normalise:
    """uint8 images (n, channels, h, w) -> float32 (x / 255 - mean) / std by channel.

    channels_last: leave them in that memory layout, which a network's convolutions go on in.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels_last: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        scale, shift = _affine(self.mean, self.std, x.device)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return x.float().mul_(scale).add_(shift).contiguous(memory_format=layout)  # 3 x as fast as the layout first


@functools.cache
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(channels, 1, 1) factor and summand, once per device: a copy to a GPU would make every batch wait."""
    m, s = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (mean, std))
    return (1 / (255 * s)).float().to(device), (-m / s).float().to(device)


@functools.cache
def _grey(device: torch.device) -> Tensor:
    """(3, 1) uint8."""
    return torch.tensor(GREY, dtype=torch.uint8, device=device)[:, None]
