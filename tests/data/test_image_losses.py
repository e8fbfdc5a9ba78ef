"""Tests of `bdl.data.image_losses`: what is lost of images, and copies, are counted and told."""

import warnings

import numpy as np
import pytest
from PIL import Image

from bdl.data import ImageFolderDataModule


def picture(seed: int, channels: int = 3) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, channels), dtype=np.uint8))


@pytest.fixture
def folder(tmp_path):
    for number in range(20):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        picture(number).save(path)
    return tmp_path


def gif(folder):
    picture(0).save(folder / "a" / "x.gif")


def alpha(folder):
    picture(0, 4).save(folder / "a" / "0.png")


def frames(folder):
    picture(30).save(folder / "b" / "film.tiff", save_all=True, append_images=[picture(31)])


def two_classes(folder):
    (folder / "b" / "copy.png").write_bytes((folder / "a" / "0.png").read_bytes())


def two_classes_by_pixels(folder):
    Image.open(folder / "a" / "0.png").convert("RGBA").convert("RGB").save(folder / "b" / "again.bmp")


def copies_by_pixels(folder):
    for k in range(12):
        Image.open(folder / "a" / "2.png").save(folder / "a" / f"copy{k}.tiff", compression=(None, "tiff_lzw")[k % 2])


def copies(folder):
    for k in range(12):  # some on both sides of the split by seed
        (folder / "a" / f"copy{k}.png").write_bytes((folder / "a" / "2.png").read_bytes())


def other_name(folder):
    (folder / "a" / "0.png").rename(folder / "a" / "0.jfif")
    (folder / "a" / "notes.txt").write_text("no image")


def beside(folder):
    picture(0).save(folder / "stray.png")


FAULTS = {
    gif: "1 image in formats that are not read", alpha: "1 has transparency, which is dropped",
    frames: "1 has several frames, of which the first is read", two_classes: "1 image in two classes",
    copies: "test images in training too", two_classes_by_pixels: "1 image in two classes",
    copies_by_pixels: "test images in training too",
    other_name: "1 image without the name of one", beside: "1 image beside the folders of the classes",
}  # fmt: skip


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_what_is_lost_is_told(folder, fault):
    if fault is not None:
        fault(folder)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ImageFolderDataModule(folder, size=8)
    lines = [str(w.message) for w in told]
    assert lines == [] if fault is None else any(FAULTS[fault] in line for line in lines), lines
