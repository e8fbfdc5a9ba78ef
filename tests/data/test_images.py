"""Tests of `bdl.data.images` and `.image_paths`: the same batches from memory and from files, splits, bad images."""

import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bdl.data import ImageFolderDataModule
from bdl.errors import BdlWarning, ConfigError

SIZE = 8


def draw(folder: Path, count: int, seed: int = 0, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    random = np.random.RandomState(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = random.randint(0, 256, (SIZE, SIZE + 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return draw(tmp_path_factory.mktemp("images"), 10)


def module(folder: Path, **settings) -> ImageFolderDataModule:
    return ImageFolderDataModule(folder, **{"size": SIZE, "batch_size": 4, **settings})


def test_images_are_cut_and_normalised_by_the_training_images(folder):
    data = module(folder)
    assert data.labels == ("cat", "dog") and data.num_data == 16 and data.input_shape == (3, SIZE, SIZE)
    assert data.overview.endswith("16 train, 4 test images of 2 classes, 8x8 pixels, in memory")
    x, _ = next(iter(data.slices("train")))
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    path, label = data.files["train"][3]
    raw = torch.from_numpy(np.array(Image.open(path))[:, 2:-2]).permute(2, 0, 1)
    assert torch.equal(data.tensors("train")[0][3], raw) and data.tensors("train")[1][3] == label


def test_other_sizes_and_grey_images_are_made_alike(tmp_path):
    draw(tmp_path, 3)
    Image.fromarray(np.full((3 * SIZE, 2 * SIZE), 77, np.uint8)).save(tmp_path / "cat" / "grey.png")
    data = module(tmp_path, batch_size=None)
    grey = [x for split in ("train", "test") for x in data.tensors(split)[0] if (x == 77).all()]
    assert len(grey) == 1 and grey[0].shape == (3, SIZE, SIZE)


def test_files_read_on_demand_give_the_images_that_memory_gives(folder):
    memory, files = (module(folder, loader=loader, workers=0, val_fraction=0.25) for loader in ("tensor", "files"))
    assert "read on demand" in files.overview
    pairs = [(memory.train_dataloader(), files.train_dataloader()), (memory.val_dataloader(), files.val_dataloader())]
    for one, other in [*pairs, (memory.slices("train", 5), files.slices("train", 5))]:
        batches = list(zip(one, other, strict=True))
        assert batches
        for (x, y), (same_x, same_y) in batches:
            assert torch.equal(x, same_x) and torch.equal(y, same_y)


def test_many_images_are_read_on_demand(folder, monkeypatch):
    monkeypatch.setattr("bdl.data.images.BYTES", 1000)
    assert "read on demand" in module(folder, workers=0).overview


def test_folders_may_name_the_splits(tmp_path):
    for split, count in (("train", 5), ("test", 3), ("val", 2)):
        draw(tmp_path / split, count, seed=count)
    data = module(tmp_path)
    assert [len(data.tensors(split)[1]) for split in ("train", "val", "test")] == [10, 4, 6]


@pytest.mark.parametrize("names", [("Train", "Test", "Val"), ("training", "testing", "valid")])
def test_splits_have_the_names_that_people_give_them(tmp_path, names):
    """Else the folders Train and Test would be two classes."""
    for split, count in zip(names, (5, 3, 2), strict=True):
        draw(tmp_path / split, count, seed=count)
    data = module(tmp_path)
    assert data.labels == ("cat", "dog")
    assert [len(data.tensors(split)[1]) for split in ("train", "val", "test")] == [10, 4, 6]


def test_a_class_may_be_named_train(tmp_path):
    assert module(draw(tmp_path, 5, classes=("bus", "train"))).labels == ("bus", "train")


@pytest.mark.parametrize("classes, words", {
    ("Train/cat", "Train/dog", "training/cat"): "has Train and training, which are the same split",
    ("Test", "Train"): "and no train with a folder per class",
    ("test/cat", "test/dog"): "has test, and no train with a folder per class",
}.items(), ids=["twice", "no classes", "no train"])  # fmt: skip
def test_splits_that_are_none_are_refused(tmp_path, classes, words):
    with pytest.raises(ConfigError, match=words):
        module(draw(tmp_path, 2, classes=classes))


def test_a_folder_beside_the_splits_is_told(tmp_path):
    draw(tmp_path, 3, classes=("train/cat", "train/dog", "new/cat"))
    with pytest.warns(BdlWarning, match="1 folder beside train .*new is the first.: left out"):
        module(tmp_path)


def test_a_path_that_is_not_there_is_no_empty_folder(tmp_path):
    with pytest.raises(ConfigError, match="nowhere is no folder that is there"):
        module(tmp_path / "nowhere")


def test_a_class_without_training_images_is_told(tmp_path):
    draw(tmp_path, 1)
    with pytest.warns(BdlWarning, match="no training image of (cat|dog): add images, or take another data.split_seed"):
        module(tmp_path, batch_size=None)


@pytest.mark.parametrize("damaged", [False, True])
def test_images_stand_upright_as_viewers_show_them(tmp_path, damaged):
    """Cameras write the pixels as the sensor lies, and the orientation as EXIF."""
    draw(tmp_path, 3)
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    pixels[: SIZE // 2] = 200  # the upper half is bright
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: the bright half is the right one
    block = exif.tobytes()[:-6] if damaged else exif.tobytes()
    Image.fromarray(pixels).save(tmp_path / "cat" / "turned.png", exif=block)
    data = module(tmp_path, batch_size=None)
    every = [x for split in ("train", "test") for x in data.tensors(split)[0]]
    expected = torch.from_numpy(pixels if damaged else np.rot90(pixels, -1).copy()).permute(2, 0, 1)
    assert sum(torch.equal(x, expected) for x in every) == 1


@pytest.mark.parametrize("side", [1, 60_000])
def test_a_very_long_image_is_cut_before_it_is_scaled(tmp_path, monkeypatch, side):
    """One pixel by 60,000, scaled to a width of 224, would take 9 GB."""
    draw(tmp_path, 3)
    pixels = np.zeros((side, 60_001 - side), np.uint8)
    pixels.reshape(-1)[29_000:31_000] = 255
    Image.fromarray(pixels).save(tmp_path / "cat" / "line.png")
    sizes, resize = [], Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, size, *rest: sizes.append(size) or resize(self, size, *rest)
    )
    data = module(tmp_path, size=64, batch_size=None)
    assert max(max(size) for size in sizes) <= 16 * 64
    assert any(bool((x == 255).all()) for split in ("train", "test") for x in data.tensors(split)[0])


def test_data_are_named_by_their_training_files(folder, tmp_path):
    other = draw(tmp_path, 10, seed=5)
    assert module(folder).identity() == module(folder, seed=3, loader="files").identity()
    assert module(folder).identity() != module(other).identity() != module(folder, size=4).identity()


def test_a_damaged_image_is_named(tmp_path):
    draw(tmp_path, 6)
    whole = (tmp_path / "cat" / "2.png").read_bytes()
    (tmp_path / "cat" / "2.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="cat/2.png is no image that can be read .*: replace or remove it"):
        module(tmp_path)
    (tmp_path / "cat" / "2.png").write_bytes(b"no image")
    with pytest.raises(ConfigError, match="cat/2.png is no image that can be read .*: replace or remove it"):
        module(tmp_path, loader="files")


def test_an_image_that_a_worker_cannot_read_is_named_in_one_line(tmp_path):
    draw(tmp_path, 6)
    data = module(tmp_path, loader="files", workers=1, batch_size=None)
    path = Path(data.files["train"][0][0])
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ConfigError, match="is no image that can be read") as error:
        list(data.train_dataloader())
    assert "\n" not in str(error.value) and str(error.value).startswith(str(path))


BAD = {
    "nothing": ((), {}, "is no folder of images, with a folder per class"),
    "one class": (("cat",), {}, "has one class only, cat: give a folder per class"),
    "size": (("cat", "dog"), {"size": 0}, "data.size must be at least 1 pixel, got 0"),
    "fraction": (("cat", "dog"), {"test_fraction": 1.5}, r"data.test_fraction must be in \(0, 1\), got 1.5"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused(tmp_path, name):
    classes, settings, words = BAD[name]
    draw(tmp_path, 2, classes=classes)
    with pytest.raises(ConfigError, match=words):
        module(tmp_path, **settings)


def test_other_classes_in_another_split_are_refused(tmp_path):
    draw(tmp_path / "train", 2)
    draw(tmp_path / "test", 2, classes=("cat", "dog", "eel"))
    with pytest.raises(
        ConfigError, match="the class eel is in test and not in train: add the folder .*train/eel with images"
    ):
        module(tmp_path)


def test_16_bits_are_scaled_and_32_bits_are_refused(tmp_path):
    """Pillow clips 16 bits at 255, and makes 0 of NaN."""
    draw(tmp_path, 3)
    deep = np.full((SIZE, SIZE), 77 * 256 + 5, np.uint16)
    for name in ("deep.png", "deep.tif"):
        Image.fromarray(deep).save(tmp_path / "cat" / name)
    data = module(tmp_path, batch_size=None)
    every = [x for split in ("train", "test") for x in data.tensors(split)[0]]
    assert sum(bool((x == 77).all()) for x in every) == 2
    Image.fromarray(np.full((SIZE, SIZE), np.nan, np.float32)).save(tmp_path / "cat" / "nan.tif")
    with pytest.raises(ConfigError, match="^[^ ]*nan.tif has pixels of 32 bits, whose range is not known"):
        module(tmp_path)


@pytest.mark.parametrize("link", ["kitten", "cat/more"])
def test_a_folder_in_two_classes_is_refused(folder, tmp_path, link):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / link).symlink_to(copy / ("cat" if link == "kitten" else "dog"), target_is_directory=True)
    with pytest.raises(ConfigError, match=r"lies in the classes cat and \w+, in one by a link: remove the link"):
        module(copy)


def test_hidden_folders_links_back_and_pipes_are_no_images(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    shutil.copytree(copy / "cat", copy / ".ipynb_checkpoints")
    (copy / "cat" / "again").symlink_to(copy / "cat", target_is_directory=True)
    (copy / "cat" / "up").symlink_to(copy, target_is_directory=True)  # through which dogs would be cats
    (copy / "dog" / "._0.png").write_bytes(b"of macOS")
    os.mkfifo(copy / "dog" / "pipe.png")  # opening it would wait for ever
    (copy / "dog" / "zero.png").symlink_to("/dev/zero")
    (copy / "dog" / "kernel.png").symlink_to("/proc/self/status")
    (copy / "dog" / "gone.png").symlink_to(copy / "nowhere.png")  # as of a disk that is not there
    with socket.socket(socket.AF_UNIX) as listening, pytest.warns(BdlWarning, match="named as images") as told:
        listening.bind(os.path.relpath(copy / "dog" / "socket.png"))  # its name has 107 bytes at most
        found = module(copy).files
    assert found == {
        split: [(name.replace(str(folder), str(copy)), label) for name, label in items]
        for split, items in module(folder).files.items()
    }
    assert f"5 that are named as images are no files or lead nowhere ({copy / 'dog' / 'gone.png'}" in str(
        told[0].message
    )


def test_a_folder_that_cannot_be_read_is_no_empty_one(folder, tmp_path, monkeypatch):
    """The tests may run as root, whom no permission stops."""
    copy, scan = Path(shutil.copytree(folder, tmp_path / "copy")), os.scandir
    (copy / "cat" / "more").mkdir()

    def refused(place):
        if Path(place).name == "more":
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ConfigError, match="more cannot be read .Permission denied.: change its permissions"):
        module(copy)


def test_a_format_that_another_program_reads_is_refused(tmp_path):
    draw(tmp_path, 3)
    Image.new("RGB", (SIZE, SIZE)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "dog" / "a.png")  # Pillow goes by the content, and would call Ghostscript
    with pytest.raises(ConfigError, match="a.png is no image that can be read"):
        module(tmp_path)
