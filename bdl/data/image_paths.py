"""Which images a folder has, of which class and for which split. What is left out is told."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from bdl.advice import override
from bdl.data.columns import SPLITS
from bdl.data.frame import brief_list
from bdl.data.image_losses import warn_of_other_formats
from bdl.data.split import split_by_seed
from bdl.disk.files import is_on_disk
from bdl.display import count_of
from bdl.errors import BdlWarning, ConfigError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
Labelled = list[tuple[str, int]]  # (path, class) of each image


def find_images(
    folder: Path, test_fraction: float, val_fraction: float, split_seed: int, fold: int
) -> tuple[dict[str, Labelled], list[str]]:
    """The (path, class) of the images of each split, and the names of the classes."""
    if not folder.is_dir():
        raise ConfigError(f"{override('data.path', str(folder))} is no folder that is there: give that of the images")
    marked = _split_folders(folder)
    place = marked.get("train", folder)
    found, classes = _images_of(place)
    files = {"train": found}
    for split in marked.keys() - {"train"}:
        files[split], others = _images_of(marked[split])
        if different := sorted(set(others) ^ set(classes)):
            has, lacks = (marked[split], place) if different[0] in others else (place, marked[split])
            raise ConfigError(
                f"{folder}: the class {different[0]} is in {has.name} and not in {lacks.name}: add the folder "
                f"{lacks / different[0]} with images, or take {has / different[0]} away"
            )
    taken = lambda items, rows: [items[i] for i in rows]  # noqa: E731
    parts = split_by_seed(files, taken, test_fraction, val_fraction, split_seed, fold)
    _warn_of_untrained(parts, classes)
    return parts, classes


def _split_folders(folder: Path) -> dict[str, Path]:
    """The folders of "train", "test" and "val", if this folder has some; {} where its folders are classes.

    A folder of classes has folders; a class that is named train, as of vehicles, has images. Warns of folders beside
    them. Raises ConfigError for two folders of one split, and for splits without classes.
    """
    folders = _folders_in(folder)
    named: dict[str, list[Path]] = {}
    for path in folders:
        if (split := SPLITS.get(path.name.lower())) is not None and _folders_in(path):
            named.setdefault(split, []).append(path)
    if "train" not in named:
        if "test" in named or folders and all(path.name.lower() in SPLITS for path in folders):
            name = override("data.path", str(folder))
            raise ConfigError(
                f"{name} has {folders[0].name}, and no train with a folder per class: give train, and test if there is "
                "one, a folder for each class"
            )
        return {}
    if twice := [paths for paths in named.values() if len(paths) > 1]:
        one, other = (path.name for path in twice[0][:2])
        raise ConfigError(f"{folder} has {one} and {other}, which are the same split: remove one of them")
    marked = {split: paths[0] for split, paths in named.items()}
    if others := [path for path in folders if path not in marked.values()]:
        line = f"data.path: {count_of(len(others), 'folder')} beside train ({others[0]} is the first): left out"
        warnings.warn(line, BdlWarning, 2)
    return marked


def _folders_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def _warn_of_untrained(parts: dict[str, Labelled], classes: Sequence[str]) -> None:
    """Warn of classes that the split by seed leaves without a training image."""
    trained = {label for _, label in parts["train"]}
    if without := [name for label, name in enumerate(classes) if label not in trained]:
        line = f"data.path: no training image of {brief_list(without)}: add images, or take another data.split_seed"
        warnings.warn(line, BdlWarning, 3)


def _images_of(folder: Path) -> tuple[Labelled, list[str]]:
    """The (path, class) of the images below a folder, and the names of its folders, which are the classes.

    Hidden files and folders are none of the user's. A link to a folder is followed, once. Raises ConfigError also where
    two classes hold one folder.
    """
    classes = [path.name for path in _folders_in(folder)]
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
    if beside := sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(EXTENSIONS)):
        line = f"data.path: {count_of(len(beside), 'image')} beside the folders of the classes in {folder}"
        warnings.warn(f"{line} ({beside[0]} is the first): left out", BdlWarning, 3)
    return [(path, label) for label, name in enumerate(classes) for path in found[name]], classes


def _files_below(folder: Path, held: dict[str, str]) -> list[str]:
    """The image files in a folder and in its folders, in the order of `torchvision.datasets.ImageFolder`.

    held: the class that holds each folder, by its real path, to which this one is added.

    Warns of images in other formats or with other names, of links that lead nowhere, pipes and the like, which are left
    out. Raises ConfigError for a folder that cannot be read, and for one of another class, whose images would have two
    labels.
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
    every = [path for path in visible if path.lower().endswith(EXTENSIONS)]
    warn_of_other_formats(path for path in visible if not path.lower().endswith(EXTENSIONS) and _ends(path))
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
