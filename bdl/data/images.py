"""Folders of images, one folder per class, kept as bytes in memory or read on demand."""

from __future__ import annotations

import contextlib
import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from bdl.data.augment import Augment, Normalise
from bdl.data.image_losses import IMAGE_FORMATS, Losses, warn_of_copies
from bdl.data.image_paths import find_images
from bdl.data.loader import Batching
from bdl.data.tensors import TensorDataModule
from bdl.display import count_of
from bdl.errors import ConfigError

IMAGES_VERSION = 1
MEASURED = 2048  # training images, evenly spaced, that give mean and std of the pixels
LONG = 16  # of a longer image the ends are cut off before it is scaled: 1 x 60,000 pixels would become 224 x 13 million
BYTES = 2**31  # images that take more are read on demand under loader="auto"


class ImageFiles:
    """Images in files, read when they are asked for: the part of a tensor (n, 3, size, size) uint8 that loaders use.

    Images are turned as their EXIF orientation says, made RGB, scaled to `size` pixels on the shorter side, and cut to
    the middle square.

    Raises ConfigError, which names the file, for an image that cannot be read.
    """

    device, dtype, ndim = torch.device("cpu"), torch.uint8, 4

    def __init__(self, paths: Sequence[str], size: int):
        self.paths, self.size = list(paths), size

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.paths), 3, self.size, self.size))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: slice | Tensor) -> ImageFiles:
        paths = self.paths[rows] if isinstance(rows, slice) else [self.paths[i] for i in rows.tolist()]
        return ImageFiles(paths, self.size)

    def to(self, device: torch.device | str) -> ImageFiles:
        return self

    def numel(self) -> int:
        return math.prod(self.shape)

    def index_select(self, axis: int, rows: Tensor) -> Tensor:
        """The images of these rows, (n, 3, size, size) uint8."""
        return self[rows].read()

    def split(self, size: int) -> Iterator[Tensor]:
        """All images, `size` at a time."""
        return (self[slice(i, i + size)].read() for i in range(0, len(self), size))

    def read(self) -> Tensor:
        """All images, (n, 3, size, size) uint8."""
        return torch.stack([_read_image(path, self.size) for path in self.paths])


class ImageFolderDataModule(TensorDataModule):
    """Images in a folder per class: JPEG, PNG, PPM, BMP, TIFF and WebP, of 8 or 16 bits a channel.

    Hidden files and folders, such as `.ipynb_checkpoints`, are left out.

    Args:
        path: a folder with `train` and `test` (and `val` if there is one) inside, each with a folder per class; or one
            with the folders of the classes, which is split by seed. `Training`, `valid` and the like name splits too.
        size: pixels of the square that every image is scaled and cut to.
        loader: "tensor" keeps all images as bytes on the device; "files" reads them on demand, with workers; "auto"
            keeps them where they take at most 2 GiB.
        workers: processes that read on demand.
        augment: random changes to the training images; None shows the images as they are. They change the meaning of
            T, see `CIFARDataModule`.
        test_fraction, split_seed: which images are for testing, as in `TableDataModule`; read only if there is no
            folder `test`.
        val_fraction, fold: share of the training images held out, as in `hold_out`; read only if there is no folder
            `val`.
        batch_size: images per chain and step; None means all training images, "auto" 100 or all of fewer.
        channels_last: memory layout of the inputs.
        batching: chains, seed, stack and replacement, as in `TensorBatches`.

    Mean and standard deviation of the channels come from the training images, at most 2,048 of them.

    Raises ConfigError for a folder that is none of these, for one class only, and for images that cannot be read; they
    are opened at the start, and those kept in memory are decoded.
    """

    def __init__(
        self,
        path: str | Path,
        size: int = 32,
        loader: Literal["auto", "tensor", "files"] = "auto",
        workers: int = 2,
        augment: Augment | None = None,
        test_fraction: float = 0.2,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        fold: int = 0,
        batch_size: int | Literal["auto"] | None = "auto",
        channels_last: bool = True,
        **batching: Unpack[Batching],
    ):
        if size < 1:
            raise ConfigError(f"data.size must be at least 1 pixel, got {size}")
        folder = Path(path).expanduser()
        self.files, self.classes = find_images(folder, test_fraction, val_fraction, split_seed, fold)
        names, losses = [name for items in self.files.values() for name, _ in items], Losses()
        for name in names:
            with _opened(name) as image:  # reads the header, which costs little
                losses.look_at(name, image)
        losses.warn(len(names))
        paths = {split: ImageFiles([name for name, _ in items], size) for split, items in self.files.items()}
        labels = {s: torch.tensor([label for _, label in items]).long() for s, items in self.files.items()}
        self.size = size
        self.pixels = _measure(paths["train"])
        total = sum(files.numel() for files in paths.values())
        on_demand = loader == "files" or loader == "auto" and total > BYTES
        splits = {
            split: (cast(Tensor, files if on_demand or not len(files) else files.read()), labels[split])
            for split, files in paths.items()
        }
        pixels = {split: x if isinstance(x, Tensor) else None for split, (x, _) in splits.items()}
        warn_of_copies(self.files, self.classes, pixels)
        super().__init__(
            splits, batch_size=batch_size, labels=self.classes, augment=augment,
            transform=Normalise(*self.pixels, channels_last), workers=workers if on_demand else None, **batching,
        )  # fmt: skip
        self.name = folder.name
        where = "read on demand" if on_demand else "in memory"
        self.overview = (
            f"{self.name}: {self.rows} images of {count_of(len(self.classes), 'class')}, {size}x{size} pixels, {where}"
        )

    def identity(self) -> dict[str, Any]:
        """The classes, the size, and a checksum of the training files' names and sizes, and of the measured pixels."""
        listed = sorted((Path(name).name, label, Path(name).stat().st_size) for name, label in self.files["train"])
        checksum = hashlib.sha256(repr((listed, self.pixels)).encode()).hexdigest()
        return {"classes": list(self.classes), "size": self.size, "training_images": checksum[:16]}

    def preprocessing(self) -> dict[str, Any]:
        mean, std = ([float(value) for value in values] for values in self.pixels)
        about = {"format_version": IMAGES_VERSION, "kind": "images", "size": self.size, "mean": mean, "std": std}
        return {**about, "labels": list(self.classes)}


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    try:
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            yield image
    except ConfigError:  # a ValueError too
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ConfigError(f"{path} is no image that can be read ({error}): replace or remove it") from error


def _read_image(path: str, size: int) -> Tensor:
    """(3, size, size) uint8."""
    with _opened(path) as image:
        rgb = _in_bytes(_upright(image), path).convert("RGB")
    rgb = _without_ends(rgb)
    scale = size / min(rgb.size)
    width, height = (max(size, round(side * scale)) for side in rgb.size)
    left, top = (width - size) // 2, (height - size) // 2
    if rgb.size != (width, height):
        rgb = rgb.resize((width, height), Image.Resampling.BILINEAR)
    square = rgb.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(square, np.uint8)).permute(2, 0, 1).contiguous()


def _upright(image: Image.Image) -> Image.Image:
    """The image as viewers show it: cameras store pixels as the sensor lies, and an orientation beside them."""
    try:
        return ImageOps.exif_transpose(image)
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error):  # damaged EXIF, beside an image that is whole
        return image


def _without_ends(image: Image.Image) -> Image.Image:
    """The middle of an image that is far longer than it is wide."""
    width, height = image.size
    most = LONG * min(width, height)
    left, top = max(0, (width - most) // 2), max(0, (height - most) // 2)
    return image.crop((left, top, min(width, left + most), min(height, top + most))) if left or top else image


def _in_bytes(image: Image.Image, path: str) -> Image.Image:
    """The image with 8 bits a channel. Pillow's `convert` clips 16 bits at 255, and makes 0 of NaN."""
    if image.mode.startswith("I;16") or image.mode == "I" and image.format == "PNG":  # PNG has 16 bits at most
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ConfigError(f"{path} has pixels of 32 bits, whose range is not known: save it with 8 or 16 bits")
    return image


def _measure(images: ImageFiles) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel, on the scale 0..1."""
    rows = torch.linspace(0, len(images) - 1, min(MEASURED, len(images))).long()
    pixels = images.index_select(0, rows).double() / 255
    std = pixels.std((0, 2, 3), correction=0).clamp_min(1 / 255)  # one colour everywhere has none
    return tuple(pixels.mean((0, 2, 3)).tolist()), tuple(std.tolist())
