"""Folders of images, one folder per class, kept as bytes in memory or read on demand."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bdl.advice import override
from bdl.data.augment import Augment, Normalise
from bdl.data.image_losses import Losses, warn_of_copies, warn_of_other_formats
from bdl.data.loader import Batching
from bdl.data.split import split_by_seed
from bdl.data.tensors import TensorDataModule
from bdl.disk.files import is_on_disk
from bdl.display import count_of
from bdl.errors import BdlWarning, ConfigError

IMAGES_VERSION = 1
IMAGE_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")  # others, such as EPS, hand the file to other programs
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
MEASURED = 2048  # training images, evenly spaced, that give mean and std of the pixels
BYTES = 2**31  # images that take more are read on demand under loader="auto"


class ImageFiles:
    """Images in files, read when they are asked for: the part of a tensor (n, 3, size, size) uint8 that loaders use.

    Images are made RGB, scaled to `size` pixels on the shorter side, and cut to the middle square.

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
            with the folders of the classes, which is split by seed.
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
        warn_of_copies(self.files, self.classes)
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


def find_images(
    folder: Path, test_fraction: float, val_fraction: float, split_seed: int, fold: int
) -> tuple[dict[str, list[tuple[str, int]]], list[str]]:
    """The (path, class) of the images of each split, and the names of the classes."""
    marked = (folder / "train").is_dir()
    found, classes = _images_of(folder / "train" if marked else folder)
    files = {"train": found}
    for split in ("test", "val") if marked else ():
        if (folder / split).is_dir():
            files[split], other = _images_of(folder / split)
            if other != classes:
                different = sorted(set(other) ^ set(classes))
                raise ConfigError(
                    f"{folder}: train and {split} have other classes: {different[0]} is in one of them only"
                )
    taken = lambda items, rows: [items[i] for i in rows]  # noqa: E731
    return split_by_seed(files, taken, test_fraction, val_fraction, split_seed, fold), classes


def _images_of(folder: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """The (path, class) of the images below a folder, and the names of its folders, which are the classes.

    Hidden files and folders are none of the user's. A link to a folder is followed, once. Raises ConfigError also where
    two classes hold one folder.
    """
    classes = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".") if folder.is_dir() else []
    held: dict[str, str] = {}
    found = {name: _files_below(folder / name, held) for name in classes}
    empty = [name for name in classes if not found[name]]
    if not classes or empty:
        what = f"{empty[0]} has no image ({', '.join(EXTENSIONS)})" if classes else "it has no folder"
        raise ConfigError(
            f"{override('data.path', str(folder))} is no folder of images, with a folder per class: {what}"
        )
    if len(classes) < 2:
        name = override("data.path", str(folder))
        raise ConfigError(f"{name} has one class only, {classes[0]}: give a folder per class")
    return [(path, label) for label, name in enumerate(classes) for path in found[name]], classes


def _files_below(folder: Path, held: dict[str, str]) -> list[str]:
    """The image files in a folder and in its folders, in the order of `torchvision.datasets.ImageFolder`.

    held: the class that holds each folder, by its real path, to which this one is added.

    Warns of links that lead nowhere, pipes and the like, which are left out. Raises ConfigError for a folder that
    cannot be read, and for one of another class, whose images would have two labels.
    """
    folders, above = [], {str(parent) for parent in Path(os.path.realpath(folder)).parents}
    for root, inside, names in os.walk(folder, onerror=_refuse_unread, followlinks=True):
        place = os.path.realpath(root)
        if place in above or held.get(place) == folder.name:  # a link that leads back would multiply the images
            inside.clear()
            continue
        if place in held:
            raise ConfigError(
                f"data.path: {place} lies in the classes {held[place]} and {folder.name}, in one by a link: remove the "
                "link"
            )
        held[place] = folder.name
        inside[:] = [name for name in inside if name[0] != "."]
        folders.append((root, sorted(name for name in names if name[0] != ".")))
    visible = [os.path.join(root, name) for root, names in sorted(folders) for name in names]
    warn_of_other_formats(visible)
    every = [path for path in visible if path.lower().endswith(EXTENSIONS)]
    files, no_files = ([path for path in every if _ends(path) is kept] for kept in (True, False))
    if no_files:
        line = f"{len(no_files)} that are named as images are no files or lead nowhere ({no_files[0]} is the first):"
        warnings.warn(f"data.path: {line} they are left out", BdlWarning, stacklevel=2)
    return files


def _ends(path: str) -> bool:
    """Whether this is a file that can be read to its end; links alone lead to files of the kernel."""
    return is_on_disk(Path(path)) if os.path.islink(path) else os.path.isfile(path)


def _refuse_unread(error: OSError) -> None:
    raise ConfigError(f"{error.filename} cannot be read ({error.strerror}): change its permissions, or remove it")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    try:
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            yield image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ConfigError(f"{path} is no image that can be read ({error}): replace or remove it") from error


def _read_image(path: str, size: int) -> Tensor:
    """(3, size, size) uint8."""
    with _opened(path) as image:
        rgb = _in_bytes(image, path).convert("RGB")
    scale = size / min(rgb.size)
    width, height = (max(size, round(side * scale)) for side in rgb.size)
    left, top = (width - size) // 2, (height - size) // 2
    if rgb.size != (width, height):
        rgb = rgb.resize((width, height), Image.Resampling.BILINEAR)
    square = rgb.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(square, np.uint8)).permute(2, 0, 1).contiguous()


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
