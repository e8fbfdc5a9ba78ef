"""What reading a folder of images loses, and images that are there twice: counted and told."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from bdl.disk.manifest import file_digest
from bdl.display import count_of
from bdl.errors import BdlWarning

IMAGE_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")  # others, such as EPS, hand the file to other programs
NOT_READ = (".gif", ".heic", ".heif", ".avif", ".svg", ".jp2", ".tga", ".ico", ".raw", ".psd")


def warn_of_other_formats(paths: Iterable[str]) -> None:
    """Warn of images that are left out: in formats that are not read by their names, or without the name of an image.

    paths: files without a name that is read. The first bytes of each tell whether it is an image all the same.
    """
    formats: list[str] = []
    names: list[str] = []
    for path in sorted(paths):
        if path.lower().endswith(NOT_READ):
            formats.append(path)
        elif _is_image(path):
            names.append(path)
    for left_out, what, remedy in (
        (formats, "in formats that are not read", "save them as PNG to have them"),
        (names, "without the name of one", "add .jpg, .png or the like to their names to have them"),
    ):
        if left_out:
            line = f"data.path: {count_of(len(left_out), 'image')} {what}, {left_out[0]} the first: left out"
            warnings.warn(f"{line}; {remedy}", BdlWarning, 3)


def _is_image(path: str) -> bool:
    try:
        with Image.open(path, formats=IMAGE_FORMATS):
            return True
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False


class Losses:
    """Counts what each image loses when it becomes RGB, from its header."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = defaultdict(list)

    def look_at(self, name: str, image: Any) -> None:
        """Take an opened image of Pillow into account."""
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            self._names["transparency, which is dropped"].append(name)
        if getattr(image, "n_frames", 1) > 1:
            self._names["several frames, of which the first is read"].append(name)

    def warn(self, total: int) -> None:
        """Warn of all that was counted, in one line."""
        if self._names:
            each = (
                f"{len(names):,} {'has' if len(names) == 1 else 'have'} {what} ({names[0]} is the first)"
                for what, names in self._names.items()
            )
            warnings.warn(f"data.path: of {count_of(total, 'image')} {'; '.join(each)}", BdlWarning, 3)


def warn_of_copies(
    files: Mapping[str, Sequence[tuple[str, int]]], classes: Sequence[str], pixels: Mapping[str, Tensor | None]
) -> None:
    """Warn of images that are there twice, in two classes or in training and test images.

    files: (path, class) of the images of each split. pixels: (n, 3, size, size) uint8 of each split, as the network
    sees them; None where they are not in memory: then only files with the same bytes are copies.
    """
    by_content: dict[Hashable, list[tuple[str, str, int]]] = defaultdict(list)
    by_size: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
    for split, items in files.items():
        for i, (path, label) in enumerate(items):
            if (images := pixels[split]) is not None:
                by_content[hashlib.sha256(images[i].numpy().data).digest()].append((split, path, label))
            else:
                by_size[os.stat(path).st_size].append((split, path, label))
    for alike in by_size.values():
        for item in alike if len(alike) > 1 else ():
            by_content[file_digest(Path(item[1]))].append(item)
    doubled = [items for items in by_content.values() if len(items) > 1]
    two = [items for items in doubled if len({label for _, _, label in items}) > 1]
    both = [items for items in doubled if {"train", "test"} <= {split for split, _, _ in items}]
    said = []
    if two:
        first, other = {label: path for _, path, label in reversed(two[0])}, sorted({item[2] for item in two[0]})
        names = " and ".join(f"{first[label]} of {classes[label]}" for label in other[:2])
        said.append(f"{count_of(len(two), 'image')} in two classes ({names})")
    if both:
        count = sum(split == "test" for items in both for split, _, _ in items)
        total = count_of(len(files["test"]), "test image")
        said.append(f"{count:,} of {total} in training too, where scores say nothing about new ones")
    if said:
        warnings.warn(f"data.path: {'; '.join(said)}: remove the copies", BdlWarning, 3)
