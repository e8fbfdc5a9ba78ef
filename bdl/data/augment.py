"""Augmentation (crop, flip, erase, cut out) and normalisation of image batches, on the device that holds them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bdl.errors import ConfigError

# Share of the image's area and aspect ratio in torchvision's RandomErasing
AREA, RATIO = (0.02, 0.33), (0.3, 3.3)
GREY = (125, 123, 114)  # the mean pixel of CIFAR-10, on the scale 0..255


class Augmentation(Protocol):
    """Random changes to items: decisions are drawn on the CPU and carried out on the device of the items."""

    def draw(self, count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """(count, k) decisions for items of this shape."""
        ...

    def __call__(self, x: Tensor, decisions: Tensor) -> Tensor:
        """The items x (n, ...) changed according to the decisions (n, k)."""
        ...


@dataclass(frozen=True)
class Augment:
    """Changes every image of a batch at random, independently of the others, by one gather of its pixels.

    Decisions are drawn on the CPU and carried out where the images are, so every device gives the same images.

        >>> augment = Augment(crop=1)
        >>> images = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
        >>> decisions = augment.draw(5, (3, 8, 8), torch.Generator().manual_seed(0))
        >>> augment(images, decisions).shape
        torch.Size([5, 3, 8, 8])

    Args:
        crop: pixels of black padding, from which a window of the image's size is cut at random; 4 is usual for CIFAR,
            0 turns it off.
        flip: mirror left and right in half of the cases.
        erase: probability of a grey rectangle, with the sizes and shapes of torchvision's RandomErasing.
        cutout: side in pixels of a grey square around a random pixel, clipped at the border; DeVries & Taylor 2017 use
            16 for CIFAR-10 and 8 for CIFAR-100, 0 turns it off.

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
        """(count, 11) int16: top, left, flip; then top, bottom, left, right of the erased and of the cut-out box."""
        _, height, width = shape
        u = torch.rand(10, count, generator=generator)
        shift = (u[:2] * (2 * self.crop + 1)).long()
        flip = ((u[2] < 0.5) & self.flip).long()
        columns = [*shift, flip, *self._erased(u[3:8], height, width), *self._cut_out(u[8:], height, width)]
        return torch.stack(columns, 1).short()

    def __call__(self, x: Tensor, decisions: Tensor) -> Tensor:
        """The images (n, 3, h, w) uint8 changed according to their decisions (n, 11): (n, 3, h, w) uint8."""
        n, _, height, width = x.shape
        top, left, flip, *boxes = decisions.long().unsqueeze(2).unbind(1)  # (n, 1) each
        i, j = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
        rows = top + i  # (n, h) rows of the padded image
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
        """Edges of the erased rectangles. Those longer than the image, 1 in 150 at 32x32, are shortened.

        torchvision draws such a rectangle again.
        """
        area = (AREA[0] + (AREA[1] - AREA[0]) * u[1]) * height * width
        ratio = (math.log(RATIO[0]) + math.log(RATIO[1] / RATIO[0]) * u[2]).exp()
        tall = (area * ratio).sqrt().round().clamp(max=height - 1)
        wide = (area / ratio).sqrt().round().clamp(max=width - 1)
        up, first = (u[3] * (height - tall + 1)).long(), (u[4] * (width - wide + 1)).long()
        chosen = u[0] < self.erase
        return [up, up + tall.long() * chosen, first, first + wide.long() * chosen]

    def _cut_out(self, u: Tensor, height: int, width: int) -> list[Tensor]:
        """Edges of the cut-out squares. They may lie outside the image."""
        up, first = (u[0] * height).long() - self.cutout // 2, (u[1] * width).long() - self.cutout // 2
        return [up, up + self.cutout, first, first + self.cutout]


@dataclass(frozen=True)
class Normalise:
    """uint8 images (n, channels, h, w) -> float32 (x / 255 - mean) / std, channel by channel.

    Args:
        mean, std: one number per channel, on the scale 0..1.
        channels_last: return that memory layout, which the network's convolutions then keep.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels_last: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        scale, shift = _affine(self.mean, self.std, x.device)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        # Three times as fast as changing the layout first
        return x.float().mul_(scale).add_(shift).contiguous(memory_format=layout)


@functools.cache
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(channels, 1, 1) factor and summand. They are cached per device, because a copy to a GPU makes the host wait."""
    m, s = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (mean, std))
    return (1 / (255 * s)).float().to(device), (-m / s).float().to(device)


@functools.cache
def _grey(device: torch.device) -> Tensor:
    """The grey pixel (3, 1) uint8."""
    return torch.tensor(GREY, dtype=torch.uint8, device=device)[:, None]
