"""The corruptions of CIFAR-10-C (Hendrycks & Dietterich 2019) that need no pictures of frost, snow or mud.

Constants are those of their make_cifar_c.py, for images of 32x32 pixels. Functions take images (n, 3, h, w) in [0, 1],
the constants of a severity, and a random stream.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Generator, Tensor

from bdl.data.slices import TensorSlices
from bdl.errors import ConfigError
from bdl.seeding import generator


def gaussian_noise(x: Tensor, std: float, random: Generator) -> Tensor:
    return x + std * torch.randn(x.shape, generator=random)


def shot_noise(x: Tensor, photons: float, random: Generator) -> Tensor:
    return torch.poisson(x * photons, generator=random) / photons


def impulse_noise(x: Tensor, share: float, random: Generator) -> Tensor:
    hit, salt = (torch.rand(x.shape, generator=random) for _ in range(2))
    return torch.where(hit < share, (salt < 0.5).float(), x)


def speckle_noise(x: Tensor, std: float, random: Generator) -> Tensor:
    return x + x * std * torch.randn(x.shape, generator=random)


def gaussian_blur(x: Tensor, sigma: float, random: Generator) -> Tensor:
    line = _gaussian(sigma, int(4 * sigma + 0.5))
    return _filtered(x, line[:, None] * line, "replicate")


def defocus_blur(x: Tensor, lens: tuple[float, float], random: Generator) -> Tensor:
    """A disk of this radius, whose edge is softened by a normal kernel of 3x3."""
    radius, sigma = lens
    at = torch.arange(-3.0, 4.0)
    disk = (at[:, None] ** 2 + at**2 <= radius**2).float()
    line = _gaussian(sigma, 1)
    soft = F.conv2d((disk / disk.sum())[None, None], (line[:, None] * line)[None, None], padding=1)
    return _filtered(x, soft[0, 0], "reflect")


def motion_blur(x: Tensor, motion: tuple[int, float], random: Generator) -> Tensor:
    """A one-sided normal kernel along a line at -45° to 45°, at whole pixels, as ImageMagick makes it."""
    radius, sigma = motion
    n, _, height, width = x.shape
    angle = (torch.rand(n, 1, generator=random) - 0.5) * math.pi / 2
    weights = (-(torch.arange(2 * radius + 1.0) ** 2) / (2 * sigma**2)).exp()
    image, out = torch.arange(n)[:, None, None], torch.zeros_like(x)
    for i, weight in enumerate((weights / weights.sum()).tolist()):
        rows = (torch.arange(height) + (i * angle.sin() - 0.5).ceil().long()).clamp(0, height - 1)
        columns = (torch.arange(width) + (i * angle.cos() - 0.5).ceil().long()).clamp(0, width - 1)
        out += weight * x[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return out


def zoom_blur(x: Tensor, steps: int, random: Generator) -> Tensor:
    """The mean of the image and of its enlargements by 0, 1, ... per cent."""
    views = [_enlarged(x, 1 + i / 100) for i in range(steps)]
    return (x + torch.stack(views).sum(0)) / (steps + 1)


def fog(x: Tensor, haze: tuple[float, float], random: Generator) -> Tensor:
    amount, decay = haze
    n, _, height, width = x.shape
    brightest = x.amax((1, 2, 3), keepdim=True)
    clouds = plasma(n, 2 ** math.ceil(math.log2(max(height, width))), decay, random)[:, None, :height, :width]
    return (x + amount * clouds) * brightest / (brightest + amount)


def brightness(x: Tensor, more: float, random: Generator) -> Tensor:
    """The value of HSV grows; hue and saturation stay."""
    value = x.amax(1, keepdim=True)
    brighter = (value + more).clamp(max=1)
    return torch.where(value > 0, x * brighter / value.clamp_min(1e-9), brighter)


def contrast(x: Tensor, factor: float, random: Generator) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def saturate(x: Tensor, line: tuple[float, float], random: Generator) -> Tensor:
    """The saturation of HSV becomes a s + b; grey counts as red of saturation 0."""
    a, b = line
    value, lowest = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    saturation = (value - lowest) / value.clamp_min(1e-9)
    wanted = (a * saturation + b).clamp(0, 1)
    red = value * torch.cat([torch.ones_like(wanted), 1 - wanted, 1 - wanted], 1)
    return torch.where(saturation > 0, value - (value - x) * wanted / saturation.clamp_min(1e-9), red)


def pixelate(x: Tensor, factor: float, random: Generator) -> Tensor:
    def coarse(image: Image.Image) -> Image.Image:
        size = image.size
        box = Image.Resampling.BOX
        return image.resize((int(size[0] * factor), int(size[1] * factor)), box).resize(size, box)

    return _by_image(x, coarse)


def jpeg(x: Tensor, quality: int, random: Generator) -> Tensor:
    def packed(image: Image.Image) -> Image.Image:
        image.save(buffer := io.BytesIO(), "JPEG", quality=quality)
        return Image.open(buffer)

    return _by_image(x, packed)


# Each corruption with its constants at severities 1 to 5
SHIFTS: dict[str, tuple[Callable[[Tensor, Any, Generator], Tensor], Sequence[Any]]] = {
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "speckle_noise": (speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian_blur": (gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "motion_blur": (motion_blur, ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))),
    "zoom_blur": (zoom_blur, (6, 11, 16, 21, 26)),
    "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "saturate": (saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg": (jpeg, (80, 65, 58, 50, 40)),
}


@dataclass(frozen=True)
class Shift:
    """One corruption of CIFAR-10-C, a transform of images (n, 3, h, w) uint8.

        >>> Shift("contrast", severity=5)(torch.tensor([0, 200], dtype=torch.uint8).repeat(1, 3, 2, 1)).unique()
        tensor([ 85, 115], dtype=torch.uint8)

    Args:
        name: one of `SHIFTS`.
        severity: 1 to 5.
        seed: of the random numbers, which depend on name, severity and seed alone.

    Raises ConfigError for another name, another severity, and images that are not bytes of three channels.
    """

    name: str
    severity: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in SHIFTS:
            raise ConfigError(f"{self.name} is no shift: take one of {', '.join(SHIFTS)}")
        if self.severity not in range(1, 6):
            raise ConfigError(f"the severity of a shift must be 1 to 5, got {self.severity}")

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] != 3:
            raise ConfigError(
                f"a shift takes images (n, 3, h, w) uint8 before they are normalised, got {tuple(x.shape)} {x.dtype}"
            )
        function, constants = SHIFTS[self.name]
        random = generator("cpu", "shift", self.name, self.severity, self.seed)
        shifted = function(x.cpu().float() / 255, constants[self.severity - 1], random)
        return (255 * shifted.clamp(0, 1) + 1e-3).to(torch.uint8).to(x.device)  # 1e-3: bytes that stay keep their value

    def of(self, loader: Any) -> TensorSlices:
        """The items of a loader over images in memory, shifted before they are normalised. Raises ConfigError."""
        if not (isinstance(loader, TensorSlices) and isinstance(loader.x, Tensor)):
            raise ConfigError(f"shifts need images in memory, such as data=cifar10, got a {type(loader).__name__}")
        return TensorSlices(self(loader.x), loader.y, transform=loader.transform)


def plasma(n: int, size: int, decay: float, random: Generator) -> Tensor:
    """(n, size, size) clouds in [0, 1] by the diamond-square algorithm on a torus; size is a power of two."""
    field, step, wibble = torch.zeros(n, size, size), size, 100.0
    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step].clone()
        across, down = corners + corners.roll(-1, 2), corners + corners.roll(-1, 1)

        def jittered(sum_of_four: Tensor, reach: float) -> Tensor:
            return sum_of_four / 4 + reach * (2 * torch.rand(sum_of_four.shape, generator=random) - 1)

        centres = jittered(across + across.roll(-1, 1), wibble**2)
        field[:, half::step, half::step] = centres
        field[:, ::step, half::step] = jittered(across + centres + centres.roll(1, 1), wibble**2)
        field[:, half::step, ::step] = jittered(down + centres + centres.roll(1, 2), wibble**2)
        step, wibble = half, wibble / decay
    field -= field.amin((1, 2), keepdim=True)
    return field / field.amax((1, 2), keepdim=True)


def _gaussian(sigma: float, radius: int) -> Tensor:
    weights = (-(torch.arange(-radius, radius + 1.0) ** 2) / (2 * sigma**2)).exp()
    return weights / weights.sum()


def _filtered(x: Tensor, kernel: Tensor, border: str) -> Tensor:
    """Every channel of x (n, c, h, w) filtered by the kernel (k, k) of odd size."""
    pad, channels = len(kernel) // 2, x.shape[1]
    padded = F.pad(x, (pad,) * 4, mode=border)
    return F.conv2d(padded, kernel.expand(channels, 1, -1, -1).contiguous(), groups=channels)


def _enlarged(x: Tensor, factor: float) -> Tensor:
    """The middle of the images, enlarged bilinearly to their size."""
    height, width = x.shape[2:]
    high, wide = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - high) // 2, (width - wide) // 2
    size = (max(height, round(high * factor)), max(width, round(wide * factor)))
    middle = x[:, :, top : top + high, left : left + wide]
    large = F.interpolate(middle, size=size, mode="bilinear", align_corners=True)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return large[:, :, top : top + height, left : left + width]


def _by_image(x: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """What a function of Pillow makes of each image."""
    pixels = (255 * x).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    changed = np.stack([np.asarray(change(Image.fromarray(image))) for image in pixels])
    return torch.from_numpy(changed).permute(0, 3, 1, 2).float() / 255
